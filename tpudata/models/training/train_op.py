"""Params of training, and the operation that does a training step."""

import dataclasses

import tensorflow as tf

from tpudata.estimator import CrossShardOptimizer
from tpudata.models.training.params import ModelParams
from tpudata.models.training.replicas import count_replicas, sum_over_replicas
from tpudata.models.training.schedule import SCHEDULES, learning_rate_at
from tpudata.models.training.update_rules import AdamW, Lars

_v1 = tf.compat.v1
OPTIMIZERS = ("adam", "momentum", "sgd", "lars")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingParams(ModelParams):
    """Params of training, which all bundled models have.

    Attributes:
        optimizer: "adam", "momentum", "sgd" or "lars".
        learning_rate: learning rate after warm-up and before decay.
        momentum: momentum of "momentum" and "lars".
        beta1, beta2: decays of the moving means of "adam".
        trust_coefficient: trust coefficient of "lars".
        weight_decay: weight decay of kernels and embeddings; biases and normalization do not decay. "adam" subtracts this share of
            the weights, times the learning rate, at each step; other optimizers add this share of the weights to the gradient.
        gradient_clip: maximum global norm of the gradients, summed over the replicas; None for no limit.
        schedule: "constant", "cosine" or "step".
        warmup_steps: number of steps in which the learning rate rises to `learning_rate`.
        decay_steps: step at which "cosine" ends, usually the last one of training.
        end_learning_rate: learning rate at the end of "cosine".
        decay_boundaries: steps at which "step" multiplies the learning rate by `decay_factor`.
        decay_factor: factor of "step".
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    trust_coefficient: float = 1e-3
    weight_decay: float = 0.0
    gradient_clip: float | None = None
    schedule: str = "constant"
    warmup_steps: int = 0
    decay_steps: int | None = None
    end_learning_rate: float = 0.0
    decay_boundaries: tuple[int, ...] = ()
    decay_factor: float = 0.1

    def __post_init__(self) -> None:
        self.require_one_of("optimizer", OPTIMIZERS)
        self.require_one_of("schedule", SCHEDULES)
        for name in ("learning_rate", "trust_coefficient", "decay_factor"):
            self.require(name, getattr(self, name) > 0, "positive")
        for name in ("momentum", "beta1", "beta2"):
            self.require(name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        for name in ("weight_decay", "end_learning_rate", "warmup_steps"):
            self.require(name, getattr(self, name) >= 0, "0 or more")
        self.require("gradient_clip", self.gradient_clip is None or self.gradient_clip > 0, "None or positive")
        decays_after_warmup = self.decay_steps is not None and self.decay_steps > self.warmup_steps
        self.require(
            "decay_steps",
            self.schedule != "cosine" or decays_after_warmup,
            "the step at which cosine ends, after warm-up",
        )
        is_ascending = (
            list(self.decay_boundaries) == sorted({*self.decay_boundaries})
            and min(self.decay_boundaries, default=1) > 0
        )
        self.require("decay_boundaries", is_ascending, "ascending steps of 1 or more")
        self.require(
            "decay_boundaries", self.schedule != "step" or bool(self.decay_boundaries), "given with the schedule step"
        )


def make_train_op(loss: tf.Tensor, params: TrainingParams) -> tf.Operation:
    """Return the operation of a training step: gradients, clipping, the optimizer, and the updates of UPDATE_OPS.

    Args:
        loss: float32 scalar, the loss of this replica: a mean over rows, without weight decay.
        params: params of training.
    """
    step = _v1.train.get_or_create_global_step()
    rate = learning_rate_at(
        step,
        peak=params.learning_rate,
        schedule=params.schedule,
        warmup_steps=params.warmup_steps,
        decay_steps=params.decay_steps,
        end=params.end_learning_rate,
        boundaries=params.decay_boundaries,
        factor=params.decay_factor,
    )
    optimizer = CrossShardOptimizer(_make_optimizer(params, rate))
    # The gradient of an embedding is an IndexedSlices, and the code below takes tensors.
    grads_and_vars = [(tf.convert_to_tensor(g), v) for g, v in optimizer.compute_gradients(loss) if g is not None]
    if params.gradient_clip is not None:
        grads_and_vars = _clip(grads_and_vars, params.gradient_clip)
    if params.weight_decay and params.optimizer in ("momentum", "sgd"):
        # "adam" and "lars" decay in their own updates. The optimizer sums the gradients of the replicas, so each replica adds its
        # part of the decay.
        replica_decay = params.weight_decay / count_replicas()
        grads_and_vars = [(g + replica_decay * v if has_decay(v) else g, v) for g, v in grads_and_vars]
    updates = _v1.get_collection(_v1.GraphKeys.UPDATE_OPS)
    return tf.group(optimizer.apply_gradients(grads_and_vars, global_step=step), *updates)


def has_decay(variable: tf.Variable) -> bool:
    """Return whether weight decay applies to a variable: to matrices and kernels, but not to biases and normalization."""
    return len(variable.shape) > 1


def _make_optimizer(params: TrainingParams, rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
    """Return the optimizer of the params with a learning rate; "momentum" and "sgd" leave weight decay to `make_train_op`."""
    if params.optimizer == "adam":
        if params.weight_decay:
            return AdamW(rate, params.weight_decay, has_decay, params.beta1, params.beta2)
        return _v1.train.AdamOptimizer(rate, params.beta1, params.beta2)
    if params.optimizer == "momentum":
        return _v1.train.MomentumOptimizer(rate, params.momentum)
    if params.optimizer == "lars":
        return Lars(rate, params.momentum, params.weight_decay, params.trust_coefficient, has_decay)
    return _v1.train.GradientDescentOptimizer(rate)


def _clip(grads_and_vars: list[tuple[tf.Tensor, tf.Variable]], max_norm: float) -> list[tuple[tf.Tensor, tf.Variable]]:
    """Scale all gradients by one factor, so that the joint norm of their sums over the replicas is at most `max_norm`."""
    # The norm is of the sums over replicas, so that N replicas clip as one replica does.
    norm = tf.linalg.global_norm(sum_over_replicas([gradient for gradient, _ in grads_and_vars]))
    scale = max_norm / tf.maximum(norm, max_norm)
    return [(gradient * scale, variable) for gradient, variable in grads_and_vars]
