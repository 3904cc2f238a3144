"""Parts that the commands share: flags, tables, exit codes, and quiet loading of TensorFlow."""
