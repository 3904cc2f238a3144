"""The training loop on the host: between two loops of the device it logs, checks, writes summaries and saves."""

import logging
import time
from typing import Any

import tensorflow as tf

from tpudata.estimator import _checkpoint
from tpudata.estimator._config import TPUConfig
from tpudata.estimator._errors import ModelFnValueError, NonFiniteError
from tpudata.estimator._events import EventWriter
from tpudata.estimator._mode_keys import ModeKeys
from tpudata.estimator._program import TrainProgram
from tpudata.estimator._runtime import Runtime
from tpudata.estimator._signature import leaves

_log = logging.getLogger("tpudata")
_MAX_LOOP = 2**31 - 1


class LoopSize:
    """How many steps the next loop should take.

    Args:
        config: its `iterations_per_loop` is a number of steps, or a time to which the number is fitted.
    """

    def __init__(self, config: TPUConfig) -> None:
        self._seconds = config.loop_seconds
        self._steps = 1 if self._seconds is not None else int(config.iterations_per_loop)
        self._measured = False

    def next(self, remaining: int | None) -> int:
        """Return min(steps per loop, `remaining`); None: no limit."""
        return min(self._steps, _MAX_LOOP if remaining is None else remaining)

    def measure(self, steps: int, seconds: float) -> None:
        """Fit the size to a loop that took `seconds` for `steps` steps; the first one, which compiles, is left out."""
        if self._seconds is None:
            return
        if self._measured and steps:
            fitted = int(self._seconds * steps / max(seconds, 1e-6))
            # One loop of odd length must not throw the next far off.
            self._steps = max(1, min(fitted, 10 * steps, _MAX_LOOP))
        self._measured = True


class Cadence:
    """Says at a loop's end whether something that happens every so many steps (or seconds) is due."""

    def __init__(self, step: int, steps: int | None = None, seconds: float | None = None) -> None:
        self._steps = steps
        self._seconds = seconds
        self.restart(step)

    def restart(self, step: int) -> None:
        """Count from here."""
        self._step = step
        self._time = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether the interval has passed."""
        if self._steps is not None:
            return step - self._step >= self._steps
        return self._seconds is not None and time.monotonic() - self._time >= self._seconds

    def steps_per_second(self, step: int) -> float:
        """Return the speed since the last restart."""
        return (step - self._step) / max(time.monotonic() - self._time, 1e-9)


def check_steps(steps: int | None, max_steps: int | None) -> None:
    """Check train's limits.

    Raises:
        TypeError: not an int.
        ValueError: both are given, or one is not positive.
    """
    if steps is not None and max_steps is not None:
        raise ValueError(f"train takes steps or max_steps, not both: got steps={steps}, max_steps={max_steps}.")
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        require_steps("train", name, value)


def require_steps(owner: str, name: str, value: Any) -> None:
    """Check a number of steps: a positive int, or None.

    Raises:
        TypeError: not an int.
        ValueError: not positive.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}({name}=...) must be an int or None, got {value!r} ({type(value).__name__}).")
    if value <= 0:
        raise ValueError(f"{owner}({name}=...) must be positive, got {value}.")


def train(runtime: Runtime, input_fn: Any, steps: int | None, max_steps: int | None) -> float | None:
    """Train as `TPUEstimator.train` says; returns the last step's loss, or None where no step was done."""
    check_steps(steps, max_steps)
    start = _checkpoint.latest(runtime.model_dir)
    if max_steps is not None and start is not None and start.step() >= max_steps:
        _log.info("Nothing to train: %s has reached max_steps=%d.", start.prefix, max_steps)
        return None
    dataset = runtime.dataset(input_fn, ModeKeys.TRAIN)
    program: TrainProgram = runtime.program(ModeKeys.TRAIN, dataset.element_spec)
    runtime.store.load(program.blueprint, program.saved, start)
    program.local.reset()
    run = _Run(runtime, program, _examples_per_step(runtime, dataset.element_spec), start)
    last = max_steps if max_steps is not None else None if steps is None else run.step + steps
    try:
        return run.train(iter(dataset), last)
    finally:
        run.events.close()


def _examples_per_step(runtime: Runtime, element_spec: Any) -> int | None:
    size = runtime.batch_sizes[ModeKeys.TRAIN]
    if size is not None:
        return size
    sizes = {spec.shape[0] for _, spec in leaves((element_spec, None)) if spec.shape.rank}
    static = sizes.pop() if len(sizes) == 1 else None
    return None if static is None else int(static)


