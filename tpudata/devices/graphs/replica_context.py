"""The context in which model_fn is traced once, as the code of one of several replicas.

`tf.distribute.get_replica_context()` is then a context of a small strategy, which reduces values over the replicas by operations in
the graph. It makes no variables and starts nothing: the traced step is compiled for all replicas later.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.collectives import gather_replicas, sum_replicas
from tpudata.devices.graphs.reduced_variables import find_reduction, make_variable
from tpudata.devices.graphs.traced_code import traced_code
from tpudata.tensor_types import Tensors
from tpudata.tensorflow_internals import MERGING_MODULES, tpu_shard_context

_ReduceOp = tf.distribute.ReduceOp


@contextlib.contextmanager
def replica_context(num_replicas: int, replica: tf.Tensor, *, reduces_assignments: bool = True) -> Iterator[None]:
    """Trace the code inside the context as the code of one of several replicas; do nothing for one replica.

    Args:
        num_replicas: number of replicas.
        replica: int32 scalar of the traced graph, the index of the replica that runs.
        reduces_assignments: whether assignments to variables made inside are reduced over replicas by their aggregation.
    """
    if num_replicas == 1:
        yield
        return
    context = _ReplicaContext(_ReplicaStrategy(num_replicas, replica), replica)
    creator_scope = tf.variable_creator_scope(make_variable) if reduces_assignments else contextlib.nullcontext()
    with context, tpu_shard_context(num_replicas), creator_scope:
        yield


@contextlib.contextmanager
def hide_replicas() -> Iterator[None]:
    """Hide the replicas from code inside the context, so that it does not reduce values that are equal on all replicas."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, _ReplicaStrategy):
        yield
        return
    with tf.distribute.ReplicaContext(strategy.outer_strategy, 0):
        yield


