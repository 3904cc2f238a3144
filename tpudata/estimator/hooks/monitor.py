"""Calls of SessionRunHooks, in the order of a MonitoredSession."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.fetching.fetch_plan import FetchPlan, When, plan
from tpudata.estimator.fetching.fetches import Fetches
from tpudata.estimator.fetching.hook_session import HookSession, reject_options
from tpudata.estimator.hooks.profiler import ProfilerHook

_train = tf.compat.v1.train
# A hook that raises one of these ends a run, as in a MonitoredSession; one that feeds from a generator does.
_ENDS = (StopIteration, tf.errors.OutOfRangeError)


class Request:
    """Fetches from one step, in addition to its loss.

    Args:
        session: session of the run.
        plan: plan of the fetched tensors and operations.
        feeds: values by name of a tensor.
    """

    def __init__(self, session: HookSession, plan: FetchPlan, feeds: Mapping[str, Any]) -> None:
        self._session = session
        self._feeds = dict(feeds)
        self._plan = plan
        self._before: dict[str, Any] = {}

    @property
    def step(self) -> tuple[Any, ...]:
        """Tensors of the scratch graph that the step must return, and operations that it must run."""
        return (*self._plan.step, *self._plan.step_operations)

    @property
    def has_before(self) -> bool:
        """Whether values are computed, or operations run, before the step."""
        return bool(self._plan.before or self._plan.before_operations)

    def begin(self) -> None:
        """Compute values before the step."""
        parts = self._plan
        values = self._session.evaluate(parts.before, parts.before_operations, self._feeds, When.BEFORE)
        self._before = dict(zip([item.name for item in parts.before], values, strict=True))

    def finish(self, step: Mapping[str, Any]) -> dict[str, Any]:
        """Compute values after the step, from its values by name; return all values by name."""
        parts = self._plan
        known = {**self._feeds, **self._before, **{item.name: step[item.name] for item in parts.step}}
        cuts = {name: value for name, value in known.items() if name not in {item.name for item in parts.after}}
        values = self._session.evaluate(parts.after, parts.after_operations, cuts, When.AFTER)
        return {**known, **dict(zip([item.name for item in parts.after], values, strict=True))}


def tensor_names(asked: Iterable[Any]) -> set[str]:
    """Return the names of the tensors among the fetches of `Monitor.before_run`."""
    return {item.name for item in asked if isinstance(item, tf.Tensor)}


class Monitor:
    """The hooks of one run.

    Args:
        session: session for the hooks.
        hooks: the hooks, in order.
        original: fetches of a step, for `run_context.original_args`.
        feeds_model: whether the step takes values for model_fn's placeholders with a default.
    """

    def __init__(self, session: HookSession, hooks: Sequence[Any], original: Any, *, feeds_model: bool = False) -> None:
        self.hooks = tuple(ProfilerHook.of(hook) if isinstance(hook, _train.ProfilerHook) else hook for hook in hooks)
        for hook in self.hooks:
            if isinstance(hook, ProfilerHook):
                hook.on_devices = session.is_on_devices
        self.should_stop = False
        # Values that hooks feed to the next step, by name of model_fn's placeholder.
        self.model_feeds: dict[str, Any] = {}
        self._feeds_model = feeds_model
        self._session = session
        self._original = _train.SessionRunArgs(original)
        self._context: Any = None
        self._fetches: dict[int, Fetches] = {}
        self._single: dict[int, tuple[Any, Fetches]] = {}
        self._plans: dict[tuple[tuple[str, ...], frozenset[str]], FetchPlan] = {}
        self._request: Request | None = None

    def begin(self) -> None:
        """Let the hooks add operations to the graph."""
        if self.hooks:
            with self._session.record_additions():
                for hook in self.hooks:
                    hook.begin()

    def after_create_session(self) -> None:
        """Call the hooks after variables have got their values."""
        with self._session.as_default_graph():
            for hook in self.hooks:
                hook.after_create_session(self._session, tf.train.Coordinator())

    def before_run(self) -> tuple[Any, ...]:
        """Call the hooks before a step, and return the tensors that it must return and the operations that it must run.

        A hook that raises StopIteration or OutOfRangeError sets `should_stop`, and no step should run.
        """
        try:
            return self._asked()
        except _ENDS:
            self._request, self.should_stop = None, True
            return ()

    def _asked(self) -> tuple[Any, ...]:
        self._request = None
        self.model_feeds = {}
        if not self.hooks:
            return ()
        self._context = _train.SessionRunContext(self._original, self._session)
        self._fetches = {}
        feeds: dict[str, Any] = {}
        with self._session.as_default_graph():
            for number, hook in enumerate(self.hooks):
                arguments = hook.before_run(self._context)
                if arguments is not None:
                    self._take(number, hook, arguments, feeds)
        elements = [item for fetches in self._fetches.values() for item in fetches.elements]
        # Hooks mostly fetch the same values from each step.
        wanted = tuple(item.name for item in elements), frozenset(feeds)
        if wanted not in self._plans:
            self._plans[wanted] = plan(elements, self._session.timing, wanted[1])
        self._request = Request(self._session, self._plans[wanted], feeds)
        self._request.begin()
        return self._request.step

    def _take(self, number: int, hook: Any, arguments: Any, feeds: dict[str, Any]) -> None:
        if not isinstance(arguments, _train.SessionRunArgs):
            raise TypeError(
                f"{type(hook).__name__}.before_run must return SessionRunArgs or None, got {type(arguments).__name__}."
            )
        reject_options(arguments.options)
        if arguments.fetches is not None:
            self._fetches[number] = self._fetches_of(arguments.fetches)
        for key, value in (arguments.feed_dict or {}).items():
            tensor = self._session.find_element(key)
            is_models = self._session.timing.is_made_by_model_fn(tensor.op)
            if is_models and not (self._feeds_model and tensor.op.type == "PlaceholderWithDefault"):
                raise ValueError(
                    f"{type(hook).__name__} feeds {tensor.name!r} of model_fn, whose step is compiled (expected a "
                    "tf.placeholder_with_default, in training of one process). Make it a variable with trainable=False, and "
                    "set that in before_run with variable.load(value, run_context.session)."
                )
            if tensor.name in feeds:
                raise RuntimeError(f"Two hooks feed {tensor.name!r} (expected one). Remove one of the feeds.")
            fed = self._session.convert_feed(tensor, value)
            feeds |= [fed]
            if is_models:
                self.model_feeds |= [fed]

    def _fetches_of(self, structure: Any) -> Fetches:
        if not isinstance(structure, tf.Tensor):
            return Fetches(self._session.find_element, structure)
        # Most hooks fetch the same tensor at each step.
        if id(structure) not in self._single:
            self._single[id(structure)] = structure, Fetches(self._session.find_element, structure)
        return self._single[id(structure)][1]

    def after_run(self, step: Mapping[str, Any]) -> None:
        """Call the hooks after a step, with their values; a hook that raises StopIteration or OutOfRangeError sets `should_stop`.

        Args:
            step: values of the step by name of the tensor.
        """
        if self._request is None:
            return
        values = self._request.finish(step)
        try:
            with self._session.as_default_graph():
                for number, hook in enumerate(self.hooks):
                    results = self._fetches[number].pack(values) if number in self._fetches else None
                    hook.after_run(self._context, _train.SessionRunValues(results, None, None))
        except _ENDS:
            self.should_stop = True
        self.should_stop |= self._context.stop_requested

    def takes_writes(self) -> bool:
        """Return whether hooks assigned to variables since the last call."""
        return self._session.takes_writes()

    def end(self) -> None:
        """Call the hooks at the end of the run."""
        with self._session.as_default_graph():
            for hook in self.hooks:
                hook.end(self._session)


def training_hooks(spec: Any, hooks: Sequence[Any]) -> tuple[Any, ...]:
    """Return the hooks of a training in their order: those of the chief, of the call, and of model_fn."""
    return (*_chief_hooks(spec), *hooks, *spec.training_hooks)


def hooks_of_worker(spec: Any, hooks: Sequence[Any]) -> tuple[Any, ...]:
    """Return those of `training_hooks` that run in a process other than the chief, which writes no files."""
    kinds = (
        _train.CheckpointSaverHook,
        _train.SummarySaverHook,
        _train.StepCounterHook,
        _train.ProfilerHook,
        ProfilerHook,
    )
    return tuple(hook for hook in hooks if not isinstance(hook, kinds) and hook not in _chief_hooks(spec))


def _chief_hooks(spec: Any) -> Sequence[Any]:
    chiefs: Sequence[Any] = getattr(spec, "training_chief_hooks", ())
    return chiefs