class _Run:
    """One call of train: its place, its intervals and its files."""

    def __init__(
        self, runtime: Runtime, program: TrainProgram, examples: int | None, start: _checkpoint.Checkpoint | None
    ) -> None:
        config = runtime.config
        self.step = program.global_step
        self.events = EventWriter(runtime.model_dir)
        self._runtime = runtime
        self._program = program
        self._examples = examples
        self._saved_step = None if start is None else self.step
        self._logged_step: int | None = None
        self._loop = LoopSize(config.tpu_config)
        seconds = config.save_checkpoints_secs
        self._saving = Cadence(
            self.step, config.save_checkpoints_steps, seconds if isinstance(seconds, int | float) else None
        )
        self._logging = Cadence(self.step, config.log_step_count_steps)
        self._summaries = Cadence(self.step, config.save_summary_steps)

    def train(self, iterator: Any, last: int | None) -> float | None:
        """Run loops until step `last` (None: until the data ends), save at the start, when due, and at the end.

        Returns:
            The loss of the last step, or None where there was no data for one.
        """
        self._save()
        first = True
        last_loss = None
        while last is None or self.step < last:
            begin = time.monotonic()
            done, has_data, loss = self._run_loop(iterator, self._loop.next(None if last is None else last - self.step))
            self._loop.measure(done, time.monotonic() - begin)
            if done:
                last_loss = loss
                self._report(loss, first)
            if not has_data:
                _log.info("The input ended at step %d.", self.step)
                break
            first = False
            if self._saving.due(self.step):
                self._save()
        if last_loss is not None and self._logged_step != self.step:
            self._write_log(last_loss, {})  # A short run, too, tells its loss.
        self._save()
        return last_loss

    def _run_loop(self, iterator: Any, size: int) -> tuple[int, bool, float]:
        self._runtime.store.mark(list(self._program.variables), None)
        before = self.step
        done, has_data, loss, finite = (item.numpy() for item in self._program.run(iterator, tf.constant(size)))
        self.step = self._program.global_step
        if done and self.step == before:
            raise ModelFnValueError(
                "train_op did not change the global step: pass global_step=tf.compat.v1.train.get_global_step() to "
                "the optimizer's minimize or apply_gradients."
            )
        self._require_finite(float(loss), finite)
        return int(done), bool(has_data), float(loss)

    def _require_finite(self, loss: float, finite: Any) -> None:
        bad = [name for name, is_finite in zip(self._program.checked, finite, strict=True) if not is_finite]
        loss_is_finite = loss - loss == 0.0
        if loss_is_finite and not bad:
            return
        what = [] if loss_is_finite else [f"the loss is {loss}"]
        if bad:
            more = f" and {len(bad) - 1} more variables" if len(bad) > 1 else ""
            what.append(f"the variable {bad[0]!r}{more} holds NaN or Inf")
        saved = _checkpoint.latest(self._runtime.model_dir)
        kept = "" if saved is None else f" The last good checkpoint is {saved.prefix}."
        raise NonFiniteError(
            f"Training stopped at step {self.step}: {', '.join(what)}. Lower the learning rate, or look at the input "
            f"for values that are not finite.{kept}"
        )

    def _report(self, loss: float, first: bool) -> None:
        """Log and write summaries where due. The first loop's speed tells of compiling, so it is left out."""
        for cadence, write in ((self._logging, self._write_log), (self._summaries, self._write_summary)):
            if cadence.due(self.step):
                speed = cadence.steps_per_second(self.step)
                rates = {"global_step/sec": speed}
                if self._examples is not None:
                    rates["examples/sec"] = speed * self._examples
                write(loss, {} if first else rates)
                cadence.restart(self.step)
            elif first:
                cadence.restart(self.step)

    def _write_log(self, loss: float, rates: dict[str, float]) -> None:
        speeds = "".join(f", {name}: {value:.4g}" for name, value in rates.items())
        _log.info("step %d: loss = %.6g%s", self.step, loss, speeds)
        self._logged_step = self.step

    def _write_summary(self, loss: float, rates: dict[str, float]) -> None:
        self.events.scalars(self.step, {"loss": loss, **rates})

    def _save(self) -> None:
        """Write a checkpoint, unless this step's is there."""
        self._saving.restart(self.step)
        if self._saved_step == self.step:
            return
        checkpoint = _checkpoint.save(
            self._runtime.model_dir, self.step, self._program.variables, self._runtime.config.keep_checkpoint_max
        )
        self._runtime.store.mark(list(self._program.variables), checkpoint)
        self._saved_step = self.step
        self.events.flush()
        _log.info("Saved %s.", checkpoint.prefix)
