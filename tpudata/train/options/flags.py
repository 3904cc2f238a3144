"""The flags of `tpudata train`, over those of a YAML file, over the defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tpudata.console.flags import FlagParser, flag_type, positive_int
from tpudata.console.input_flags import add_input_flags
from tpudata.devices.tpu_compiler.compiler import EFFORTS
from tpudata.models import model_names
from tpudata.train.options.config_file import PAD, PARAMS, parse_param, read_config
from tpudata.train.options.train_options import BEST, CLUSTERS, MIXES, MODES, MODES_OF, TrainOptions

_RATE = "learning_rate"


def parse_options(argv: Sequence[str], prog: str = "tpudata train") -> TrainOptions:
    """Parse the flags of `tpudata train`.

    Args:
        argv: the flags.
        prog: the command as the person typed it, for messages.

    Raises:
        UsageError: a flag or a key of the file is unknown or missing, or a value is invalid.
        StorageError: the file of `--config` cannot be read.
        MissingExtraError: `--config` or `--param` is passed, and PyYAML is not installed.
    """
    parser = new_parser(prog)
    flags = vars(parser.parse(argv))
    path, asked, pad = flags.pop("config"), dict(flags.pop("param")), dict(flags.pop(PAD))
    given: dict[str, Any] = {}
    if path is not None:
        if not path.strip():
            parser.error("--config is empty. Pass a file, or omit it")
        given = read_config(path, {field.name: str(field.type) for field in dataclasses.fields(TrainOptions)})
        flags = _over_file(parser, argv, {name: value for name, value in given.items() if name not in (PARAMS, PAD)})
    params = {**given.get(PARAMS, {}), **asked}
    _settle_rate(flags, given, params, asked)
    missing = [name for name in ("model", "data", "model_dir") if flags[name] is None]
    if missing:
        names = ", ".join("--" + name.replace("_", "-") for name in missing)
        parser.error(f"missing: {names}. Pass them as flags, or as keys in the file of --config")
    return TrainOptions(**flags, params=params, pad={**given.get(PAD, {}), **pad})


def _over_file(parser: FlagParser, argv: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return the flags over the options of a file, whose options for other modes are ignored: one file serves all modes."""
    asked = vars(parser.parse(argv))
    # A crop sets the size: a flag for one of the two overrides the other in the file.
    for one, other in (("crop", "image_size"), ("image_size", "crop")):
        if asked[one] is not None and other in given:
            given = {name: value for name, value in given.items() if name != other}
    before = {name: parser.get_default(name) for name in given}
    parser.set_defaults(**given)
    mode = parser.parse(argv).mode
    parser.set_defaults(**{name: before[name] for name in given if mode not in MODES_OF.get(name, (mode,))})
    flags = vars(parser.parse(argv))
    del flags["config"], flags["param"], flags[PAD]
    return flags


def _settle_rate(flags: dict[str, Any], given: dict[str, Any], params: dict[str, Any], asked: dict[str, Any]) -> None:
    """Let a learning rate among the flags override the file's, under either of its two names."""
    rate_is_flag = flags[_RATE] is not None and flags[_RATE] != given.get(_RATE)
    if rate_is_flag and _RATE not in asked:
        params.pop(_RATE, None)
    elif _RATE in asked and not rate_is_flag:
        flags[_RATE] = None


def new_parser(prog: str = "tpudata train") -> FlagParser:
    """Return the parser of the command's flags."""
    what = "Train a model on a dataset, evaluate it exactly, or predict with it."
    parser = FlagParser(prog, what, topics=("train/command", "reference/train", "models", "long_runs", "tpu"))
    with parser.group("the run"):
        parser.add_argument(
            "--config", metavar="FILE", help="YAML with any of these flags, and the model's parameters under params"
        )
        parser.add_argument(
            "--model",
            help=f"a bundled model ({', '.join(model_names())}), or your package.module:function or :Class",
        )
        parser.add_argument("--data", metavar="DIR", help="folder of the dataset")
        parser.add_argument(
            "--model-dir", metavar="DIR", help="folder of checkpoints, summaries and records of the run"
        )
        parser.add_argument(
            "--param",
            action="append",
            default=[],
            type=flag_type("parameter", parse_param),
            metavar="NAME=VALUE",
            help="a parameter of the model, with its value as in YAML; may be passed several times",
        )
        parser.add_argument("--mode", default=TrainOptions.mode, help=f"{', '.join(MODES)} (default: %(default)s)")
    with parser.group("steps"):
        _add_numbers(parser)
    with parser.group("input"):
        parser.add_argument(
            "--train-split",
            default=TrainOptions.train_split,
            metavar="NAME",
            help="split to train on (default: %(default)s)",
        )
        parser.add_argument(
            "--eval-split",
            default=TrainOptions.eval_split,
            metavar="NAME",
            help="split to evaluate or predict (default: %(default)s)",
        )
        _add_input(parser)
    with parser.group("devices"):
        _add_devices(parser)
    with parser.group("checkpoints"):
        parser.add_argument(
            "--warm-start",
            metavar="PATH",
            help="start with the variables of another run's checkpoint, or the newest of its folder, while --model-dir has none; "
            "the last layer starts anew if its size differs",
        )
        parser.add_switch(
            "--allow-other-data",
            default=TrainOptions.allow_other_data,
            help="continue the training in --model-dir on another dataset than before (default: false)",
        )
        parser.add_argument(
            "--checkpoint",
            metavar="PATH",
            help=f"eval, predict, export: checkpoint to use; {BEST}: the one that early stopping keeps (default: the newest)",
        )
    with parser.group("evaluation"):
        _add_evaluation(parser)
    with parser.group("prediction and export"):
        parser.add_argument(
            "--output",
            metavar="PATH",
            help="predict: file to write or replace, .csv or JSON Lines (default: MODEL_DIR/predictions.jsonl); export: folder of "
            "the exports (default: MODEL_DIR/export)",
        )
        parser.add_argument(
            "--prompt", metavar="TEXT", help="predict: text for the model to continue, in place of the split's records"
        )
        parser.add_argument(
            "--num-predictions",
            type=positive_int,
            metavar="N",
            help="predict: number of records (default: the whole split), or of continuations of the prompt (default: 1)",
        )
    with parser.group("rehearsal"):
        _add_rehearsal(parser)
    return parser


