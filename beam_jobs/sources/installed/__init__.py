"""Sources of installed packages: finding them, their arguments, and checks of the values that they return."""
