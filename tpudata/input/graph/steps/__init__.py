"""Steps from decoded records to the features and labels of a batch, each a function of (element, extras)."""
