"""Cost of a training step with hooks: CPU time and time by the clock, next to the original TPUEstimator's.

    python scripts/bench/hooks.py PYTHON_WITH_TENSORFLOW_2_15 [--rounds N] [--steps N]

Both sides train the model of train.py (8 channels, batch 64, use_tpu=False) in separate processes and in turn, with
LoggingTensorHook, StopAtStepHook, and a hook that reads the clocks. Steps after the first 100 of a call count. Prints ratios, and
never fails on time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_CHANNELS = 8
# Steps of a call that are not measured.
_WARM_UP = 100
_CLOCKS = {"clock": time.monotonic, "CPU of the process": time.process_time, "CPU of its main thread": time.thread_time}


def main() -> None:
    """Measure both sides and print a table."""
    parser = argparse.ArgumentParser(description="Measures training steps with hooks next to the original's.")
    parser.add_argument("original", metavar="PYTHON", help="of an environment with TensorFlow 2.15")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=150, help="of a round")
    flags = parser.parse_args()
    sides = {"ours": _start(sys.executable, "ours"), "original": _start(flags.original, "original")}
    # Milliseconds of a step in each round, by each clock.
    times: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for steps in (20, *[flags.steps] * flags.rounds):  # The first round warms up.
        for name, side in sides.items():
            times[name].append(_measure(side, steps))
    for clock in _CLOCKS:
        ours, original = ([round_times[clock] for round_times in times[name][1:]] for name in sides)
        ratios = [original_ms / our_ms for our_ms, original_ms in zip(ours, original, strict=True)]
        print(
            f"{clock:<24} ours {min(ours):.2f} to {max(ours):.2f} ms, original {min(original):.2f} to {max(original):.2f} ms, "
            f"original by ours {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    for side in sides.values():
        side.communicate()


def _start(python: str, name: str) -> subprocess.Popen[str]:
    """Start the process of a side, which serves measurements."""
    words = [python, "-W", "ignore", __file__, "--serve", name]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _measure(side: subprocess.Popen[str], steps: int) -> dict[str, float]:
    """Let a side train some steps, and return the milliseconds of a step by each clock."""
    assert side.stdin is not None
    assert side.stdout is not None
    print(steps, file=side.stdin, flush=True)
    return dict(zip(_CLOCKS, map(float, side.stdout.readline().split()), strict=True))


def _serve(name: str) -> None:
    """Answer lines of stdin, each a number of steps, with the milliseconds of a step by each clock, in the order of `_CLOCKS`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if name == "ours":
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # tf.compat.v1.layers needs it
    import tensorflow as tf

    hooks = tf.compat.v1.train

    class ClockHook(hooks.SessionRunHook):  # type: ignore[misc, name-defined]  # TensorFlow is untyped
        def __init__(self) -> None:
            # Values of the clocks after each step.
            self.times: list[list[float]] = []

        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context, run_values
            self.times.append([clock() for clock in _CLOCKS.values()])

    with tempfile.TemporaryDirectory() as folder:
        estimator, input_fn = _make_ours(folder) if name == "ours" else _make_original(folder)
        for line in sys.stdin:
            clock_hook, steps = ClockHook(), int(line)
            # The hooks of usual programs; the second never stops the training.
            all_hooks = [hooks.LoggingTensorHook({"loss": "the_loss"}, 100), hooks.StopAtStepHook(10**9), clock_hook]
            estimator.train(input_fn, hooks=all_hooks, steps=_WARM_UP + steps)
            begin, end = clock_hook.times[_WARM_UP - 1], clock_hook.times[-1]
            print(*(1e3 * (last - first) / steps for first, last in zip(begin, end, strict=True)), flush=True)


def _make_ours(folder: str) -> tuple[Any, Any]:
    """Return the estimator of train.py, and its input_fn."""
    import numpy as np
    import train

    random = np.random.default_rng(0)
    images = random.normal(size=(2048, 28, 28, 1)).astype(np.float32)
    labels = random.integers(0, 10, 2048).astype(np.int32)
    estimator = train.make_estimator(folder, num_replicas=1, channels=_CHANNELS)
    return estimator, train.make_input_fn(images, labels, repeats=True)


def _make_original(folder: str) -> tuple[Any, Any]:
    """Return the original estimator with the same model, and its input_fn."""
    from sides import train_original as program

    tpu = program.tpu
    config = tpu.RunConfig(tpu_config=tpu.TPUConfig(100), model_dir=folder, save_checkpoints_secs=None)
    estimator = tpu.TPUEstimator(
        program._model_fn, config=config, params={"channels": _CHANNELS}, use_tpu=False, train_batch_size=program._BATCH
    )
    return estimator, program._input_fn


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sys.path.insert(0, str(Path(__file__).parent))
        _serve(sys.argv[2])
    else:
        main()
