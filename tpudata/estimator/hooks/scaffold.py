"""Scaffolds, with which a model_fn sets the initial values of variables and the content of checkpoints."""

import tensorflow as tf

from tpudata.checks import require_type
from tpudata.devices.errors import ModelFnValueError
from tpudata.error_text.lines import one_line
from tpudata.errors import StorageError
from tpudata.estimator.api.errors import SPACE_AND_PERMISSION, CheckpointError, ModelFnTypeError
from tpudata.estimator.api.spec import EstimatorSpec, ModelSpec, TPUEstimatorSpec
from tpudata.estimator.fetching.hook_session import HookSession
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.step import Step

_Scaffold = tf.compat.v1.train.Scaffold


def has_scaffold(spec: ModelSpec) -> bool:
    """Return whether a spec has a scaffold."""
    return (spec.scaffold_fn if isinstance(spec, TPUEstimatorSpec) else spec.scaffold) is not None


def make_scaffold(spec: ModelSpec, session: HookSession) -> tf.compat.v1.train.Scaffold:
    """Return the spec's scaffold, with its saver built, or an empty one.

    Raises:
        ModelFnTypeError: the scaffold is not a Scaffold, or its saver is not a v1 Saver.
    """
    if not has_scaffold(spec):
        return _Scaffold()
    with session.record_additions():
        return build_scaffold(spec)


def build_scaffold(spec: ModelSpec) -> tf.compat.v1.train.Scaffold:
    """Return the spec's scaffold, with its saver built, or an empty one; made in the default graph.

    Raises:
        ModelFnTypeError: the scaffold is not a Scaffold, or its saver is not a v1 Saver.
    """
    scaffold = None
    if isinstance(spec, EstimatorSpec):
        scaffold = spec.scaffold
    elif spec.scaffold_fn is not None:
        scaffold = spec.scaffold_fn()
    if scaffold is None:
        return _Scaffold()
    label = f"{type(spec).__name__}: the scaffold"
    is_scaffold = isinstance(scaffold, _Scaffold)
    require_type(label, scaffold, is_scaffold, "a tf.compat.v1.train.Scaffold", ModelFnTypeError)
    if scaffold.saver is not None:
        if not isinstance(scaffold.saver, tf.compat.v1.train.Saver):
            raise ModelFnTypeError(
                "Scaffold(saver=...) must be a tf.compat.v1.train.Saver, whose checkpoints are name-based, got "
                f"{type(scaffold.saver).__name__}."
            )
        scaffold.saver.build()
    return scaffold


def restore_with(saver: tf.compat.v1.train.Saver, session: tf.compat.v1.Session, checkpoint: Checkpoint) -> None:
    """Restore a checkpoint with a scaffold's saver.

    Raises:
        CheckpointError: the saver cannot restore it.
    """
    try:
        saver.restore(session, checkpoint.prefix)
    except (tf.errors.OpError, ValueError) as error:
        raise CheckpointError(
            f"The saver of model_fn's scaffold cannot restore {checkpoint.prefix}: {error}. Let it restore variables that the "
            "checkpoint contains."
        ) from error


def save_with(saver: tf.compat.v1.train.Saver, session: HookSession, model_dir: str, step: int) -> Checkpoint:
    """Write `model.ckpt-STEP` with a scaffold's saver, which also deletes old checkpoints.

    Args:
        saver: the scaffold's saver.
        session: session with the variables.
        model_dir: folder of the checkpoint, which is created if needed.
        step: the global step.

    Raises:
        StorageError: the checkpoint could not be written.
    """
    base = tf.io.gfile.join(model_dir, "model.ckpt")
    try:
        tf.io.gfile.makedirs(model_dir)
        with session.as_default_graph():
            prefix = saver.save(session, base, global_step=step, write_meta_graph=False)
    except tf.errors.OpError as error:
        raise StorageError(
            f"the checkpoint {base}-{step} could not be written by the scaffold's saver: {one_line(error.message)}. "
            f"{SPACE_AND_PERMISSION}"
        ) from error
    return Checkpoint.open(prefix)


class ScaffoldLoader:
    """Loader of a step's variables, according to a scaffold.

    Args:
        step: the compiled step.
        store: store of its variables.
        session: session of the run.
        scaffold: scaffold of the run.
    """

    def __init__(
        self, step: Step, store: VariableStore, session: HookSession, scaffold: tf.compat.v1.train.Scaffold
    ) -> None:
        self._step = step
        self._store = store
        self._session = session
        self._scaffold = scaffold
        self._names = [info.name for info in step.saved]
        # Token that the store keeps as the source of values that this run has assigned; None while the variables have the loaded
        # values, whose source is a checkpoint.
        self._run_source: object | None = None

    def load(self, checkpoint: Checkpoint | None) -> None:
        """Load a checkpoint into the variables, with the scaffold's saver if it has one; None loads the initial values.

        Raises:
            CheckpointError: the checkpoint cannot be restored.
            ModelFnValueError: the scaffold's ready_op returned names of variables.
        """
        scaffold, session = self._scaffold, self._session
        self._run_source = None
        self.restore(checkpoint)
        with session.as_default_graph():
            if checkpoint is None and scaffold.init_op is not None:
                session.run(scaffold.init_op, feed_dict=scaffold.init_feed_dict)
            if checkpoint is None and scaffold.init_fn is not None:
                scaffold.init_fn(session)
            if scaffold.local_init_op is not None:
                session.run(scaffold.local_init_op, feed_dict=scaffold.local_init_feed_dict)
            if scaffold.ready_op is not None:
                missing = session.run(scaffold.ready_op)  # Names of variables without a value.
                if len(missing):
                    raise ModelFnValueError(
                        f"Scaffold(ready_op=...): variables have no value (got {list(missing)}, expected none). Initialize them."
                    )
        has_initialized = checkpoint is None and (scaffold.init_op is not None or scaffold.init_fn is not None)
        if has_initialized or scaffold.local_init_op is not None:
            self._mark_values_of_run()

    def note_writes(self) -> None:
        """If the step or a hook assigns to the variables, record that, so that `reload` keeps their values."""
        if self._step.writes_saved_variables or self._session.pop_has_written():
            self._mark_values_of_run()

    def _mark_values_of_run(self) -> None:
        """Record that the variables have values that this run has assigned, and that no file contains."""
        self._run_source = object()  # Equal to no other source, since no file contains these values.
        self._store.set_source(self._names, self._run_source)

    def reload(self, checkpoint: Checkpoint | None) -> None:
        """Load a checkpoint again, as `load` does, if another run has changed the variables in the meantime."""
        # `load` skips variables that still have the checkpoint's values, but it would overwrite values that this run has assigned.
        # So if there are any, load only if another run has replaced them.
        if self._run_source is None or not self._store.has_source(self._names, self._run_source):
            self.load(checkpoint)

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Load a checkpoint as `load` does, without running operations of the scaffold."""
        step, saver = self._step, self._scaffold.saver
        if checkpoint is None or saver is None:
            self._store.load(step.blueprint, step.saved, checkpoint)
            return

        def run_saver() -> None:
            with self._session.as_default_graph():
                restore_with(saver, self._session, checkpoint)

        # The savers of two modes may restore different values from one checkpoint.
        source = checkpoint, step.mode
        self._store.restore(step.blueprint, step.saved, source, run_saver)
