"""Records of images: layouts, rules for storing them, and counts."""
