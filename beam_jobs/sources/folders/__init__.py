"""Folders of images: classes, patterns, and the raw files of ImageNet."""
