"""Options of a run: flags override a YAML file, which overrides the defaults."""
