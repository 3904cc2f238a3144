"""What a training run is asked to do: the flags of `tpudata train`, checked once at the door."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tpudata.errors import UsageError
from tpudata.flags import FlagParser, height_width, positive_int, suggestion
from tpudata.models import model_names

MODES = ("train", "eval", "train_and_eval", "predict")


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """The full configuration of a run of `tpudata train`.

    Attributes:
        model: name of a bundled model, or `package.module:function` for a model_fn of one's own.
        data: the dataset's folder.
        model_dir: where checkpoints, summaries and the records of the run go; training resumes from its latest checkpoint.
        mode: one of `MODES`. `eval` and `predict` use the latest checkpoint in `model_dir`.
        train_split: the split that is trained on.
        eval_split: the split that is evaluated, and predicted in mode `predict`.
        train_steps: the global step at which training ends.
        batch_size: global batch size of training.
        eval_batch_size: global batch size of evaluation and prediction; None for `batch_size`.
        learning_rate: passed to the model; None leaves it to the model.
        iterations_per_loop: training steps on the device between two looks at the host.
        save_checkpoints_steps: steps between checkpoints; None saves every ten minutes. The last step is always saved.
        seed: of the initial weights, dropout and the order of the records.
        use_tpu: run on a TPU: the one that `master` or `tpu_name` names, else that of the environment variable TPU_NAME, else this
            machine's own.
        master: the TPU's address (grpc://HOST:PORT) or name; empty for none.
        tpu_name: the TPU's name.
        tpu_zone: the zone that a name is looked up in; None for gcloud's.
        gcp_project: the Google Cloud project that a name is looked up in; None for gcloud's.
        rehearse: list what a TPU of 8 cores would refuse of the steps that the mode runs, and run none.
        image_size: (height, width) that images are resized to; needed where their sizes vary.
        num_predictions: in mode `predict`, how many records to predict; None for the whole split.
        output: in mode `predict`, the JSON Lines file to write; None for `predictions.jsonl` in `model_dir`.

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
    iterations_per_loop: int = 100
    save_checkpoints_steps: int | None = None
    seed: int = 0
    use_tpu: bool = False
    master: str = ""
    tpu_name: str | None = None
    tpu_zone: str | None = None
    gcp_project: str | None = None
    rehearse: bool = False
    image_size: tuple[int, int] | None = None
    num_predictions: int | None = None
    output: str | None = None

    def __post_init__(self) -> None:
        for name in ("model", "data", "model_dir", "train_split", "eval_split"):
            if not getattr(self, name).strip():
                raise UsageError(f"{_flag(name)} is empty")
        if self.mode not in MODES:
            raise UsageError(f"--mode {self.mode!r}{suggestion(self.mode, MODES)}; allowed are {', '.join(MODES)}")
        for name in (
            "train_steps",
            "batch_size",
            "eval_batch_size",
            "iterations_per_loop",
            "save_checkpoints_steps",
            "num_predictions",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{_flag(name)} is {value}; it is 1 or more")
        if self.learning_rate is not None and not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise UsageError(f"--learning-rate is {self.learning_rate}; it is a number above 0")
        if not 0 <= self.seed < 2**31:
            raise UsageError(f"--seed is {self.seed}; it is 0 to {2**31 - 1}")
        if self.image_size is not None and min(self.image_size) < 1:
            raise UsageError(f"--image-size is {self.image_size}; height and width are 1 or more")
        for name in ("master", "tpu_name", "tpu_zone", "gcp_project"):
            if getattr(self, name) and not self.use_tpu:
                raise UsageError(f"{_flag(name)} is of a TPU: add --use-tpu to run on it, or leave {_flag(name)} out")
        if self.master and self.tpu_name:
            raise UsageError(f"--master {self.master!r} and --tpu-name {self.tpu_name!r} both name a TPU: give one")
        if self.mode != "predict":
            for name in ("num_predictions", "output"):
                if getattr(self, name) is not None:
                    raise UsageError(f"{_flag(name)} belongs to --mode predict; the mode is {self.mode}")

    @property
    def trains(self) -> bool:
        """Whether the mode trains."""
        return self.mode in ("train", "train_and_eval")

    @property
    def evaluates(self) -> bool:
        """Whether the mode evaluates."""
        return self.mode in ("eval", "train_and_eval")

    def to_json(self) -> dict[str, Any]:
        """All options as a JSON object."""
        return dataclasses.asdict(self)


def parse_options(argv: Sequence[str], prog: str = "tpudata train") -> TrainOptions:
    """Parses the flags of `tpudata train`.

    Args:
        argv: the flags.
        prog: the command as the person typed it, for messages.

    Raises:
        UsageError: a flag is unknown or missing, or a value does not fit.
    """
    parser = FlagParser(prog, "Trains a model on a dataset, evaluates it exactly, or predicts with it.")
    parser.add_argument(
        "--model", required=True, help=f"a bundled model ({', '.join(model_names())}), or package.module:model_fn"
    )
    parser.add_argument("--data", required=True, metavar="DIR", help="the dataset's folder")
    parser.add_argument(
        "--model-dir", required=True, metavar="DIR", help="checkpoints, summaries and records of the run"
    )
    parser.add_argument("--mode", default=TrainOptions.mode, help=f"{', '.join(MODES)} (default: %(default)s)")
    parser.add_argument("--train-split", default=TrainOptions.train_split, metavar="NAME", help="default: %(default)s")
    parser.add_argument(
        "--eval-split",
        default=TrainOptions.eval_split,
        metavar="NAME",
        help="evaluated, or predicted (default: %(default)s)",
    )
    _add_numbers(parser)
    _add_devices(parser)
    parser.add_argument(
        "--image-size",
        type=height_width,
        metavar="HxW",
        help="resize images to this height and width; needed where their sizes vary",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="predict: the JSON Lines file (default: MODEL_DIR/predictions.jsonl)"
    )
    return TrainOptions(**vars(parser.parse(argv)))


def _add_devices(parser: FlagParser) -> None:
    parser.add_switch("--use-tpu", default=TrainOptions.use_tpu, help="run on a TPU (default: false)")
    parser.add_argument(
        "--master",
        default=TrainOptions.master,
        metavar="ADDRESS",
        help="the TPU's address, grpc://HOST:PORT; empty: $TPU_NAME, or this machine's TPU",
    )
    parser.add_argument("--tpu-name", metavar="NAME", help="the TPU's name, in place of its address")
    parser.add_argument("--tpu-zone", metavar="ZONE", help="where the name is looked up (default: gcloud's)")
    parser.add_argument("--gcp-project", metavar="PROJECT", help="where the name is looked up (default: gcloud's)")
    parser.add_switch(
        "--rehearse",
        default=TrainOptions.rehearse,
        help="list what a TPU would refuse, without one, and do nothing else",
    )


def _add_numbers(parser: FlagParser) -> None:
    def add(*names: str, default: int | None, help: str, type: Any = positive_int) -> None:
        shown = "" if default is None else " (default: %(default)s)"
        parser.add_argument(*names, type=type, default=default, metavar="N", help=help + shown)

    add("--train-steps", default=TrainOptions.train_steps, help="the step at which training ends")
    add("--batch-size", default=TrainOptions.batch_size, help="records in a training step")
    add(
        "--eval-batch-size",
        default=None,
        help="records in a step of evaluation or prediction (default: the batch size)",
    )
    parser.add_argument("--learning-rate", type=float, metavar="X", help="default: the model's own")
    add(
        "--iterations-per-loop",
        "--iterations",
        default=TrainOptions.iterations_per_loop,
        help="training steps on the device between two looks at the host",
    )
    add("--save-checkpoints-steps", default=None, help="steps between checkpoints (default: one every ten minutes)")
    add(
        "--seed",
        default=TrainOptions.seed,
        type=int,
        help="of the initial weights, dropout and the order of the records",
    )
    add("--num-predictions", default=None, help="predict: how many records (default: the whole split)")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
