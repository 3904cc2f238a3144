"""Files of text: how they are compressed, where their documents lie, and the values of these."""
