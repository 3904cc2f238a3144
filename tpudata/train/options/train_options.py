"""Options of a training run, checked once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tpudata.console.nearest import suggestion
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
    "checkpoint": ("eval", "predict", "export"),
    "output": ("predict", "export"),
    "continuous": ("eval",),
    "continuous_timeout": ("eval",),
    "early_stop_metric": ("train_and_eval",),
    "early_stop_patience": ("train_and_eval",),
    "early_stop_goal": ("train_and_eval",),
    "rehearse": tuple(mode for mode in MODES if mode != "export"),
}
# Params that the estimator sets, and what to use instead.
_FILLED = {"batch_size": "--batch-size", "use_tpu": "--use-tpu", "context": "another name"}


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """The full configuration of a run of `tpudata train`.

    Attributes:
        model: name of a bundled model, or `package.module:NAME` for a model_fn, or a class that makes one.
        data: the dataset's folder.
        model_dir: where checkpoints, summaries and the records of the run go; training resumes from its latest checkpoint.
        mode: one of `MODES`. `eval`, `predict` and `export` use the latest checkpoint in `model_dir`.
        train_split: the split that is trained on.
        eval_split: the split that is evaluated, and predicted in mode `predict`.
        train_steps: the global step at which training ends.
        batch_size: global batch size of training.
        eval_batch_size: global batch size of evaluation and prediction; None for `batch_size`.
        learning_rate: passed to the model; None leaves it to the model.
        params: further parameters of the model, by name.
        iterations_per_loop: training steps on the device between two looks at the host.
        save_checkpoints_steps: steps between checkpoints; None saves every ten minutes. The last step is always saved.
        profile: "FIRST:LAST", the steps of a training, counted from 1, of which a profile for TensorBoard is written to
            `model_dir`.
        seed: of the initial weights, dropout and the order of the records.
        use_tpu: run on a TPU: the one that `master` or `tpu_name` names, else that of the environment variable TPU_NAME, else this
            machine's own.
        master: the TPU's address (grpc://HOST:PORT) or name; empty for none.
        tpu_name: the TPU's name.
        tpu_zone: the zone that a name is looked up in; None for gcloud's.
        gcp_project: the Google Cloud project that a name is looked up in; None for gcloud's.
        cluster: "slurm" trains with all tasks of the Slurm job step, "slurm-evaluator" lets the last one evaluate instead; None
            reads TF_CONFIG.
        rehearse: list what a TPU of 8 cores would reject in the mode's steps, and run none.
        image_size: (height, width) that images are resized to; required if their sizes vary, unless they are cropped.
        crop: side in pixels of the squares that images are cropped to: random windows in training, the middle otherwise.
        augment: change images at random in training, as `tpudata.RandAugment()` does.
        mix: in training, "mixup" or "cutmix" mixes each image with another one, and their labels.
        sequence_length: length that token ids are padded to; required if their number varies.
        truncate: cut token ids that are longer, instead of an error.
        num_predictions: in mode `predict`, how many records to predict; None for the whole split. With a prompt, how many
            continuations of it; None for one.
        prompt: in mode `predict`, a text to go on with, in place of the split's records.
        checkpoint: in the modes `eval`, `predict` and `export`, the checkpoint to use: a path, a folder for its newest, or "best"
            for the one that early stopping has kept in `model_dir`; None for the newest there.
        output: in mode `predict`, the file to write: CSV if its name ends in .csv, or else JSON Lines; None for `predictions.jsonl`
            in `model_dir`. In mode `export` the folder that gets the SavedModel's; None for `export` in `model_dir`.
        continuous: in mode `eval`, evaluate each checkpoint as it appears, up to that of `train_steps`.
        continuous_timeout: seconds without a new checkpoint after which `continuous` ends; None for 3600.
        early_stop_metric: in mode `train_and_eval`, evaluate at every checkpoint, keep the best one, and end training when this
            metric gets no better.
        early_stop_patience: so many evaluations without a better one end training; None for 3.
        early_stop_goal: whether "min" or "max" is better; None for "max" if the metric's name contains accuracy, otherwise "min".

    Raises:
        UsageError: a value is out of range, or does not fit the mode.
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
    rehearse: bool = False
    image_size: tuple[int, int] | None = None
    crop: int | None = None
    augment: bool = False
    mix: str | None = None
    sequence_length: int | None = None
    truncate: bool = False
    num_predictions: int | None = None
    prompt: str | None = None
    checkpoint: str | None = None
    output: str | None = None
    continuous: bool = False
    continuous_timeout: float | None = None
    early_stop_metric: str | None = None
    early_stop_patience: int | None = None
    early_stop_goal: str | None = None

    def __post_init__(self) -> None:
        for name in ("model", "data", "model_dir", "train_split", "eval_split", "checkpoint", "output"):
            text = getattr(self, name)
            if text is not None and not text.strip():
                raise UsageError(f"{_flag(name)} is empty")
        if self.mode not in MODES:
            raise UsageError(f"--mode {self.mode!r}{suggestion(self.mode, MODES)}; allowed are {', '.join(MODES)}")
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
                raise UsageError(f"{_flag(name)} is {value}; it is 1 or more")
        _ = self.profile_steps
        if self.learning_rate is not None and not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise UsageError(f"--learning-rate is {self.learning_rate}; it is a number above 0")
        if self.learning_rate is not None and "learning_rate" in self.params:
            raise UsageError(
                f"--learning-rate is {self.learning_rate}, and params has learning_rate={self.params['learning_rate']}: give one"
            )
        for name, instead in _FILLED.items():
            if name in self.params:
                raise UsageError(f"params: {name!r} is filled in for the model: give {instead} in its place")
        if not 0 <= self.seed < 2**31:
            raise UsageError(f"--seed is {self.seed}; it is 0 to {2**31 - 1}")
        if self.image_size is not None and min(self.image_size) < 1:
            raise UsageError(f"--image-size is {self.image_size}; height and width are 1 or more")
        if self.image_size is not None and self.crop is not None:
            raise UsageError(f"--crop {self.crop} has a size of its own: leave --image-size out")
        if self.mix not in (None, *MIXES):
            raise UsageError(f"--mix {self.mix!r}{suggestion(self.mix or '', MIXES)}; allowed are {', '.join(MIXES)}")
        if self.cluster not in (None, *CLUSTERS):
            raise UsageError(
                f"--cluster {self.cluster!r}{suggestion(self.cluster or '', CLUSTERS)}; allowed are {', '.join(CLUSTERS)}"
            )
        if self.cluster is not None and self.use_tpu:
            raise UsageError("--cluster is for GPUs and CPUs: omit it, or --use-tpu")
        if self.truncate and self.sequence_length is None:
            raise UsageError("--truncate cuts to a length: give --sequence-length, too")
        for name in ("master", "tpu_name", "tpu_zone", "gcp_project"):
            if getattr(self, name) and not self.use_tpu:
                raise UsageError(f"{_flag(name)} is of a TPU: add --use-tpu to run on it, or leave {_flag(name)} out")
        if self.master and self.tpu_name:
            raise UsageError(f"--master {self.master!r} and --tpu-name {self.tpu_name!r} both name a TPU: give one")
        self._check_mode()
        self._check_continuous()
        self._check_early_stop()

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """The first and the last step of which a profile is written."""
        if self.profile is None:
            return None
        first, colon, last = self.profile.partition(":")
        if not (colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= self.train_steps):
            allowed = f"FIRST:LAST, steps from 1 to {self.train_steps}"
            raise UsageError(f"--profile is {self.profile!r} (expected {allowed}). Pass, say, --profile 100:105")
        return int(first), int(last)

    def _check_mode(self) -> None:
        """Check that no option is given that the mode ignores."""
        for name, modes in MODES_OF.items():
            value = getattr(self, name)
            if value is not None and value is not False and self.mode not in modes:
                raise UsageError(f"{_flag(name)} belongs to --mode {' or '.join(modes)}; the mode is {self.mode}")

    def _check_continuous(self) -> None:
        timeout = self.continuous_timeout
        if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
            raise UsageError(f"--continuous-timeout is {timeout}; it is a number of seconds above 0")
        if timeout is not None and not self.continuous:
            raise UsageError("--continuous-timeout needs --continuous")
        if self.continuous and self.checkpoint is not None:
            raise UsageError("--continuous evaluates each checkpoint: leave --checkpoint out")

    def _check_early_stop(self) -> None:
        if self.early_stop_metric is None:
            for name in ("early_stop_patience", "early_stop_goal"):
                if getattr(self, name) is not None:
                    raise UsageError(f"{_flag(name)} needs --early-stop-metric, such as loss")
            return
        if self.early_stop_goal not in (None, *GOALS):
            raise UsageError(f"--early-stop-goal {self.early_stop_goal!r}; allowed are {', '.join(GOALS)}")
        if self.save_checkpoints_steps is None:
            raise UsageError(
                "--early-stop-metric needs --save-checkpoints-steps: each of these checkpoints is evaluated"
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
