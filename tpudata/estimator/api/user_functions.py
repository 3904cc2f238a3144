"""Types of the functions that a program passes to an estimator."""

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from tpudata.estimator.api.spec import ModelSpec
from tpudata.tensor_types import Tensors

# input_fn: takes some of `params`, `config`, `mode`, `input_context` and `start_step`, by name; returns a dataset of features or of
# (features, labels), or the tensors of a batch.
InputFunction: TypeAlias = Callable[..., tf.data.Dataset | Tensors]
# model_fn: takes `features` and some of `labels`, `mode`, `params` and `config`, by name.
ModelFunction: TypeAlias = Callable[..., ModelSpec]
