"""Parts of a training: hooks, scaffold, summaries, checkpoints and events."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.fetching.hook_session import HookSession
from tpudata.estimator.hooks.events import EventWriter
from tpudata.estimator.hooks.model_summaries import ModelSummaries
from tpudata.estimator.hooks.monitor import Monitor
from tpudata.estimator.hooks.profiler import ProfilerHook
from tpudata.estimator.hooks.scaffold import ScaffoldLoader, has_scaffold, make_scaffold
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.loops.training.checkpointing import CheckpointFollower, Checkpointing
from tpudata.estimator.loops.training.termination import Termination
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.steps.train_step import TrainStep

_train = tf.compat.v1.train


@dataclasses.dataclass(frozen=True)
class Request:
    """Arguments of a call of train other than its limits.

    Attributes:
        start: checkpoint to begin with, or None.
        hooks: hooks of the call.
        listeners: saving listeners of the call.
        follower: what follows the checkpoints; or None.
        termination: state of a requested termination.
    """

    start: Checkpoint | None
    hooks: Sequence[Any]
    listeners: Sequence[Any]
    follower: CheckpointFollower | None
    termination: Termination


@dataclasses.dataclass(frozen=True)
class TrainingParts:
    """Parts of one training.

    Attributes:
        has_hooks: whether any process has hooks.
        monitor: the hooks of this process.
        loader: loader of the variables.
        summaries: v1 summaries of model_fn.
        checkpointing: the checkpoints.
        events: event file in model_dir.
    """

    has_hooks: bool
    monitor: Monitor
    loader: ScaffoldLoader
    summaries: ModelSummaries
    checkpointing: Checkpointing
    events: EventWriter


def training_parts(runtime: Runtime, step: TrainStep, request: Request) -> TrainingParts:
    """Make the parts of one call of train.

    Raises:
        ValueError: no checkpoints are saved, and listeners or train_and_evaluate need them.
    """
    peers, config = runtime.peers, runtime.config
    hooks, session = _hooks_and_session(step, request)
    chief_hooks = getattr(step.spec, "training_chief_hooks", ())
    has_hooks = bool(hooks)
    saver_hook = next((hook for hook in hooks if isinstance(hook, _train.CheckpointSaverHook)), None)
    if not peers.is_chief:
        hooks = tuple(hook for hook in hooks if not _writes_files(hook) and hook not in chief_hooks)
    scaffold = make_scaffold(step.spec, session)
    loader = ScaffoldLoader(step, runtime.store, session, scaffold)
    events = EventWriter(runtime.model_dir if peers.is_chief else None)
    fetched = [step.spec.train_op, step.spec.loss]
    monitor = Monitor(session, hooks, fetched, feeds_model=peers.count == 1)
    summaries = ModelSummaries(step, session, scaffold, config.save_summary_steps is not None)
    checkpointing = Checkpointing(
        runtime,
        step,
        session,
        loader,
        events,
        start=request.start,
        saver=scaffold.saver,
        saver_hook=saver_hook,
        listeners=request.listeners if peers.is_chief else (),
        follower=request.follower,
        termination=request.termination,
    )
    return TrainingParts(has_hooks, monitor, loader, summaries, checkpointing, events)


def _hooks_and_session(step: TrainStep, request: Request) -> tuple[tuple[Any, ...], HookSession]:
    """Return all hooks in order, and their session; model_fn is traced again if an earlier run has used its hooks."""
    spec = step.spec
    has_hooks = bool(getattr(spec, "training_chief_hooks", ()) or request.hooks or spec.training_hooks)
    session = step.session(is_added_to=has_hooks or bool(request.listeners) or has_scaffold(spec))
    spec = step.spec
    return (*getattr(spec, "training_chief_hooks", ()), *request.hooks, *spec.training_hooks), session


def _writes_files(hook: Any) -> bool:
    """Return whether a hook writes files, which only the chief of a cluster may do."""
    kinds = (
        _train.CheckpointSaverHook,
        _train.SummarySaverHook,
        _train.StepCounterHook,
        _train.ProfilerHook,
        ProfilerHook,
    )
    return isinstance(hook, kinds)
