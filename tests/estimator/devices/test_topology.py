from pathlib import Path

import pytest
import tensorflow as tf

from tests.estimator.programs import finite_input_fn, make_estimator
from tests.helpers.forked import run
from tpudata.errors import UsageError
from tpudata.estimator.devices.topology import local_topology

MAKE = """
import tensorflow as tf
{before}
from tpudata.estimator import RunConfig, TPUConfig, TPUEstimator
TPUEstimator(lambda features: None, config=RunConfig(TPUConfig(num_replicas=3), model_dir="unused"), use_tpu=False)
print(len(tf.config.list_logical_devices("CPU")))
"""


def test_the_constructor_makes_the_devices_before_tensorflow_starts() -> None:
    assert run("-c", MAKE.format(before="")).stdout.split() == ["3"]
    too_few = "tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], "
    before = too_few + "[tf.config.LogicalDeviceConfiguration()] * 2)"
    assert run("-c", MAKE.format(before=before)).stdout.split() == ["3"]


def test_it_says_what_to_do_where_tensorflow_has_started() -> None:
    error = run("-c", MAKE.format(before="tf.constant(1)")).stderr
    assert "UsageError: TPUConfig(num_replicas=3) needs 3 logical CPU devices" in error
    assert "Make the estimator before the first TensorFlow operation" in error


def test_devices_that_are_there_are_taken() -> None:
    assert local_topology(8).num_replicas == 8
    with pytest.raises(UsageError, match=r"\* 9\)"):
        local_topology(9)
    for one in (None, 1):
        topology = local_topology(one)
        assert (topology.num_replicas, topology.is_sharded) == (1, False)
        assert topology.strategy is tf.distribute.get_strategy()


def test_one_shard_is_one_device(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, tpu_config={"num_replicas": 1})
    estimator.train(finite_input_fn(37))
    assert estimator.get_variable_value("global_step") == 5
