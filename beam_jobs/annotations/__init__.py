"""Reading annotation files of images, such as COCO JSON and Pascal VOC."""
