"""The session of hooks: values and operations of the scratch graph, computed with the real variables."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.estimator.fetching.fetch_plan import Timing, When
from tpudata.estimator.fetching.fetches import Fetch, Fetches
from tpudata.estimator.fetching.replay import Replay, make_handle_getter
from tpudata.estimator.graph.input_graph import find_input_graph
from tpudata.estimator.state.blueprint import Blueprint, VariableInfo, record_variables
from tpudata.estimator.state.host_copies import HostCopies
from tpudata.tensor_types import Array, Arrays, GraphElement, Tensors
from tpudata.tensorflow_internals import eager_mode

# Collection of the tensor that TensorFlow's hooks fetch for the global step: its value, after a test that it is initialized.
_GLOBAL_STEP_READ = "global_step_read_op_cache"


@dataclasses.dataclass(frozen=True)
class _Computation:
    """Function that computes values on the host.

    Attributes:
        run: function of the fed values that returns tensors.
        uses: names of the variables that it reads or writes.
        writes: names of the variables that it writes.
    """

    run: Callable[..., Sequence[tf.Tensor]]
    uses: frozenset[str]
    writes: frozenset[str]


class HookSession(tf.compat.v1.Session):  # type: ignore[misc]  # TensorFlow is untyped
    """Session that hooks, listeners and scaffolds use like a `tf.compat.v1.Session`.

    The variables of the model are the real ones; an assignment changes them on every device. Variables that hooks make in `begin()`
    live as long as the run, and no checkpoint contains them.

    Attributes:
        timing: times at which operations of the scratch graph are computed.

    Args:
        blueprint: blueprint of the scratch graph, before hooks add to it.
        variables: the real variables by name.
        copies: the variables' copies on the host.
        host_writes: operations of model_fn that write summaries, if steps run on devices: the host runs them; None if steps run in
            plain TensorFlow, and write summaries themselves.
    """

    # The destructor of the base class reads this; there is no real session.
    _session = None

    def __init__(
        self,
        blueprint: Blueprint,
        variables: Mapping[str, tf.Variable],
        copies: HostCopies,
        host_writes: Collection[tf.Operation] | None = None,
    ) -> None:
        self.timing = Timing(blueprint, host_writes)
        self._blueprint = blueprint
        self._graph = blueprint.graph
        self._copies = copies
        self._variables = dict(variables)
        # Computations by (names of the computed tensors and operations, names of the fed tensors, `when` of `evaluate`).
        self._computations: dict[tuple[tuple[str, ...], tuple[str, ...], When | None], _Computation] = {}
        # Tensors that read variables, by name of the variable's handle.
        self._reads: dict[str, tf.Tensor] = {}
        # Whether operations that assign to variables have run since the last call of `pop_has_written`.
        self._has_written = False

    @property
    def graph(self) -> tf.Graph:
        """The graph that `begin()` adds operations to."""
        return self._graph

    @property
    def is_on_devices(self) -> bool:
        """Whether jax runs the steps."""
        return self.timing.is_on_devices

    def close(self) -> None:
        """Do nothing, as there is no session to close."""

    def as_default_graph(self) -> contextlib.AbstractContextManager[tf.Graph]:
        """Make the graph the default one inside the context, as hooks expect."""
        context: contextlib.AbstractContextManager[tf.Graph] = self._graph.as_default()
        return context

    @contextlib.contextmanager
    def record_additions(self) -> Iterator[None]:
        """Let hooks add operations and variables to the graph inside the context; at its end, make the real variables for them."""
        new_variables: list[VariableInfo] = []
        with self.as_default_graph(), record_variables(new_variables):
            yield
        if not new_variables:
            return
        initial_values = [self._blueprint.get_initial_value(info) for info in new_variables]
        values = self.evaluate(initial_values, operations=[], feeds={})
        with eager_mode():
            for info, value in zip(new_variables, values, strict=True):
                self._variables[info.name] = tf.Variable(value, trainable=False, name=info.name)
        self._blueprint = dataclasses.replace(self._blueprint, variables=(*self._blueprint.variables, *new_variables))
        self._computations.clear()  # They were built without the new variables.

    def find_element(self, fetch: Fetch) -> GraphElement:
        """Return the graph's tensor or operation for a fetch; for a variable, the tensor of its value.

        Raises:
            ValueError, KeyError, TypeError: the graph lacks the element.
        """
        if tf.is_symbolic_tensor(fetch) and fetch.graph is self._graph and fetch.dtype != tf.resource:
            return fetch  # The usual case. A resource may be a variable's handle, see below.
        if isinstance(fetch, tf.Tensor) and not tf.is_symbolic_tensor(fetch):
            raise ValueError(
                f"{fetch!r} is a value, not a tensor of the graph. Make it in begin(), or fetch it by its name."
            )
        with self.as_default_graph():
            element = self._graph.as_graph_element(fetch.value if _is_keras_variable(fetch) else fetch)
            if not isinstance(element, tf.Tensor) or element.op.type != "VarHandleOp":
                return element
            if element.name not in self._reads:
                dtype = element.op.get_attr("dtype")
                with tf.control_dependencies(None):  # The dependencies of a hook's context would make the read wait.
                    self._reads[element.name] = tf.raw_ops.ReadVariableOp(resource=element, dtype=dtype)
            return self._reads[element.name]

    def find_fed_tensor(self, key: Fetch) -> tf.Tensor:
        """Return the graph's tensor for a key of a feed_dict.

        Raises:
            ValueError, KeyError, TypeError: the graph lacks the tensor.
        """
        element = self.find_element(key)
        if not isinstance(element, tf.Tensor):
            raise TypeError(
                f"feed_dict: {element.name!r} is an operation (expected a tensor). Feed one of its outputs."
            )
        return element

    def convert_feed(self, key: Fetch, value: Array) -> tuple[str, npt.NDArray[np.generic]]:
        """Return the name of a fed tensor, and the value to feed as a NumPy array.

        Raises:
            ValueError, KeyError, TypeError: the graph lacks the tensor, or the value does not fit it.
        """
        tensor = self.find_fed_tensor(key)
        try:
            array = np.asarray(value, tensor.dtype.as_numpy_dtype)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{tensor.name!r} ({tensor.dtype.name}) cannot be fed {value!r}: {error}.") from None
        if not tensor.shape.is_compatible_with(array.shape):
            raise ValueError(
                f"{tensor.name!r} has the shape {tensor.shape} and cannot be fed values of shape {array.shape}. Feed others."
            )
        return tensor.name, array

    def run(
        self,
        fetches: object,
        feed_dict: Mapping[object, Array] | None = None,
        options: tf.compat.v1.RunOptions | None = None,
        run_metadata: tf.compat.v1.RunMetadata | None = None,
    ) -> Arrays:
        """Compute `fetches` now, on the host.

        Args:
            fetches: a tensor, an operation, a variable, a name, or a nested structure of them.
            feed_dict: values by tensor, or by its name.
            options: None, since no session runs here.
            run_metadata: None, since no session runs here.

        Returns:
            NumPy values in the structure of `fetches`; None for an operation.

        Raises:
            ValueError: a fetch depends on the batch, or there are options or run_metadata. For fetches and feeds, also the errors
                of `find_element` and `convert_feed`.
        """
        if run_metadata is not None:
            raise ValueError("session.run(run_metadata=...) is not supported, as no session runs. Omit it.")
        reject_options(options)
        input_graph = find_input_graph(fetches)
        if input_graph is not None:  # Such as for the initializer of an input_fn's iterator.
            return input_graph.open_session().run(fetches, feed_dict)
        flat_fetches = Fetches(self.find_element, fetches)
        feeds = dict(self.convert_feed(key, value) for key, value in (feed_dict or {}).items())
        tensors = [element for element in flat_fetches.elements if isinstance(element, tf.Tensor)]
        operations = [element for element in flat_fetches.elements if not isinstance(element, tf.Tensor)]
        values = self.evaluate(tensors, operations, feeds)
        return flat_fetches.pack(dict(zip([tensor.name for tensor in tensors], values, strict=True)))

    def evaluate(
        self,
        tensors: Sequence[tf.Tensor],
        operations: Sequence[tf.Operation],
        feeds: Mapping[str, Array],
        when: When | None = None,
    ) -> list[Array]:
        """Compute tensors and run operations of the graph on the host.

        Args:
            tensors: tensors to compute.
            operations: operations to run.
            feeds: values by name of the tensor; these tensors are not computed.
            when: BEFORE or AFTER the step, so that the computation does not run operations of the step again; None if it may run
                them.

        Returns:
            The NumPy values of `tensors`.

        Raises:
            ValueError: a tensor or operation depends on the batch.
        """
        if not tensors and not operations:
            return []
        # Compiled computations are kept, since hooks usually fetch the same tensors at each step.
        key = tuple(element.name for element in [*tensors, *operations]), tuple(feeds), when
        if key not in self._computations:
            reads = None if operations or feeds else self._make_plain_reads(tensors)
            self._computations[key] = reads or self._make_computation(tensors, operations, list(feeds), when)
        computation = self._computations[key]
        with eager_mode():
            self._copies.copy_to_host(computation.uses)
            self._has_written |= bool(computation.writes)
            try:
                return [tensor.numpy() for tensor in computation.run(*feeds.values())]
            finally:  # An error may follow an assignment.
                self._copies.mark_changed_on_host(computation.writes)

    def pop_has_written(self) -> bool:
        """Return whether this session has run operations that assign to variables since the last call of this method."""
        has_written, self._has_written = self._has_written, False
        return has_written

    def _make_plain_reads(self, tensors: Sequence[tf.Tensor]) -> _Computation | None:
        """Return a fast computation if all `tensors` are plain reads of variables, such as of the global step; otherwise None."""
        # Names of variables by the names of their handles.
        names_by_handle = {info.handle_name: info.name for info in self._blueprint.variables}
        step_reads = {tensor.name for tensor in self._graph.get_collection(_GLOBAL_STEP_READ)}
        names = []
        for tensor in tensors:
            if tensor.name in step_reads:
                names.append("global_step")
            elif (
                tensor.op.type == "ReadVariableOp"
                and not tensor.op.control_inputs
                and tensor.op.inputs[0].name in names_by_handle
            ):
                names.append(names_by_handle[tensor.op.inputs[0].name])
            else:
                return None
        variables = [self._variables[name] for name in names]

        def read_variables() -> list[tf.Tensor]:
            # Faster than read_value, whose overhead would dominate here.
            read = tf.raw_ops.ReadVariableOp
            return [read(resource=variable.handle, dtype=variable.dtype) for variable in variables]

        return _Computation(read_variables, uses=frozenset(names), writes=frozenset())

    def _make_computation(
        self,
        tensors: Sequence[tf.Tensor],
        operations: Sequence[tf.Operation],
        fed_names: Sequence[str],
        when: When | None,
    ) -> _Computation:
        """Return the compiled computation of tensors and operations.

        Args:
            tensors: tensors to compute.
            operations: operations to run.
            fed_names: names of the tensors whose values the computation takes.
            when: BEFORE or AFTER the step, so that the computation does not run operations of the step again; None if it may run
                them.

        Raises:
            ModelFnValueError: a tensor or operation depends on the batch.
        """
        # Tensors whose values are passed instead of computed.
        passed_tensors = [self._graph.get_tensor_by_name(name) for name in fed_names]

        def runs_outside_step(operation: tf.Operation) -> bool:
            return self.timing.find_time(operation) is not When.STEP

        # Before or after a step, do not wait for operations that the step itself runs.
        waits_for = None if when is None else runs_outside_step
        replay = Replay(self._blueprint, list(tensors), operations, passed_tensors, waits_for)
        self._check_independent_of_batch(replay, {*fed_names})

        def compute(*values: tf.Tensor) -> Tensors:
            return replay((), make_handle_getter(self._variables), values)

        # Values of several replicas have more rows than the traced replica's.
        shapes = [[None, *tensor.shape[1:]] if tensor.shape.rank else tensor.shape for tensor in passed_tensors]
        signature = [tf.TensorSpec(shape, tensor.dtype) for shape, tensor in zip(shapes, passed_tensors, strict=True)]
        with eager_mode():
            concrete = tf.function(compute, input_signature=signature, autograph=False).get_concrete_function()

        def run(*values: Array) -> Tensors:
            # Hooks fetch at every step, so a tf.function's lookup of its trace would cost too much.
            return concrete(*map(tf.convert_to_tensor, values, [tensor.dtype for tensor in passed_tensors]))

        return _Computation(run, uses=replay.uses, writes=replay.writes)

    def _check_independent_of_batch(self, replay: Replay, fed_names: set[str]) -> None:
        """Raise ModelFnValueError if the replay needs a tensor of the batch that is not fed."""
        batch_names = {placeholder.name for placeholder in self._blueprint.placeholders}
        for operation in replay.operations:
            for tensor in [*operation.inputs, *operation.outputs]:
                if tensor.name in batch_names and tensor.name not in fed_names:
                    raise ModelFnValueError(
                        f"session.run: {operation.name!r} depends on the batch, which does not exist between two steps. Fetch it "
                        "with the step: return SessionRunArgs(tensor) from before_run, and read its value from after_run's "
                        "run_values.results."
                    )


def reject_options(options: tf.compat.v1.RunOptions | None) -> None:
    """Raise ValueError if RunOptions are set, which only a session could apply."""
    if options is not None and options.ListFields():
        raise ValueError(
            "RunOptions are not supported, as no session runs the steps. Omit them; to trace steps, let a hook call "
            "tf.profiler.experimental.start and stop."
        )


def _is_keras_variable(fetch: object) -> bool:
    """Return whether a fetch is a Keras 3 variable, whose `value` is the `tf.Variable`."""
    return not isinstance(fetch, tf.Variable | tf.Tensor | tf.Operation | str | bytes) and hasattr(fetch, "value")
