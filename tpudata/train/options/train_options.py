"""Options of a training run, checked once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

from tpudata.console.nearest import did_you_mean
from tpudata.devices.tpu_compiler.compiler import EFFORTS
from tpudata.errors import UsageError

MODES = ("train", "eval", "train_and_eval", "predict", "export")
GOALS = ("min", "max")
MIXES = ("mixup", "cutmix")
BEST = "best"
CLUSTERS = ("slurm", "slurm-evaluator")
# Modes that use an option; options not listed are used by all modes.
MODES_OF = {
    "augment": ("train", "train_and_eval"),
    "mix": ("train", "train_and_eval"),
    "profile": ("train", "train_and_eval"),
    "num_predictions": ("predict",),
    "prompt": ("predict",),
    "cluster": ("train", "train_and_eval"),
    "allow_other_data": ("train", "train_and_eval"),
    "warm_start": ("train", "train_and_eval"),
    "checkpoint": ("eval", "predict", "export"),
    "output": ("predict", "export"),
    "continuous": ("eval",),
    "continuous_timeout": ("eval",),
    "early_stop_metric": ("train_and_eval",),
    "early_stop_patience": ("train_and_eval",),
    "early_stop_goal": ("train_and_eval",),
    "rehearse": tuple(mode for mode in MODES if mode != "export"),
    "tpu": tuple(mode for mode in MODES if mode != "export"),
}
# Params that the estimator sets, and what to use instead.
_FILLED = {"batch_size": "--batch-size", "use_tpu": "--use-tpu", "context": "another name"}


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """The full configuration of a run of `tpudata train`.

    Attributes:
        model: name of a bundled model, or `package.module:NAME` for a model_fn, or a class that makes one.
        data: folder of the dataset.
        model_dir: folder of checkpoints, summaries and records of the run; training resumes from its latest checkpoint.
        mode: one of `MODES`. `eval`, `predict` and `export` use the latest checkpoint in `model_dir`.
        train_split: split to train on.
        eval_split: split to evaluate or, in mode `predict`, to predict.
        train_steps: global step at which training ends.
        batch_size: global batch size of training.
        eval_batch_size: global batch size of evaluation and prediction; None for `batch_size`.
        learning_rate: learning rate; None for the model's default.
        params: further parameters of the model, by name.
        iterations_per_loop: training steps in one loop of the device.
        save_checkpoints_steps: steps between checkpoints; None saves every ten minutes. The last step is always saved.
        profile: "FIRST:LAST", training steps, counted from 1, to write a profile of for TensorBoard into `model_dir`.
        seed: seed of the initial weights, dropout and the order of the records.
        use_tpu: whether to run on the TPU of this machine.
        master: empty or "local", as the TPU is this machine's.
        tpu_name: None, "local", or the value of the environment variable TPU_NAME.
        tpu_zone: zone of the TPU, of old commands; it has no effect.
        gcp_project: project of the TPU, of old commands; it has no effect.
        cluster: "slurm" trains with all tasks of the Slurm job step, "slurm-evaluator" lets the last one evaluate instead; None
            reads TF_CONFIG.
        coordinator_address: HOST:PORT of the first of several processes that train together, in place of TF_CONFIG.
        num_processes: number of these processes.
        process_id: number of this one, from 0.
        rehearse: whether to list what a TPU would reject in the mode's steps instead of running them.
        tpu: name of the TPU to rehearse for, such as "v5e-8", whose own compiler compiles the steps; None for any of 8 cores.
        tpu_effort: "quick" or "full", the effort of that compiler; None for "quick".
        feeding: rate of feeding to compare the compiled steps with: the file of `tpudata bench --json`, or records a second.
        json: whether the rehearsal prints one JSON object instead of a table.
        image_size: (height, width) to resize images to; required if their sizes vary, unless they are cropped.
        crop: side of square crops in pixels: random crops in training, centre crops otherwise.
        augment: whether training applies `tpudata.RandAugment()`.
        mix: "mixup" or "cutmix" mixes each image with another one in training, and their labels.
        sequence_length: length to pad token ids to; required if their number varies.
        truncate: whether to cut longer sequences of token ids instead of raising an error.
        pad: number of entries to which lists are padded, by the name of a feature or a pattern for several.
        num_predictions: in mode `predict`, the number of records to predict; None for the whole split. With a prompt, the number
            of its continuations; None for one.
        prompt: in mode `predict`, a text to continue instead of predicting the split's records.
        warm_start: checkpoint from which training starts while `model_dir` has none: a path, or a folder for its newest. All
            variables of the model start from it; the last layer only if it has the same size.
        allow_other_data: whether training may continue in `model_dir` on another dataset than before, from its first record on.
        checkpoint: in the modes `eval`, `predict` and `export`, the checkpoint to use: a path, a folder for its newest, or "best"
            for the one that early stopping keeps in `model_dir`; None for the newest there.
        output: in mode `predict`, the file to write: CSV if its name ends in .csv, or else JSON Lines; None for `predictions.jsonl`
            in `model_dir`. In mode `export`, the folder in which to write SavedModels; None for `export` in `model_dir`.
        continuous: in mode `eval`, whether to evaluate each checkpoint as it appears, up to the one of `train_steps`.
        continuous_timeout: seconds without a new checkpoint after which `continuous` ends; None for 3600.
        early_stop_metric: in mode `train_and_eval`, metric to evaluate at every checkpoint; the best checkpoint is kept, and
            training ends when the metric stops improving.
        early_stop_patience: number of evaluations without improvement after which training ends; None for 3.
        early_stop_goal: "min" or "max", the better direction; None for "max" if the metric's name contains accuracy, otherwise
            "min".

    Raises:
        UsageError: a value is not allowed, or the mode does not use it.
    """

    model: str
    data: str
    model_dir: str
    mode: str = "train_and_eval"
    train_split: str = "train"
    eval_split: str = "validation"
    train_steps: int = 1000
    batch_size: int = 128
    eval_batch_size: int | None = None
    learning_rate: float | None = None
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    iterations_per_loop: int = 100
    save_checkpoints_steps: int | None = None
    profile: str | None = None
    seed: int = 0
    use_tpu: bool = False
    master: str = ""
    tpu_name: str | None = None
    tpu_zone: str | None = None
    gcp_project: str | None = None
    cluster: str | None = None
    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    rehearse: bool = False
    tpu: str | None = None
    tpu_effort: str | None = None
    feeding: str | None = None
    json: bool = False
    image_size: tuple[int, int] | None = None
    crop: int | None = None
    augment: bool = False
    mix: str | None = None
    sequence_length: int | None = None
    truncate: bool = False
    pad: Mapping[str, int] = dataclasses.field(default_factory=dict)
    num_predictions: int | None = None
    prompt: str | None = None
    warm_start: str | None = None
    allow_other_data: bool = False
    checkpoint: str | None = None
    output: str | None = None
    continuous: bool = False
    continuous_timeout: float | None = None
    early_stop_metric: str | None = None
    early_stop_patience: int | None = None
    early_stop_goal: str | None = None

    def __post_init__(self) -> None:
        for name in ("model", "data", "model_dir", "train_split", "eval_split", "warm_start", "checkpoint", "output"):
            text = getattr(self, name)
            if text is not None and not text.strip():
                raise UsageError(f"{_flag(name)} is empty. Pass a value.")
        self._require_one_of("mode", MODES)
        self._require_one_of("mix", MIXES)
        self._require_one_of("cluster", CLUSTERS)
        self._require_one_of("early_stop_goal", GOALS)
        self._require_one_of("tpu_effort", EFFORTS)
        for name in (
            "train_steps",
            "batch_size",
            "eval_batch_size",
            "iterations_per_loop",
            "save_checkpoints_steps",
            "crop",
            "sequence_length",
            "num_predictions",
            "early_stop_patience",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{_flag(name)} must be 1 or more, got {value}.")
        _ = self.profile_steps
        if self.learning_rate is not None and not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise UsageError(f"--learning-rate must be a number above 0, got {self.learning_rate}.")
        if self.learning_rate is not None and "learning_rate" in self.params:
            raise UsageError(
                f"--learning-rate is {self.learning_rate}, and params has learning_rate={self.params['learning_rate']}. Pass one."
            )
        for name, instead in _FILLED.items():
            if name in self.params:
                raise UsageError(f"params: {name!r} is set by the estimator. Use {instead} instead.")
        if not 0 <= self.seed < 2**31:
            raise UsageError(f"--seed must be 0 to {2**31 - 1}, got {self.seed}.")
        if self.image_size is not None and min(self.image_size) < 1:
            raise UsageError(f"--image-size must be 1 or more in height and width, got {self.image_size}.")
        if self.image_size is not None and self.crop is not None:
            raise UsageError(f"--crop {self.crop} sets the size of images. Omit --image-size.")
        if self.cluster is not None and self.use_tpu:
            raise UsageError("--cluster is for GPUs and CPUs. Omit it, or omit --use-tpu.")
        numbers = (self.coordinator_address, self.num_processes, self.process_id)
        if None in numbers and any(number is not None for number in numbers):
            raise UsageError(
                "--coordinator-address, --num-processes and --process-id belong together (got some of them). Pass all three."
            )
        if self.cluster is not None and self.process_id is not None:
            raise UsageError("--cluster and --process-id both give this process its number. Pass one of them.")
        if self.truncate and self.sequence_length is None:
            raise UsageError("--truncate requires --sequence-length. Pass it, too.")
        for name in ("master", "tpu_name", "tpu_zone", "gcp_project"):
            if getattr(self, name) and not self.use_tpu:
                raise UsageError(f"{_flag(name)} requires --use-tpu. Pass it, too, or omit {_flag(name)}.")
        if self.master and self.tpu_name:
            raise UsageError(f"--master {self.master!r} and --tpu-name {self.tpu_name!r} both name a TPU. Pass one.")
        self._check_mode()
        self._check_rehearsal()
        self._check_continuous()
        self._check_early_stop()

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """The first and the last step to profile."""
        if self.profile is None:
            return None
        first, colon, last = self.profile.partition(":")
        if not (colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= self.train_steps):
            allowed = f"FIRST:LAST, steps from 1 to {self.train_steps}"
            raise UsageError(
                f"--profile must be {allowed}, got {self.profile!r}. Pass, for example, --profile 100:105."
            )
        return int(first), int(last)

    def _require_one_of(self, name: str, allowed: Collection[str]) -> None:
        value = getattr(self, name)
        if value is not None and value not in allowed:
            hint = did_you_mean(value, allowed)
            raise UsageError(f"{_flag(name)} must be one of {', '.join(allowed)}, got {value!r}.{hint}")

    def _check_mode(self) -> None:
        """Check that no option is set that the mode ignores."""
        for name, modes in MODES_OF.items():
            value = getattr(self, name)
            if value is not None and value is not False and self.mode not in modes:
                raise UsageError(
                    f"{_flag(name)} requires --mode {' or '.join(modes)} (got {self.mode}). Omit one of them."
                )

    def _check_rehearsal(self) -> None:
        for name, other in (("tpu", "rehearse"), ("json", "rehearse"), ("tpu_effort", "tpu"), ("feeding", "tpu")):
            if getattr(self, name) and not getattr(self, other):
                raise UsageError(f"{_flag(name)} requires {_flag(other)}. Pass it, too.")

    def _check_continuous(self) -> None:
        timeout = self.continuous_timeout
        if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
            raise UsageError(f"--continuous-timeout must be a number of seconds above 0, got {timeout}.")
        if timeout is not None and not self.continuous:
            raise UsageError("--continuous-timeout requires --continuous. Pass it, too.")
        if self.continuous and self.checkpoint is not None:
            raise UsageError("--continuous evaluates each checkpoint. Omit --checkpoint.")

    def _check_early_stop(self) -> None:
        if self.early_stop_metric is None:
            for name in ("early_stop_patience", "early_stop_goal"):
                if getattr(self, name) is not None:
                    raise UsageError(f"{_flag(name)} requires --early-stop-metric. Pass it, too, such as loss.")
            return
        if self.save_checkpoints_steps is None:
            raise UsageError(
                "--early-stop-metric requires --save-checkpoints-steps: each of these checkpoints is evaluated. Pass it, too."
            )

    @property
    def trains(self) -> bool:
        """Whether the mode trains."""
        return self.mode in ("train", "train_and_eval")

    @property
    def evaluates(self) -> bool:
        """Whether the mode evaluates."""
        return self.mode in ("eval", "train_and_eval")

    def to_json(self) -> dict[str, Any]:
        """Return all options as a JSON object."""
        return dataclasses.asdict(self)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