def count_replicas() -> int:
    """Return the number of replicas of the code that is traced; 1 outside of `replica_context`."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


class _ReplicaContext(tf.distribute.ReplicaContext):  # type: ignore[misc]  # TensorFlow is untyped
    """The context of one replica, in its own graph."""

    def all_reduce(self, reduce_op: tf.distribute.ReduceOp | str, value: Tensors, options: object = None) -> Tensors:
        """Return a nested structure of sums or means over the replicas."""
        del options  # The compiler chooses how.
        return tf.nest.map_structure(lambda tensor: _reduce(reduce_op, tensor, self.num_replicas_in_sync), value)

    def all_gather(self, value: Tensors, axis: int, options: object = None) -> Tensors:
        """Return a nested structure of tensors of all replicas, concatenated along an axis."""
        del options
        replica, num_replicas = self.replica_id_in_sync_group, self.num_replicas_in_sync
        return tf.nest.map_structure(lambda tensor: gather_replicas(tensor, axis, replica, num_replicas), value)

    def merge_call(
        self,
        merge_fn: Callable[..., Tensors],
        args: Sequence[Tensors] = (),
        kwargs: Mapping[str, Tensors] | None = None,
    ) -> Tensors:
        """Call `merge_fn` with a strategy and this replica's arguments, outside of the replica's context.

        Functions of MERGING_MODULES get the outer strategy, under which they reduce nothing. If their first argument is a variable
        whose assignments are reduced, they get the strategy of the replicas, as all other functions do.
        """
        # A moving average passes its variable first. Other modules may pass anything, so their arguments are not tested.
        if getattr(merge_fn, "__module__", None) in MERGING_MODULES and not (args and find_reduction(args[0])):
            # TensorFlow's TPUEstimator had no strategy, without which these modules reduce nothing.
            with hide_replicas():
                return tf.distribute.get_replica_context().merge_call(merge_fn, args, kwargs)
        return super().merge_call(merge_fn, args, kwargs)


def _forbid(method: str) -> Callable[..., NoReturn]:
    """Return a method of a strategy that only raises an error."""

    def reject(self: tf.distribute.Strategy, *args: object, **kwargs: object) -> NoReturn:
        """Raise the error for a call of the method by the code of one replica."""
        del args, kwargs
        raise ModelFnValueError(
            f"{traced_code()}: code of one replica cannot start others (got tf.distribute.get_strategy().{method}() in one of "
            f"{self.num_replicas_in_sync} replicas, expected plain calls). Remove it: the code runs on each replica."
        )

    return reject


class _ReplicaStrategy(tf.distribute.Strategy):  # type: ignore[misc]  # TensorFlow is untyped
    """Strategy that code of a replica gets from `tf.distribute.get_strategy()`.

    Attributes:
        outer_strategy: strategy outside of the replicas.

    Args:
        num_replicas: number of replicas.
        replica: int32 scalar, the index of the replica that runs.
    """

    def __init__(self, num_replicas: int, replica: tf.Tensor) -> None:
        self.outer_strategy = tf.distribute.get_strategy()
        super().__init__(_ReplicaExtended(self, num_replicas, replica))

    def scope(self) -> contextlib.AbstractContextManager[tf.distribute.Strategy]:
        """Return a context without effect for an optimizer that is called in `hide_replicas`; reject other calls."""
        if tf.distribute.get_strategy() is self:
            _forbid("scope")(self)
        return contextlib.nullcontext(self)

    run = _forbid("run")
    experimental_distribute_dataset = _forbid("experimental_distribute_dataset")
    distribute_datasets_from_function = _forbid("distribute_datasets_from_function")
    experimental_distribute_values_from_function = _forbid("experimental_distribute_values_from_function")


class _ReplicaExtended(tf.compat.v1.distribute.StrategyExtended):  # type: ignore[misc]  # TensorFlow is untyped
    """Interface of a strategy for optimizers, metrics and layers: each replica has all variables and makes the same updates."""

    _retrace_functions_for_each_device = False

    def __init__(self, strategy: _ReplicaStrategy, num_replicas: int, replica: tf.Tensor) -> None:
        super().__init__(strategy)
        self._num_replicas = num_replicas
        self._replica = replica

    def reduce_to(
        self, reduce_op: tf.distribute.ReduceOp | str, value: tf.Tensor, destinations: object, options: object = None
    ) -> tf.Tensor:
        """Return the sum or mean over the replicas; each replica gets the result, whatever the destinations."""
        del destinations, options
        return _reduce(reduce_op, value, self._num_replicas)

    def batch_reduce_to(
        self,
        reduce_op: tf.distribute.ReduceOp | str,
        value_destination_pairs: Iterable[tuple[tf.Tensor, object]],
        options: object = None,
    ) -> list[tf.Tensor]:
        """Reduce several values as `reduce_to` does, and return them in order."""
        del options
        return [_reduce(reduce_op, value, self._num_replicas) for value, _ in value_destination_pairs]

    def update(
        self,
        var: tf.Variable,
        fn: Callable[..., Tensors],
        args: Sequence[Tensors] = (),
        kwargs: Mapping[str, Tensors] | None = None,
        group: bool = True,
    ) -> Tensors:
        """Update a variable with `fn`; each replica updates its own copy in the same way."""
        return _group_results(fn(var, *args, **(kwargs or {})), group)

    def update_non_slot(
        self,
        colocate_with: object,
        fn: Callable[..., Tensors],
        args: Sequence[Tensors] = (),
        kwargs: Mapping[str, Tensors] | None = None,
        group: bool = True,
    ) -> Tensors:
        """Update state that belongs to no variable with `fn`; each replica updates its own copy in the same way."""
        del colocate_with
        return _group_results(fn(*args, **(kwargs or {})), group)

    def call_for_each_replica(
        self, fn: Callable[..., Tensors], args: Sequence[Tensors] = (), kwargs: Mapping[str, Tensors] | None = None
    ) -> Tensors:
        """Call `fn` once, in the context of this replica; the traced code later runs on every replica."""
        with _ReplicaContext(self._container_strategy(), self._replica):
            return fn(*args, **(kwargs or {}))

    def colocate_vars_with(self, colocate_with_variable: object) -> contextlib.AbstractContextManager[None]:
        del colocate_with_variable
        return contextlib.nullcontext()

    def variable_created_in_scope(self, v: object) -> bool:  # noqa: ARG002
        return True

    def read_var(self, v: tf.Variable) -> tf.Tensor:
        return tf.identity(v)

    def value_container(self, value: Tensors) -> Tensors:
        return value

    def non_slot_devices(self, var_list: Sequence[tf.Variable]) -> tf.Variable:
        # As in TensorFlow's default strategy: optimizers colocate state that belongs to no variable with this one.
        return min(var_list, key=lambda variable: variable.name)

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return ("",) * self._num_replicas

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return self.worker_devices

    experimental_between_graph = False
    experimental_should_init = True
    should_checkpoint = True
    should_save_summary = True

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._num_replicas

    def _use_merge_call(self) -> bool:
        return False  # Compiled strategies do not use merge calls either.

    def _in_multi_worker_mode(self) -> bool:
        return False

    def _local_results(self, value: Tensors) -> tuple[Tensors, ...]:
        return (value,)

    def _get_local_replica_id(self, replica_id_in_sync_group: tf.Tensor) -> tf.Tensor:
        return replica_id_in_sync_group

    def _broadcast_to(self, tensor: tf.Tensor, destinations: object) -> tf.Tensor:
        del destinations
        return tensor

    def _gather_to_implementation(
        self, value: tf.Tensor, destinations: object, axis: int, options: object
    ) -> tf.Tensor:
        """Return the tensors of all replicas, concatenated along an axis, to each replica, whatever the destinations."""
        del destinations, options
        return gather_replicas(value, axis, self._replica, self._num_replicas)


def _reduce(
    reduce_op: tf.distribute.ReduceOp | str, value: tf.Tensor | tf.IndexedSlices, num_replicas: int
) -> tf.Tensor:
    """Return the sum or mean of a tensor over all replicas; means of integers are rounded down."""
    name = reduce_op.upper() if isinstance(reduce_op, str) else reduce_op.name
    total = sum_replicas(value, num_replicas)
    if name == _ReduceOp.SUM.name:
        return total
    return total // num_replicas if total.dtype.is_integer else total / num_replicas


def _group_results(results: Tensors, group: bool) -> Tensors:
    """Return the results of an update: unchanged if `group` is set, else each in a tuple, as one replica's result."""
    return results if group else tf.nest.map_structure(lambda tensor: (tensor,), results)
