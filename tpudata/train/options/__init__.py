"""Options of a run: from flags, over those of a YAML file, over the defaults."""
