"""Annotation files of images, such as COCO JSON and Pascal VOC: what they say of each picture."""
