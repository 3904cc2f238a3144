"""Two files of lines, of which each pair of lines is a pair."""
