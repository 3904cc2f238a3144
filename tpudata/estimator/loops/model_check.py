"""Check that model_fn, data and checkpoint fit each other, before anything is run or written."""

from typing import Any

from tpudata.estimator.api.mode_keys import MODES, ModeKeys
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.state.checkpoints import latest_of_chief
from tpudata.estimator.steps.eval_step import EvalStep


def check_model(runtime: Runtime, input_fn: Any, mode: str) -> tuple[str, ...]:
    """Build the model and load the newest checkpoint; see `TPUEstimator.check_model`."""
    if mode not in MODES:
        raise ValueError(f"check_model(mode=...) must be one of {', '.join(MODES)}, got {mode!r}.")
    for other, size in runtime.user_model.batch_sizes.items():
        if size is not None:
            runtime.deployment(other)  # Otherwise an evaluation could fail after a long training.
    with runtime.peers.watched():
        start = latest_of_chief(runtime.model_dir, runtime.peers)
        # As training calls it: the caller may keep the dataset.
        start_step = start.step() if start is not None and mode == ModeKeys.TRAIN else 0
        spec = runtime.feed(input_fn, mode, start_step).element_spec
        if mode == ModeKeys.PREDICT:
            spec = (spec[0], None)
        step = runtime.step(mode, spec)
        runtime.store.load(step.blueprint, step.saved, start)
    return (*step.metric_names, "loss", "global_step") if isinstance(step, EvalStep) else ()
