"""Programs of TensorFlow on devices: TPU chips, GPUs or CPU devices, of one process or several. Nothing here knows an estimator."""
