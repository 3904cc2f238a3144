"""Options of a training run, checked once."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from tpudata.console.flags import height_width, parse_pad, positive_float, positive_int
from tpudata.console.option import (
    COUNT,
    REQUIRED,
    Bounds,
    PositiveNumber,
    Value,
    check_options,
    check_uses,
    list_options,
    option,
)
from tpudata.devices.tpu_compiler.compiler import EFFORTS
from tpudata.errors import UsageError
from tpudata.models import model_names
from tpudata.train.options.config_file import parse_param

MODES = ("train", "eval", "train_and_eval", "predict", "export")
GOALS = ("min", "max")
MIXES = ("mixup", "cutmix")
BEST = "best"
CLUSTERS = ("slurm", "slurm-evaluator")
_TRAINING = ("train", "train_and_eval")
_REHEARSED = tuple(mode for mode in MODES if mode != "export")
# Params that the estimator sets, and what to use instead.
_ESTIMATOR_PARAMS = {"batch_size": "--batch-size", "use_tpu": "--use-tpu", "context": "another name"}
_NAME, _PATH = Value("NAME"), Value("PATH")
_SEED = Value("N", int, Bounds(0, 2**31 - 1))


class Group(enum.Enum):
    """Groups of flags, in the order of the help."""

    RUN = "the run"
    STEPS = "steps"
    INPUT = "input"
    DEVICES = "devices"
    CHECKPOINTS = "checkpoints"
    EVALUATION = "evaluation"
    PREDICTION = "prediction and export"
    REHEARSAL = "rehearsal"


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """The full configuration of a run of `tpudata train`: an attribute for each flag, whose help says what it does.

    Attributes:
        image_size: (height, width).
        params: further parameters of the model, by name.
        pad: number of entries to which lists are padded, by the name of a feature or a pattern for several.

    Raises:
        UsageError: a value is not allowed, or the mode does not use it.
    """

    model: str = option(
        REQUIRED,
        Group.RUN,
        f"a bundled model ({', '.join(model_names())}), or your package.module:function or :Class",
        _NAME,
    )
    data: str = option(REQUIRED, Group.RUN, "folder of the dataset", Value("DIR"))
    model_dir: str = option(
        REQUIRED,
        Group.RUN,
        "folder of checkpoints, summaries and records of the run; training resumes from its newest checkpoint",
        Value("DIR"),
    )
    mode: str = option("train_and_eval", Group.RUN, "what to do (default: train_and_eval)", choices=MODES)
    params: Mapping[str, Any] = option(
        {},
        Group.RUN,
        "a parameter of the model, with its value as in YAML; may be passed several times",
        Value("NAME=VALUE", parse_param),
        flag="--param",
        collect=dict,
    )
    train_steps: int = option(1000, Group.STEPS, "step at which training ends (default: 1000)", COUNT)
    batch_size: int = option(128, Group.STEPS, "records in a training step, over all hosts (default: 128)", COUNT)
    eval_batch_size: int | None = option(
        None, Group.STEPS, "records in a step of evaluation or prediction (default: the batch size)", COUNT
    )
    learning_rate: float | None = option(
        None,
        Group.STEPS,
        "learning rate after warm-up (default: the model's)",
        Value("X", positive_float, PositiveNumber()),
    )
    iterations_per_loop: int = option(
        100, Group.STEPS, "training steps in one loop of the device (default: 100)", COUNT, aliases=("--iterations",)
    )
    save_checkpoints_steps: int | None = option(
        None, Group.STEPS, "steps between checkpoints (default: one every ten minutes, and the last step)", COUNT
    )
    profile: str | None = option(
        None,
        Group.STEPS,
        "write a profile of these training steps for TensorBoard into the model's folder",
        Value("FIRST:LAST"),
        modes=_TRAINING,
    )
    seed: int = option(
        0, Group.STEPS, "seed of the initial weights, dropout and the order of the records (default: 0)", _SEED
    )
    train_split: str = option("train", Group.INPUT, "split to train on (default: train)", _NAME)
    eval_split: str = option("validation", Group.INPUT, "split to evaluate or predict (default: validation)", _NAME)
    image_size: tuple[int, int] | None = option(
        None,
        Group.INPUT,
        "resize images to this height and width; needed if their sizes vary, unless they are cropped",
        Value("HxW", height_width),
    )
    crop: int | None = option(
        None,
        Group.INPUT,
        "random crops of SIZE x SIZE pixels in training, centre crops otherwise",
        Value("SIZE", positive_int, COUNT.bounds),
    )
    augment: bool = option(False, Group.INPUT, "RandAugment() in training, after the crop", modes=_TRAINING)
    sequence_length: int | None = option(
        None, Group.INPUT, "pad token ids to this length; needed if their number varies", COUNT
    )
    truncate: bool = option(False, Group.INPUT, "cut token ids that are longer", needs="sequence_length")
    pad: Mapping[str, int] = option(
        {},
        Group.INPUT,
        "pad the lists of a feature, or of a pattern such as 'image/object/*', to N entries; may be passed several times",
        Value("NAME=N", parse_pad),
        collect=dict,
    )
    mix: str | None = option(
        None,
        Group.INPUT,
        "training: mix each image with another one, and their labels",
        choices=MIXES,
        modes=_TRAINING,
    )
    use_tpu: bool = option(False, Group.DEVICES, "run on the TPU of this machine")
    master: str = option(
        "",
        Group.DEVICES,
        "local, for this machine's TPU, which is the default: programs run on the machine of their TPU",
        Value("ADDRESS"),
        needs="use_tpu",
    )
    tpu_name: str | None = option(
        None, Group.DEVICES, "name of this machine's TPU, as in $TPU_NAME", _NAME, needs="use_tpu"
    )
    tpu_zone: str | None = option(
        None, Group.DEVICES, "has no effect: the TPU is this machine's", Value("ZONE"), needs="use_tpu"
    )
    gcp_project: str | None = option(
        None, Group.DEVICES, "has no effect: the TPU is this machine's", Value("PROJECT"), needs="use_tpu"
    )
    cluster: str | None = option(
        None,
        Group.DEVICES,
        "train with all tasks of the Slurm job step, or let the last one evaluate (default: the cluster of TF_CONFIG, if set)",
        choices=CLUSTERS,
        modes=_TRAINING,
    )
    coordinator_address: str | None = option(
        None,
        Group.DEVICES,
        "train with several processes, which meet at this address of the first; started by the same command in each, but for"
        " --process-id",
        Value("HOST:PORT"),
    )
    num_processes: int | None = option(None, Group.DEVICES, "number of these processes", COUNT)
    process_id: int | None = option(None, Group.DEVICES, "index of this process, from 0", Value("N", int, Bounds(0)))
    warm_start: str | None = option(
        None,
        Group.CHECKPOINTS,
        "start with the variables of another run's checkpoint, or the newest of its folder, while --model-dir has none; the"
        " last layer starts anew if its size differs",
        _PATH,
        modes=_TRAINING,
    )
    allow_other_data: bool = option(
        False,
        Group.CHECKPOINTS,
        "continue the training in --model-dir on another dataset than before, from its first record on",
        modes=_TRAINING,
    )
    checkpoint: str | None = option(
        None,
        Group.CHECKPOINTS,
        f"eval, predict, export: checkpoint to use; {BEST}: the one that early stopping keeps (default: the newest)",
        _PATH,
        modes=("eval", "predict", "export"),
    )
    continuous: bool = option(
        False,
        Group.EVALUATION,
        "eval: evaluate each checkpoint as it appears, up to the one of --train-steps",
        modes=("eval",),
    )
    continuous_timeout: float | None = option(
        None,
        Group.EVALUATION,
        "end --continuous after this time without a new checkpoint (default: 3600)",
        Value("SECONDS", positive_float, PositiveNumber()),
        modes=("eval",),
        needs="continuous",
    )
    early_stop_metric: str | None = option(
        None,
        Group.EVALUATION,
        "train_and_eval: evaluate every --save-checkpoints-steps, keep the best checkpoint, and end when this metric stops"
        " improving",
        _NAME,
        modes=("train_and_eval",),
        needs="save_checkpoints_steps",
    )
    early_stop_patience: int | None = option(
        None,
        Group.EVALUATION,
        "number of evaluations without improvement after which training ends (default: 3)",
        COUNT,
        modes=("train_and_eval",),
        needs="early_stop_metric",
    )
    early_stop_goal: str | None = option(
        None,
        Group.EVALUATION,
        "the better direction (default: max if the name contains accuracy, else min)",
        choices=GOALS,
        modes=("train_and_eval",),
        needs="early_stop_metric",
    )
    output: str | None = option(
        None,
        Group.PREDICTION,
        "predict: file to write or replace, .csv or JSON Lines (default: MODEL_DIR/predictions.jsonl); export: folder of the"
        " exports (default: MODEL_DIR/export)",
        _PATH,
        modes=("predict", "export"),
    )
    prompt: str | None = option(
        None,
        Group.PREDICTION,
        "predict: text for the model to continue, in place of the split's records",
        Value("TEXT"),
        modes=("predict",),
    )
    num_predictions: int | None = option(
        None,
        Group.PREDICTION,
        "predict: number of records (default: the whole split), or of continuations of the prompt (default: 1)",
        COUNT,
        modes=("predict",),
    )
    rehearse: bool = option(
        False,
        Group.REHEARSAL,
        "list what a TPU would reject, without using one, and do nothing else",
        modes=_REHEARSED,
    )
    tpu: str | None = option(
        None,
        Group.REHEARSAL,
        "compile for this TPU, such as v5e-8, v4-8, v5p-16 or v6e-4, by its own compiler, and print the memory, the least time"
        " of a step and the records a second to feed (default: for any, by this machine's compiler)",
        _NAME,
        modes=_REHEARSED,
        needs="rehearse",
    )
    tpu_effort: str | None = option(
        None,
        Group.REHEARSAL,
        "full compiles as for a run on the TPU, which may take many minutes (default: quick)",
        choices=tuple(EFFORTS),
        needs="tpu",
    )
    feeding: str | None = option(
        None,
        Group.REHEARSAL,
        "compare with a measured rate: the file of tpudata bench --json, or records a second",
        Value("FILE|RATE"),
        needs="tpu",
    )
    json: bool = option(False, Group.REHEARSAL, "print one JSON object, for programs", needs="rehearse")

    def __post_init__(self) -> None:
        options = list_options(TrainOptions)
        for name in ("model", "data", "model_dir", "train_split", "eval_split", "warm_start", "checkpoint", "output"):
            text = getattr(self, name)
            if text is not None and not text.strip():
                raise UsageError(f"{options[name].flag} is empty. Pass a value.")
        check_options(self)
        check_uses(self, self.mode)
        _ = self.profile_steps  # Raises the error of a wrong --profile.
        self._check_params()
        if self.image_size is not None and min(self.image_size) < 1:
            raise UsageError(f"--image-size must be 1 or more in height and width, got {self.image_size}.")
        if self.image_size is not None and self.crop is not None:
            raise UsageError(f"--crop {self.crop} sets the size of images. Omit --image-size.")
        if self.cluster is not None and self.use_tpu:
            raise UsageError("--cluster is for GPUs and CPUs. Omit it, or omit --use-tpu.")
        process_options = (self.coordinator_address, self.num_processes, self.process_id)
        if None in process_options and process_options != (None, None, None):
            raise UsageError(
                "--coordinator-address, --num-processes and --process-id belong together (got some of them). Pass all three."
            )
        if self.cluster is not None and self.process_id is not None:
            raise UsageError("--cluster and --process-id both give this process its number. Pass one of them.")
        if self.master and self.tpu_name:
            raise UsageError(f"--master {self.master!r} and --tpu-name {self.tpu_name!r} both name a TPU. Pass one.")
        if self.continuous and self.checkpoint is not None:
            raise UsageError("--continuous evaluates each checkpoint. Omit --checkpoint.")

    def _check_params(self) -> None:
        """Raise UsageError if `params` sets what an option or the estimator sets."""
        if self.learning_rate is not None and "learning_rate" in self.params:
            raise UsageError(
                f"--learning-rate is {self.learning_rate}, and params has learning_rate={self.params['learning_rate']}. Pass one."
            )
        for name, instead in _ESTIMATOR_PARAMS.items():
            if name in self.params:
                raise UsageError(f"params: {name!r} is set by the estimator. Use {instead} instead.")

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """The first and the last step to profile; None without --profile.

        Raises:
            UsageError: --profile is not a range of the run's steps.
        """
        if self.profile is None:
            return None
        first, colon, last = self.profile.partition(":")
        if not (colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= self.train_steps):
            allowed = f"FIRST:LAST, steps from 1 to {self.train_steps}"
            raise UsageError(
                f"--profile must be {allowed}, got {self.profile!r}. Pass, for example, --profile 100:105."
            )
        return int(first), int(last)

    @property
    def trains(self) -> bool:
        """Whether the mode trains."""
        return self.mode in _TRAINING

    @property
    def evaluates(self) -> bool:
        """Whether the mode evaluates."""
        return self.mode in ("eval", "train_and_eval")

    def to_json(self) -> dict[str, Any]:
        """Return all options as a JSON object."""
        return dataclasses.asdict(self)
