"""ResNets of Keras' layers, with given weights, to compare with."""

from typing import Any

import tensorflow as tf
import tf_keras


class KerasResNet:
    """The networks as He et al. (2016) draw them, with version 1.5's stride, of Keras' layers and these weights."""

    def __init__(self, depth: int, blocks: tuple[int, ...], values: dict[str, Any], training: bool, stem: str) -> None:
        self.depth, self.blocks, self.values, self.training, self.stem = depth, blocks, values, training, stem

    def __call__(self, images: Any) -> Any:
        net = tf.constant(images)
        if self.stem == "large":
            net = tf.nn.relu(self.conv(net, "stem/conv", 2))
            net = tf_keras.layers.ZeroPadding2D(1)(net)
            net = tf_keras.layers.MaxPooling2D(3, 2)(net)
        else:
            net = tf.nn.relu(self.conv(net, "stem/conv", 1))
        for group, count in enumerate(self.blocks):
            for block in range(count):
                net = self.block(net, f"group_{group}/block_{block}", 2 if group and not block else 1)
        net = tf_keras.layers.GlobalAveragePooling2D()(net)
        return net @ self.values["logits/kernel"] + self.values["logits/bias"]

    def block(self, net: Any, name: str, stride: int) -> Any:
        shortcut = net
        if f"{name}/shortcut/kernel" in self.values:
            shortcut = self.conv(net, f"{name}/shortcut", stride)
        strides = (1, stride, 1) if self.depth == 50 else (stride, 1)
        for i, stride in enumerate(strides):
            net = self.conv(net, f"{name}/conv_{i}", stride)
            net = tf.nn.relu(net if i < len(strides) - 1 else net + shortcut)
        return net

    def conv(self, net: Any, name: str, stride: int) -> Any:
        kernel = self.values[f"{name}/kernel"]
        net = tf_keras.layers.ZeroPadding2D(kernel.shape[0] // 2)(net)
        layer = tf_keras.layers.Conv2D(kernel.shape[3], kernel.shape[0], stride, use_bias=False)
        layer.build(net.shape)
        layer.set_weights([kernel])
        norm = tf_keras.layers.BatchNormalization(epsilon=1e-5)
        net = layer(net)
        norm.build(net.shape)
        parts = ("gamma", "beta", "moving_mean", "moving_variance")
        norm.set_weights([self.values[f"{name}_norm/{part}"] for part in parts])
        return norm(net, training=self.training)
