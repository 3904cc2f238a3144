"""Files of arrays of images with labels: CIFAR's pickles and binaries, SVHN's MATLAB files, and NumPy archives such as MedMNIST."""
