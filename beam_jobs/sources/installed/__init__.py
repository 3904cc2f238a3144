"""Sources of installed packages: how they are found, their arguments, and checks of what they give."""
