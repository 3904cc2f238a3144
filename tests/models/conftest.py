"""Eight logical CPU devices for tests with several replicas: TensorFlow takes them only before its first operation."""

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)
