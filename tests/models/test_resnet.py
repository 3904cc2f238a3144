"""ResNets compared with Keras' layers of the same weights, and with their published sizes."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.models.keras_resnet import KerasResNet
from tests.models.programs import first_values, random_values, run_graph
from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys
from tpudata.models.resnet import ResNetParams, model_fn, resnet

RNG = np.random.default_rng(7)


def drawn_images(count: int, size: int) -> Any:
    return RNG.normal(size=(count, size, size, 3)).astype(np.float32)


def network(images: Any, params: ResNetParams, training: bool = False) -> Any:
    return lambda: resnet(tf.constant(images), params, training)


# Three groups, two blocks in the last.
FEW_BLOCKS = ResNetParams(depth=18, blocks=(1, 1, 2), stem="large")


def first_values_of(zero_gamma: bool = True) -> dict[str, Any]:
    params = dataclasses.replace(FEW_BLOCKS, zero_gamma=zero_gamma)
    return first_values(network(np.zeros((1, 32, 32, 3), np.float32), params))


# The counts of other libraries' ResNets of 1,000 classes.
@pytest.mark.parametrize(("depth", "trainable"), [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)])
def test_parameter_counts_equal_the_published_ones(depth: int, trainable: int) -> None:
    params = ResNetParams(depth=depth)
    with tf.Graph().as_default():
        resnet(tf.zeros([1, 224, 224, 3]), params, training=False)
        found = tf.compat.v1.trainable_variables()
        assert sum(variable.shape.num_elements() for variable in found) == trainable
        moving = [variable for variable in tf.compat.v1.global_variables() if "moving" in variable.op.name]
        norms = [variable for variable in found if variable.op.name.endswith("gamma")]
        assert len(moving) == 2 * len(norms)
        assert {variable.dtype for variable in found} == {tf.float32}


# One net with all its blocks, and one with a bottleneck of each kind: without a shortcut's stride, with it, and after it.
@pytest.mark.parametrize(
    ("depth", "blocks", "size", "stem", "training"),
    [(18, (2, 2), 33, "small", False), (50, (1, 2), 65, "large", True)],
)
def test_logits_equal_keras(depth: int, blocks: tuple[int, ...], size: int, stem: str, training: bool) -> None:
    params = ResNetParams(depth=depth, blocks=blocks, num_classes=5)
    images = drawn_images(3, size)
    build = network(images, params, training)
    values = random_values(build, scale=0.05)
    logits, _ = run_graph(build, values)
    assert (logits.shape, logits.dtype.name) == ((3, 5), "float32")
    expected = KerasResNet(depth, blocks, values, training, stem)(images)
    np.testing.assert_allclose(logits, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())


def test_initial_values_follow_he_and_zero_gamma() -> None:
    values = first_values_of()
    kernel = values["group_2/block_1/conv_0/kernel"]
    assert kernel.shape == (3, 3, 256, 256)
    assert kernel.std() == pytest.approx(np.sqrt(2 / (9 * 256)), rel=0.01)
    assert kernel.mean() == pytest.approx(0, abs=1e-3)
    assert values["logits/kernel"].std() == pytest.approx(0.01, rel=0.01)
    gammas = {name: value.mean() for name, value in values.items() if name.endswith("gamma")}
    # Only the last one of each block.
    assert {name for name, mean in gammas.items() if mean == 0} == {name for name in gammas if "conv_1_norm" in name}
    assert {*gammas.values()} == {0, 1}
    plain = first_values_of(zero_gamma=False)
    assert {value.mean() for name, value in plain.items() if name.endswith("gamma")} == {1}
    assert all((value == 1).all() for name, value in plain.items() if name.endswith("moving_variance"))


def test_training_updates_the_moving_averages() -> None:
    params = ResNetParams(depth=18, blocks=(1,), num_classes=4, batch_norm_momentum=0.8)
    images = drawn_images(6, 32)
    build = network(images, params, training=True)
    values = random_values(build)
    _, after = run_graph(build, values, updates=True)
    kernel = values["stem/conv/kernel"]
    made = np.asarray(tf.nn.conv2d(images, kernel, 1, "SAME")).reshape(-1, 64).astype(np.float64)
    mean, variance = "stem/conv_norm/moving_mean", "stem/conv_norm/moving_variance"
    np.testing.assert_allclose(after[mean], 0.8 * values[mean] + 0.2 * made.mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(after[variance], 0.8 * values[variance] + 0.2 * made.var(0, ddof=1), rtol=1e-3)


def test_bfloat16_logits_are_close_to_float32() -> None:
    images = drawn_images(2, 32)
    values = first_values_of(zero_gamma=False)
    exact, _ = run_graph(network(images, FEW_BLOCKS), values)
    near, after = run_graph(network(images, dataclasses.replace(FEW_BLOCKS, precision="bfloat16")), values)
    assert near.dtype.name == "float32"
    assert 0 < np.abs(near - exact).max() < 0.1 * np.abs(exact).max()
    assert {value.dtype.name for value in after.values()} == {"float32"}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"depth": 101}, "depth must be one of 18, 34, 50, got 101"),
        ({"blocks": ()}, "blocks must be numbers of 1 or more, or None, got ()"),
        ({"blocks": [2, 0]}, "blocks must be numbers of 1 or more, or None, got (2, 0)"),
        ({"stem": "tiny"}, "stem must be one of auto, large, small"),
        ({"precision": "float16"}, "precision must be one of float32, bfloat16"),
        ({"label_offset": -1}, "label_offset must be 0 or more"),
        ({"label_smoothing": 1}, "label_smoothing must be in [0, 1)"),
        ({"num_classes": 1}, "num_classes must be 2 or more"),
        ({"batch_norm_momentum": 1}, "batch_norm_momentum must be in [0, 1)"),
    ],
)
def test_rejects_wrong_params(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        ResNetParams.from_params(params)
    assert message in str(error.value)


def test_rejects_wrong_images() -> None:
    with pytest.raises(UsageError, match="at least 32x32"):
        resnet(tf.zeros([2, 31, 64, 3]), ResNetParams(), training=False)
    with pytest.raises(UsageError, match=r"Resize or crop them with images="):
        resnet(tf.zeros([2, 3072]), ResNetParams(), training=False)
    with pytest.raises(UsageError, match="got pixels"):
        model_fn({"pixels": tf.zeros([2, 32, 32, 3])}, None, ModeKeys.PREDICT, {})
    with pytest.raises(UsageError, match=r"images must be \[height, width, channels, batch\] with transpose_input"):
        model_fn(tf.zeros([2, 32, 96]), None, ModeKeys.PREDICT, {"transpose_input": True})
