"""Lists of any length: padded with their counts, several classes, boxes and points that move with their image."""
