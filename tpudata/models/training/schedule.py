"""The learning rate as a function of the step."""

import math

import tensorflow as tf

SCHEDULES = ("constant", "cosine", "step")


def learning_rate_at(
    step: tf.Tensor,
    peak: float,
    schedule: str = "constant",
    warmup_steps: int = 0,
    decay_steps: int | None = None,
    end: float = 0.0,
    boundaries: tuple[int, ...] = (),
    factor: float = 0.1,
) -> tf.Tensor:
    """Return the learning rate of the next step, after `step` steps are done.

    Args:
        step: number of steps done, an integer scalar.
        peak: rate after warm-up.
        schedule: "constant"; "cosine", half a wave from `peak` after warm-up to `end` at `decay_steps`, and `end` from there on;
            or "step", `factor` times the rate from each of `boundaries` on.
        warmup_steps: number of steps in which the rate rises to `peak` in equal parts, from peak / warmup_steps.
        decay_steps: step at which "cosine" ends, counted from the start of training.
        end: last rate of "cosine".
        boundaries: steps of the schedule "step", counted from the start of training.
        factor: factor of the schedule "step".

    Returns:
        A float32 scalar.

    Raises:
        ValueError: "cosine" lacks `decay_steps`.
    """
    steps_done = tf.cast(step, tf.float32)
    rate = tf.constant(peak, tf.float32)
    if schedule == "cosine":
        if decay_steps is None:
            raise ValueError("learning_rate_at(schedule='cosine') needs decay_steps. Pass it.")
        # `decay_steps` may equal `warmup_steps`, and their difference is the divisor, so it is at least 1.
        progress = tf.clip_by_value((steps_done - warmup_steps) / max(decay_steps - warmup_steps, 1), 0.0, 1.0)
        rate = end + (peak - end) * 0.5 * (1.0 + tf.cos(math.pi * progress))
    elif schedule == "step":
        for boundary in boundaries:
            rate *= tf.where(steps_done >= boundary, factor, 1.0)
    if warmup_steps:
        rate = tf.where(steps_done < warmup_steps, peak * (steps_done + 1.0) / warmup_steps, rate)
    return rate
