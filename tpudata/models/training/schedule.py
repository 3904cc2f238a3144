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
    """Return the learning rate of the step that comes after `step` steps.

    Args:
        step: number of steps done, an integer scalar.
        peak: the rate after warm-up.
        schedule: "constant"; "cosine": falls from `peak` after warm-up to `end` at `decay_steps`, as half a wave, and stays
            there; "step": is multiplied by `factor` at each of `boundaries`.
        warmup_steps: the first so many steps go up to `peak` in equal parts: the first step has peak / warmup_steps.
        decay_steps: step at which "cosine" ends, counted from the start of training.
        end: the last rate of "cosine".
        boundaries: steps of "step", counted from the start of training.
        factor: of "step".

    Returns:
        A float32 scalar.
    """
    done = tf.cast(step, tf.float32)
    rate = tf.constant(peak, tf.float32)
    if schedule == "cosine":
        if decay_steps is None:
            raise ValueError("The schedule cosine needs decay_steps.")
        share = tf.clip_by_value((done - warmup_steps) / max(decay_steps - warmup_steps, 1), 0.0, 1.0)
        rate = end + (peak - end) * 0.5 * (1.0 + tf.cos(math.pi * share))
    elif schedule == "step":
        for boundary in boundaries:
            rate *= tf.where(done >= boundary, factor, 1.0)
    if warmup_steps:
        rate = tf.where(done < warmup_steps, peak * (done + 1.0) / warmup_steps, rate)
    return rate
