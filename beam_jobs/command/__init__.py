"""The command line of a conversion: flags, tables, and the run."""
