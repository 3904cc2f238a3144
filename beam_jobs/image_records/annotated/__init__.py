"""Annotations of pictures as features of their records; coordinates follow the pictures when these are turned and resized."""
