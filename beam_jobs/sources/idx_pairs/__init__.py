"""IDX pairs, such as those of MNIST: a file of images and one of labels."""
