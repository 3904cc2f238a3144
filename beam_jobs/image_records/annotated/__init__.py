"""Annotations of pictures as features of their records, moved as the pictures are: turned upright, and resized."""
