"""Profiles of steps for TensorBoard, made with the profilers of TensorFlow 2 and jax, and a hook that makes them."""

import logging
from collections.abc import Callable
from pathlib import PurePosixPath

import tensorflow as tf

from tpudata.tensorflow_internals import get_profile_file_and_timer

_train = tf.compat.v1.train
_log = logging.getLogger("tpudata")


def begin_profile(folder: str, *, is_on_devices: bool) -> Callable[[], None] | None:
    """Begin a profile of this process for TensorBoard.

    Args:
        folder: folder whose plugins/profile gets the profile.
        is_on_devices: whether jax runs the steps.

    Returns:
        The function that ends and writes the profile; None if another profile is running.
    """
    try:
        if not is_on_devices:
            tf.profiler.experimental.start(folder)
            stop: Callable[[], None] = tf.profiler.experimental.stop
            return stop
        import jax

        jax.profiler.start_trace(folder)
        stop = jax.profiler.stop_trace
        return stop
    except (tf.errors.AlreadyExistsError, RuntimeError):  # TensorFlow's and jax's error if another profile is running.
        return None


class Profiler:
    """Profiler of one range of steps.

    Args:
        folder: folder whose plugins/profile gets the profile.
        steps: (first, last) step, counted from 1; None for no profile.
        is_on_devices: whether jax runs the steps.
    """

    def __init__(self, folder: str, steps: tuple[int, int] | None, *, is_on_devices: bool = False) -> None:
        self._folder = folder
        self._steps = steps
        self._is_on_devices = is_on_devices
        # First step of the profile, once it has begun.
        self._first_step: int | None = None
        self._end_profile: Callable[[], None] | None = None

    def find_loop_end(self, step: int) -> int | None:
        """Return the step at which a loop that begins after `step` must end; None if it may end anywhere.

        A loop ends before the first step of the range, and another one after the last step.
        """
        if self._steps is None:
            return None
        first, last = self._steps
        return next((end for end in (first - 1, last) if step < end), None)

    def before_loop(self, step: int) -> None:
        """Begin the profile, if the next step is in the range."""
        if self._steps is None or self._first_step is not None:  # No profile, or it has begun already.
            return
        first, last = self._steps
        if not first - 1 <= step < last:
            return
        self._end_profile = begin_profile(self._folder, is_on_devices=self._is_on_devices)
        if self._end_profile is None:
            _log.warning("Steps %d to %d are not profiled: another profile is running in this process.", first, last)
            self._steps = None
            return
        self._first_step = step + 1

    def after_loop(self, step: int) -> None:
        """Write the profile, if the last step of the range is done."""
        if self._steps is not None and self._first_step is not None:
            _, last = self._steps
            if step >= last:
                self.close(step)

    def close(self, step: int) -> None:
        """Write the profile, if one has begun; `step` is its last step."""
        if self._end_profile is None:
            return
        self._steps = None
        end_profile, self._end_profile = self._end_profile, None
        end_profile()
        _log.info("Profiled steps %d to %d: tensorboard --logdir %s", self._first_step, step, self._folder)


class ProfilerHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow is untyped
    """Hook that profiles one step per interval, and writes the profile to plugins/profile of a folder, for TensorBoard.

    TensorFlow's ProfilerHook needs a graph and traces a session; this hook replaces it in the hooks of a run.

    Attributes:
        on_devices: whether jax runs the steps; set by the run.

    Args:
        save_steps: interval between profiles in steps.
        save_secs: interval in seconds; pass one of the two.
        output_dir: folder of the profiles.
        show_dataflow: ignored, since a profile for TensorBoard has the dataflow.
        show_memory: ignored, since a profile for TensorBoard has the memory.

    Raises:
        ValueError: save_steps and save_secs are both set, or both None.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ) -> None:
        del show_dataflow, show_memory  # A profile for TensorBoard has both.
        self._folder = str(output_dir) or "."
        self._timer = _train.SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)
        self._next_step: int | None = None
        self.on_devices = False
        self._end_profile: Callable[[], None] | None = None
        self._global_step: tf.Variable | None = None

    @classmethod
    def from_original(cls, hook: tf.compat.v1.train.ProfilerHook) -> "ProfilerHook":
        """Return the counterpart of a `tf.compat.v1.train.ProfilerHook`, from its private attributes."""
        file, timer = get_profile_file_and_timer(hook)
        # The interval is arbitrary: the timer of `hook`, which has the right one, replaces this one.
        counterpart = cls(save_steps=1, output_dir=str(PurePosixPath(file).parent))
        counterpart._timer = timer
        return counterpart

    def begin(self) -> None:
        """Find the variable of the global step. The first step's number is known only after it, so that step is not profiled."""
        self._next_step = None
        self._global_step = _train.get_global_step()

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> tf.compat.v1.train.SessionRunArgs:
        """Begin a profile, if one is due, and request the global step."""
        del run_context
        if self._next_step is not None and self._timer.should_trigger_for_step(self._next_step):
            self._end_profile = begin_profile(self._folder, is_on_devices=self.on_devices)
            if self._end_profile is None:
                _log.warning("ProfilerHook: step %d is not profiled: another profile is running.", self._next_step)
        return _train.SessionRunArgs(self._global_step)

    def after_run(
        self, run_context: tf.compat.v1.train.SessionRunContext, run_values: tf.compat.v1.train.SessionRunValues
    ) -> None:
        """Write the profile, if one has begun."""
        del run_context
        step = int(run_values.results) + 1  # The global step was fetched before the step.
        # As in TensorFlow's ProfilerHook, the first interval begins before the first step of the run.
        if self._next_step is None:
            self._timer.update_last_triggered_step(step - 1)
        if self._write():
            self._timer.update_last_triggered_step(step)
        self._next_step = step + 1

    def end(self, session: tf.compat.v1.Session) -> None:
        """End a profile that is still open because another hook stopped training between `before_run` and the step."""
        del session
        self._write()

    def _write(self) -> bool:
        """Write the profile, if one has begun; return whether it has."""
        end_profile, self._end_profile = self._end_profile, None
        if end_profile is not None:
            end_profile()
        return end_profile is not None
