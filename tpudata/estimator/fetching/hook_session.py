"""The session of hooks: values and operations of the scratch graph, computed with the real variables."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.estimator.fetching.fetch_plan import Timing, When
from tpudata.estimator.fetching.fetches import Fetches
from tpudata.estimator.fetching.replay import Replay
from tpudata.estimator.graph.input_graph import input_graph_of
from tpudata.estimator.state.blueprint import Blueprint, VariableInfo, record_variables
from tpudata.estimator.state.host_copies import HostCopies
from tpudata.tensorflow_internals import eager_mode

# Collection of the tensor that TensorFlow's hooks fetch for the global step: its value, after a test that it is initialised.
_GLOBAL_STEP_READ = "global_step_read_op_cache"


@dataclasses.dataclass(frozen=True)
class _Computation:
    """Function that computes values on the host.

    Attributes:
        run: function of the fed values that returns tensors.
        uses: names of the variables that it reads or writes.
        writes: names of those that it writes.
    """

    run: Callable[..., Any]
    uses: frozenset[str]
    writes: frozenset[str]


class HookSession(tf.compat.v1.Session):  # type: ignore[misc]  # TensorFlow is untyped
    """Session that hooks, listeners and scaffolds use like a `tf.compat.v1.Session`.

    The variables of the model are the real ones; an assignment changes them on every device. Variables that hooks make in `begin()`
    live as long as the run, and no checkpoint contains them.

    Args:
        blueprint: blueprint of the scratch graph, before hooks add to it.
        variables: the real variables by name.
        copies: the variables' copies on the host.
        writes: as in Timing.
    """

    # The destructor of the class reads this; there is no real session.
    _session = None

    def __init__(
        self,
        blueprint: Blueprint,
        variables: Mapping[str, Any],
        copies: HostCopies,
        writes: Collection[Any] | None = None,
    ) -> None:
        self.timing = Timing(blueprint, writes)
        self._blueprint = blueprint
        self._graph = blueprint.graph
        self._copies = copies
        self._variables = dict(variables)
        self._functions: dict[Any, _Computation] = {}
        self._reads: dict[str, Any] = {}
        self._has_written = False

    @property
    def graph(self) -> Any:
        """The graph that `begin()` adds operations to."""
        return self._graph

    @property
    def is_on_devices(self) -> bool:
        """Whether jax runs the steps."""
        return self.timing.is_on_devices

    def close(self) -> None:
        """Do nothing: the run ends by itself."""

    def installed(self) -> contextlib.AbstractContextManager[Any]:
        """Make the graph the default one, as hooks expect."""
        found: contextlib.AbstractContextManager[Any] = self._graph.as_default()
        return found

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Let hooks add operations and variables to the graph."""
        found: list[VariableInfo] = []
        with self.installed(), record_variables(found):
            yield
        if not found:
            return
        values = self.evaluate([self._graph.get_tensor_by_name(info.initial) for info in found], [], {})
        with eager_mode():
            for info, value in zip(found, values, strict=True):
                self._variables[info.name] = tf.Variable(value, trainable=False, name=info.name)
        self._blueprint = dataclasses.replace(self._blueprint, variables=(*self._blueprint.variables, *found))
        self._functions.clear()

    def element(self, item: Any) -> Any:
        """Return the tensor or operation of the graph for a fetch; for a variable, its value.

        Raises:
            ValueError, KeyError, TypeError: the graph has no such element.
        """
        if tf.is_symbolic_tensor(item) and item.graph is self._graph and item.dtype != tf.resource:
            return item
        if isinstance(item, tf.Tensor) and not tf.is_symbolic_tensor(item):
            raise ValueError(
                f"{item!r} is a value, not a tensor of the graph. Make it in begin(), or fetch it by its name."
            )
        with self.installed():
            element = self._graph.as_graph_element(getattr(item, "value", item) if _is_keras(item) else item)
            if not isinstance(element, tf.Tensor) or element.op.type != "VarHandleOp":
                return element
            if element.name not in self._reads:
                dtype = element.op.get_attr("dtype")
                with tf.control_dependencies(None):
                    self._reads[element.name] = tf.raw_ops.ReadVariableOp(resource=element, dtype=dtype)
            return self._reads[element.name]

    def fed(self, key: Any, value: Any) -> tuple[str, Any]:
        """Return the name of the fed tensor, and its value (NumPy).

        Raises:
            ValueError, KeyError, TypeError: the graph has no such tensor, or the value does not fit it.
        """
        tensor = self.element(key)
        try:
            array = np.asarray(value, tensor.dtype.as_numpy_dtype)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{tensor.name!r} ({tensor.dtype.name}) cannot be fed {value!r}: {error}.") from None
        if not tensor.shape.is_compatible_with(array.shape):
            raise ValueError(
                f"{tensor.name!r} has the shape {tensor.shape} and cannot be fed values of shape {array.shape}. Feed others."
            )
        return tensor.name, array

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Compute `fetches` now, on the host.

        Args:
            fetches: a tensor, an operation, a variable, a name, or a nested structure of them.
            feed_dict: values by tensor.
            options: None, as no session runs here.
            run_metadata: None.

        Returns:
            NumPy values in the structure of `fetches`; None for an operation.

        Raises:
            ValueError: something depends on the batch, or there are options.
        """
        if run_metadata is not None:
            raise ValueError("session.run(run_metadata=...) is not supported, as no session runs. Omit it.")
        reject_options(options)
        inputs = input_graph_of(fetches)
        if inputs is not None:  # Such as the initializer of an input_fn's iterator.
            return inputs.session().run(fetches, feed_dict)
        parts = Fetches(self.element, fetches)
        feeds = dict(self.fed(key, value) for key, value in (feed_dict or {}).items())
        tensors = [item for item in parts.elements if isinstance(item, tf.Tensor)]
        operations = [item for item in parts.elements if not isinstance(item, tf.Tensor)]
        values = self.evaluate(tensors, operations, feeds)
        return parts.pack(dict(zip([tensor.name for tensor in tensors], values, strict=True)))

    def evaluate(
        self, tensors: Sequence[Any], operations: Sequence[Any], feeds: Mapping[str, Any], when: When | None = None
    ) -> list[Any]:
        """Compute tensors and run operations of the graph on the host.

        Args:
            tensors: tensors to compute.
            operations: operations to run.
            feeds: values by name of a tensor.
            when: the time to which the computation is limited, so that no operation of the step runs again; None for no limit.

        Returns:
            The NumPy values of `tensors`.

        Raises:
            ValueError: something depends on the batch.
        """
        if not tensors and not operations:
            return []
        key = tuple(item.name for item in [*tensors, *operations]), tuple(feeds), when
        if key not in self._functions:
            reads = None if operations or feeds else self._plain_reads(tensors)
            self._functions[key] = reads or self._function(tensors, operations, list(feeds), when)
        computation = self._functions[key]
        with eager_mode():
            self._copies.to_host(computation.uses)
            self._has_written |= bool(computation.writes)
            try:
                return [item.numpy() for item in computation.run(*feeds.values())]
            finally:  # An error may follow an assignment.
                self._copies.changed_on_host(computation.writes)

    def takes_writes(self) -> bool:
        """Return whether variables were assigned to since the last call."""
        has_written, self._has_written = self._has_written, False
        return has_written

    def _plain_reads(self, tensors: Sequence[Any]) -> _Computation | None:
        """Return a fast function for `tensors` that are plain values of variables, such as the step; None if one is not."""
        handles = {info.handle: info.name for info in self._blueprint.variables}
        steps = {item.name for item in self._graph.get_collection(_GLOBAL_STEP_READ)}
        found = {}
        for tensor in tensors:
            operation = tensor.op
            is_read = operation.type == "ReadVariableOp" and not operation.control_inputs
            name = "global_step" if tensor.name in steps else handles.get(operation.inputs[0].name) if is_read else None
            if name is None:
                return None
            found[tensor.name] = name
        variables = [self._variables[found[tensor.name]] for tensor in tensors]
        read = tf.raw_ops.ReadVariableOp  # Faster than read_value, whose overhead would dominate here.
        reads = lambda: [read(resource=variable.handle, dtype=variable.dtype) for variable in variables]  # noqa: E731
        return _Computation(reads, frozenset(found.values()), frozenset())

    def _function(
        self, tensors: Sequence[Any], operations: Sequence[Any], fed: Sequence[str], when: When | None
    ) -> _Computation:
        cuts = [self._graph.get_tensor_by_name(name) for name in fed]
        waits_for = None if when is None else lambda operation: self.timing.of(operation) is not When.STEP
        replay = Replay(self._blueprint, list(tensors), operations, cuts, waits_for)
        self._require_no_batch(replay, {*fed})

        def compute(*values: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            return replay((), lambda name: graph.capture(self._variables[name].handle), values)

        # Several replicas have more rows than the one that was traced.
        shapes = [[None, *cut.shape[1:]] if cut.shape.rank else cut.shape for cut in cuts]
        signature = [tf.TensorSpec(shape, cut.dtype) for shape, cut in zip(shapes, cuts, strict=True)]
        with eager_mode():
            concrete = tf.function(compute, input_signature=signature, autograph=False).get_concrete_function()

        def run(*values: Any) -> Any:
            # Hooks fetch at every step, so the lookup of a trace would cost too much.
            return concrete(*map(tf.convert_to_tensor, values, [cut.dtype for cut in cuts]))

        return _Computation(run, replay.reads, replay.writes)

    def _require_no_batch(self, replay: Replay, fed: set[str]) -> None:
        inputs = {item.name for item in tf.nest.flatten(self._blueprint.arguments) if item is not None}
        for operation in replay.operations:
            for tensor in [*operation.inputs, *operation.outputs]:
                if tensor.name in inputs and tensor.name not in fed:
                    raise ModelFnValueError(
                        f"session.run: {operation.name!r} depends on the batch, which does not exist between two steps. Fetch it "
                        "with the step: return SessionRunArgs(tensor) from before_run, and read its value from after_run's "
                        "run_values.results."
                    )


def reject_options(options: Any) -> None:
    """Check that there are no RunOptions.

    Raises:
        ValueError: there are RunOptions.
    """
    if options is not None and options.ListFields():
        raise ValueError(
            "RunOptions are not supported, as no session runs the steps. Omit them; to trace steps, let a hook call "
            "tf.profiler.experimental.start and stop."
        )


def _is_keras(item: Any) -> bool:
    return not isinstance(item, tf.Variable | tf.Tensor | tf.Operation | str | bytes) and hasattr(item, "value")