def _add_input(parser: FlagParser) -> None:
    add_input_flags(parser)
    parser.add_argument(
        "--mix", metavar="|".join(MIXES), help="training: mix each image with another one, and their labels"
    )


def _add_evaluation(parser: FlagParser) -> None:
    parser.add_switch(
        "--continuous",
        default=TrainOptions.continuous,
        help="eval: evaluate each checkpoint as it appears, up to the one of --train-steps",
    )
    parser.add_argument(
        "--continuous-timeout",
        type=float,
        metavar="SECONDS",
        help="end --continuous after this time without a new checkpoint (default: 3600)",
    )
    parser.add_argument(
        "--early-stop-metric",
        metavar="NAME",
        help="train_and_eval: evaluate every --save-checkpoints-steps, keep the best checkpoint, and end when this metric stops "
        "improving",
    )
    parser.add_argument(
        "--early-stop-patience",
        type=positive_int,
        metavar="N",
        help="number of evaluations without improvement after which training ends (default: 3)",
    )
    parser.add_argument(
        "--early-stop-goal",
        metavar="min|max",
        help="the better direction (default: max if the name contains accuracy, else min)",
    )


def _add_devices(parser: FlagParser) -> None:
    parser.add_switch("--use-tpu", default=TrainOptions.use_tpu, help="run on a TPU (default: false)")
    parser.add_argument(
        "--master",
        default=TrainOptions.master,
        metavar="ADDRESS",
        help="local, for this machine's TPU, which is the default: programs run on the machine of their TPU",
    )
    parser.add_argument("--tpu-name", metavar="NAME", help="name of this machine's TPU, as in $TPU_NAME")
    parser.add_argument("--tpu-zone", metavar="ZONE", help="has no effect: the TPU is this machine's")
    parser.add_argument("--gcp-project", metavar="PROJECT", help="has no effect: the TPU is this machine's")
    parser.add_argument(
        "--cluster",
        metavar="|".join(CLUSTERS),
        help="train with all tasks of the Slurm job step, or let the last one evaluate (default: the cluster of TF_CONFIG, if set)",
    )
    parser.add_argument(
        "--coordinator-address",
        metavar="HOST:PORT",
        help="train with several processes, which meet at this address of the first; started by the same command in each, but for "
        "--process-id",
    )
    parser.add_argument("--num-processes", type=positive_int, metavar="N", help="number of these processes")
    parser.add_argument("--process-id", type=int, metavar="N", help="number of this process, from 0")


def _add_rehearsal(parser: FlagParser) -> None:
    parser.add_switch(
        "--rehearse",
        default=TrainOptions.rehearse,
        help="list what a TPU would reject, without using one, and do nothing else",
    )
    parser.add_argument(
        "--tpu",
        metavar="NAME",
        help="rehearsal: compile for this TPU, such as v5e-8, v4-8, v5p-16 or v6e-4, by its own compiler, and print the memory, "
        "the least time of a step and the records a second to feed (default: for any, by this machine's compiler)",
    )
    parser.add_argument(
        "--tpu-effort",
        metavar="|".join(EFFORTS),
        help="rehearsal: full compiles as for a run on the TPU, which may take many minutes (default: quick)",
    )
    parser.add_argument(
        "--feeding",
        metavar="FILE|RATE",
        help="rehearsal: compare with a measured rate: the file of tpudata bench --json, or records a second",
    )
    parser.add_switch("--json", default=TrainOptions.json, help="rehearsal: print one JSON object, for programs")


def _add_numbers(parser: FlagParser) -> None:
    def add(*names: str, default: int | None, help: str, type: Any = positive_int) -> None:
        shown = "" if default is None else " (default: %(default)s)"
        parser.add_argument(*names, type=type, default=default, metavar="N", help=help + shown)

    add("--train-steps", default=TrainOptions.train_steps, help="step at which training ends")
    add("--batch-size", default=TrainOptions.batch_size, help="records in a training step")
    add(
        "--eval-batch-size",
        default=None,
        help="records in a step of evaluation or prediction (default: the batch size)",
    )
    parser.add_argument(
        "--learning-rate", type=float, metavar="X", help="learning rate after warm-up (default: the model's)"
    )
    add(
        "--iterations-per-loop",
        "--iterations",
        default=TrainOptions.iterations_per_loop,
        help="training steps in one loop of the device",
    )
    add("--save-checkpoints-steps", default=None, help="steps between checkpoints (default: one every ten minutes)")
    parser.add_argument(
        "--profile",
        metavar="FIRST:LAST",
        help="write a profile of these training steps for TensorBoard into the model's folder",
    )
    add(
        "--seed",
        default=TrainOptions.seed,
        type=int,
        help="seed of the initial weights, dropout and the order of the records",
    )
