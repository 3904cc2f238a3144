"""The `tf.train.Example` codec, without TensorFlow or protobuf."""
