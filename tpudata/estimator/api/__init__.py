"""What programs hold: configuration, specs, modes and errors."""
