"""Calls of SessionRunHooks, in the order of a MonitoredSession."""

from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tpudata.estimator.api.hook_lists import SessionRunHook
from tpudata.estimator.api.spec import EstimatorSpec, ModelSpec
from tpudata.estimator.fetching.fetch_plan import FetchPlan, When, plan_fetches
from tpudata.estimator.fetching.fetches import Fetches
from tpudata.estimator.fetching.hook_session import HookSession, reject_options
from tpudata.estimator.hooks.profiler import ProfilerHook
from tpudata.tensor_types import Array, GraphElement, Tensors

_train = tf.compat.v1.train
# Errors with which a hook ends a run, as in a MonitoredSession, for example because its generator of feeds has ended.
_END_ERRORS = (StopIteration, tf.errors.OutOfRangeError)


class Request:
    """Fetches from one step, in addition to its loss.

    Args:
        session: session of the run.
        plan: plan of the fetched tensors and operations.
        feeds: values that hooks provide, by name of the tensor.
    """

    def __init__(self, session: HookSession, plan: FetchPlan, feeds: Mapping[str, Array]) -> None:
        self._session = session
        self._feeds = dict(feeds)
        self._plan = plan
        # Values that `begin` computes before the step, by name of the tensor.
        self._before: dict[str, Array] = {}

    @property
    def step_fetches(self) -> tuple[GraphElement, ...]:
        """Tensors of the scratch graph that the step must return, and operations that it must run."""
        return (*self._plan.step, *self._plan.step_operations)

    @property
    def needs_values_before(self) -> bool:
        """Whether values are computed, or operations run, before the step."""
        return bool(self._plan.before or self._plan.before_operations)

    def begin(self) -> None:
        """Compute the fetches that need no value of the step, such as values of variables, before the step changes them."""
        plan = self._plan
        values = self._session.evaluate(plan.before, plan.before_operations, self._feeds, When.BEFORE)
        self._before = dict(zip([tensor.name for tensor in plan.before], values, strict=True))

    def finish(self, step_values: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the fetches that the host derives from the step's values.

        Args:
            step_values: the step's values by name of the tensor.

        Returns:
            The values of all fetched tensors, and the feeds, by name of the tensor.
        """
        plan = self._plan
        values = {**self._feeds, **self._before, **{tensor.name: step_values[tensor.name] for tensor in plan.step}}
        after_names = [tensor.name for tensor in plan.after]
        # The computation takes these values instead of computing them again.
        after_values = self._session.evaluate(plan.after, plan.after_operations, values, When.AFTER)
        return {**values, **dict(zip(after_names, after_values, strict=True))}


def get_tensor_names(elements: Iterable[GraphElement]) -> set[str]:
    """Return the names of the tensors among tensors and operations."""
    return {element.name for element in elements if isinstance(element, tf.Tensor)}


class Monitor:
    """The hooks of one run.

    Attributes:
        hooks: the hooks, in order, with a ProfilerHook of this package in place of each of TensorFlow's.
        should_stop: whether a hook has ended the run.
        model_feeds: values that hooks feed to the next step, by name of model_fn's placeholder.

    Args:
        session: session for the hooks.
        hooks: the hooks, in order.
        loop_fetches: what the run fetches without hooks, for `run_context.original_args`.
        feeds_model: whether the step takes values for model_fn's placeholders with a default.
    """

    def __init__(
        self, session: HookSession, hooks: Sequence[SessionRunHook], loop_fetches: Tensors, *, feeds_model: bool = False
    ) -> None:
        self.hooks = tuple(
            ProfilerHook.from_original(hook) if isinstance(hook, _train.ProfilerHook) else hook for hook in hooks
        )
        for hook in self.hooks:
            if isinstance(hook, ProfilerHook):
                hook.on_devices = session.is_on_devices
        self.should_stop = False
        self.model_feeds: dict[str, Array] = {}
        self._feeds_model = feeds_model
        self._session = session
        # What a step computes without hooks; hooks read it as `run_context.original_args`.
        self._original_args = _train.SessionRunArgs(loop_fetches)
        self._context = _train.SessionRunContext(self._original_args, session)
        # Fetches of this step, by index of the hook.
        self._hook_fetches: dict[int, Fetches] = {}
        # Fetches of single tensors, by the tensor's id; the tensor is kept so that no other tensor gets its id.
        self._tensor_fetches: dict[int, tuple[tf.Tensor, Fetches]] = {}
        # Plans, by the names of the fetched elements and of the fed tensors.
        self._plans: dict[tuple[tuple[str, ...], frozenset[str]], FetchPlan] = {}
        # Request of the current step; None before the first one, without hooks, and after a hook has ended the run.
        self._request: Request | None = None

    def begin(self) -> None:
        """Let the hooks add operations to the graph."""
        if self.hooks:
            with self._session.record_additions():
                for hook in self.hooks:
                    hook.begin()

    def after_create_session(self) -> None:
        """Call the hooks once the variables have their values."""
        with self._session.as_default_graph():
            for hook in self.hooks:
                hook.after_create_session(self._session, tf.train.Coordinator())

    def before_run(self) -> tuple[GraphElement, ...]:
        """Call the hooks before a step, and return the tensors that it must return and the operations that it must run.

        A hook that raises StopIteration or OutOfRangeError sets `should_stop`, and nothing is fetched.
        """
        try:
            return self._request_fetches()
        except _END_ERRORS:
            self._request = None  # There are no values for `after_run`.
            self.should_stop = True
            return ()

    def _request_fetches(self) -> tuple[GraphElement, ...]:
        """Collect the fetches and feeds of all hooks, plan them, and compute the values from before the step.

        Returns:
            The tensors that the step must return, and the operations that it must run.
        """
        self._request = None
        self.model_feeds = {}
        if not self.hooks:
            return ()
        self._context = _train.SessionRunContext(self._original_args, self._session)
        self._hook_fetches = {}
        feeds: dict[str, Array] = {}
        with self._session.as_default_graph():
            for hook_index, hook in enumerate(self.hooks):
                arguments = hook.before_run(self._context)
                if arguments is not None:
                    self._add_arguments(hook_index, hook, arguments, feeds)
        elements = [element for fetches in self._hook_fetches.values() for element in fetches.elements]
        # Plans are kept, since hooks usually fetch the same values from each step.
        fed_names = frozenset(feeds)
        plan_key = tuple(element.name for element in elements), fed_names
        if plan_key not in self._plans:
            self._plans[plan_key] = plan_fetches(elements, self._session.timing, fed_names)
        self._request = Request(self._session, self._plans[plan_key], feeds)
        self._request.begin()
        return self._request.step_fetches

    def _add_arguments(
        self,
        hook_index: int,
        hook: SessionRunHook,
        arguments: tf.compat.v1.train.SessionRunArgs,
        feeds: dict[str, Array],
    ) -> None:
        """Check the SessionRunArgs of a hook, and add its fetches and feeds to the step's.

        Args:
            hook_index: index of the hook.
            hook: the hook.
            arguments: result of its before_run.
            feeds: feeds of the earlier hooks, by name of the tensor; the hook's are added.

        Raises:
            TypeError: before_run returned something else, or a feed is for an operation.
            ValueError, KeyError: the SessionRunArgs have options, the graph lacks a tensor, a value does not fit its tensor, or the
                hook feeds a tensor of model_fn that cannot be fed.
            RuntimeError: another hook feeds the same tensor.
        """
        if not isinstance(arguments, _train.SessionRunArgs):
            raise TypeError(
                f"{type(hook).__name__}.before_run must return SessionRunArgs or None, got {type(arguments).__name__}."
            )
        reject_options(arguments.options)
        if arguments.fetches is not None:
            self._hook_fetches[hook_index] = self._parse_fetches(arguments.fetches)
        for key, value in (arguments.feed_dict or {}).items():
            tensor = self._session.find_fed_tensor(key)
            is_in_model = self._session.timing.is_made_by_model_fn(tensor.op)
            if is_in_model and not (self._feeds_model and tensor.op.type == "PlaceholderWithDefault"):
                raise ValueError(
                    f"{type(hook).__name__} feeds {tensor.name!r} of model_fn, whose step is compiled (expected a "
                    "tf.placeholder_with_default, in training of one process). Make it a variable with trainable=False, and "
                    "set that in before_run with variable.load(value, run_context.session)."
                )
            if tensor.name in feeds:
                raise RuntimeError(f"Two hooks feed {tensor.name!r} (expected one). Remove one of the feeds.")
            name, array = self._session.convert_feed(tensor, value)
            feeds[name] = array
            if is_in_model:
                self.model_feeds[name] = array

    def _parse_fetches(self, structure: object) -> Fetches:
        """Return a hook's fetches, cached if they are a single tensor."""
        if not isinstance(structure, tf.Tensor):
            return Fetches(self._session.find_element, structure)
        # Most hooks fetch the same tensor at each step. The cache keeps the tensor alive, so its id stays unique.
        if id(structure) not in self._tensor_fetches:
            self._tensor_fetches[id(structure)] = structure, Fetches(self._session.find_element, structure)
        _, fetches = self._tensor_fetches[id(structure)]
        return fetches

    def after_run(self, step_values: Mapping[str, Array]) -> None:
        """Call the hooks after a step with the values that they fetched.

        A hook that raises StopIteration or OutOfRangeError, or requests a stop, sets `should_stop`.

        Args:
            step_values: the step's values by name of the tensor.
        """
        if self._request is None:
            return
        values = self._request.finish(step_values)
        try:
            with self._session.as_default_graph():
                for index, hook in enumerate(self.hooks):
                    hook_results = self._hook_fetches[index].pack(values) if index in self._hook_fetches else None
                    hook.after_run(
                        self._context, _train.SessionRunValues(results=hook_results, options=None, run_metadata=None)
                    )
        except _END_ERRORS:
            self.should_stop = True
        self.should_stop |= self._context.stop_requested

    def end(self) -> None:
        """Call the hooks at the end of the run."""
        with self._session.as_default_graph():
            for hook in self.hooks:
                hook.end(self._session)


def list_training_hooks(spec: ModelSpec, hooks: Sequence[SessionRunHook]) -> tuple[SessionRunHook, ...]:
    """Return the hooks of a training in order: the spec's training_chief_hooks, `hooks` of the call, the spec's training_hooks."""
    return (*_get_chief_hooks(spec), *hooks, *(spec.training_hooks or ()))


def select_worker_hooks(spec: ModelSpec, hooks: Sequence[SessionRunHook]) -> tuple[SessionRunHook, ...]:
    """Return the training's hooks that run in processes other than the chief, without hooks that write files.

    Args:
        spec: the spec, whose training_chief_hooks run only in the chief.
        hooks: the hooks, as `list_training_hooks` returns them.
    """
    file_writers = (
        _train.CheckpointSaverHook,
        _train.SummarySaverHook,
        _train.StepCounterHook,
        _train.ProfilerHook,
        ProfilerHook,
    )
    return tuple(hook for hook in hooks if not isinstance(hook, file_writers) and hook not in _get_chief_hooks(spec))


def _get_chief_hooks(spec: ModelSpec) -> Sequence[SessionRunHook]:
    """Return the training_chief_hooks of a spec; () for a TPUEstimatorSpec, which has none."""
    return (spec.training_chief_hooks or ()) if isinstance(spec, EstimatorSpec) else ()
