"""Isolation of Keras' process-wide state while a model_fn is called.

A model_fn is called again for every trace and must make the same variables each time. Keras 3 prevents that in two ways. It numbers
layers without a name for the whole process ("dense", "dense_1", ...), so that a second call gives them different names; and its
initializers draw their seeds from Python's `random`, which does not depend on the run's seed. (tf_keras numbers layers per graph,
and each trace has a new graph; its initializers draw in the same way, or from a separate generator after
`tf_keras.utils.set_random_seed`.)
"""

import contextlib
import random
import sys
from collections.abc import Iterator, Mapping

import tensorflow as tf

_MODULE = "keras.src.backend.common.global_state"
# The numbers of layer names, and the generator for random operations without a seed, a variable that must not outlive its graph.
_ATTRIBUTES = ("object_name_uids", "global_seed_generator")
_TF_KERAS_MODULE = "tf_keras.src.backend"
_SEED_NAME = "seed_generator_state"


def has_seed_name(name: str) -> bool:
    """Return whether a variable is named like a Keras 3 seed generator's state."""
    return name.rpartition("/")[2].startswith(_SEED_NAME)


def is_keras_seed(name: str, dtype: tf.DType) -> bool:
    """Return whether a variable with this name and dtype is a Keras 3 seed generator's state."""
    return has_seed_name(name) and bool(dtype.is_integer)


@contextlib.contextmanager
def fresh_keras_state(seed: int | None) -> Iterator[None]:
    """Reset the numbers in Keras' automatic names and its random draws inside the context, and restore both afterwards.

    The numbers are not reset if Keras is not imported, or if its version stores them elsewhere.

    Args:
        seed: seed of Python's `random` and of tf_keras' generator inside the context; None leaves both unchanged.
    """
    keras_state = {name: _get_attribute(name) for name in _ATTRIBUTES}
    _set_attributes(dict.fromkeys(_ATTRIBUTES))  # Keras makes new state for an attribute that is None.
    python_state = random.getstate()
    # tf_keras draws seeds from this holder's generator, which is missing before `set_random_seed`.
    tf_keras_seeds = getattr(sys.modules.get(_TF_KERAS_MODULE), "_SEED_GENERATOR", None)
    generator = getattr(tf_keras_seeds, "generator", None)
    if seed is not None:
        random.seed(seed)
        if tf_keras_seeds is not None and generator is not None:
            tf_keras_seeds.generator = random.Random(seed)
    try:
        yield
    finally:
        # If model_fn was the first to import Keras, the attributes were None.
        _set_attributes(keras_state)
        if seed is not None:
            random.setstate(python_state)
            if tf_keras_seeds is not None and generator is not None:
                tf_keras_seeds.generator = generator


def _get_attribute(name: str) -> object:
    """Return an attribute of Keras 3's global state; None if it is unset, or Keras is not imported, or stores it elsewhere."""
    get_global_attribute = getattr(sys.modules.get(_MODULE), "get_global_attribute", None)
    return None if get_global_attribute is None else get_global_attribute(name)


def _set_attributes(attributes: Mapping[str, object]) -> None:
    """Set attributes of Keras 3's global state by name; do nothing if Keras is not imported, or stores it elsewhere."""
    set_global_attribute = getattr(sys.modules.get(_MODULE), "set_global_attribute", None)
    if set_global_attribute is not None:
        for name, state in attributes.items():
            set_global_attribute(name, state)
