"""Options of a training: their flags, defaults and rules.

Most options show in no output of a short training, so tests call the parser.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from tpudata.console.option import list_options
from tpudata.errors import UsageError
from tpudata.train.options.flags import parse_options
from tpudata.train.options.train_options import TrainOptions

REQUIRED = ["--model=mnist_cnn", "--data=d", "--model-dir=m"]


def test_flags_and_options_have_the_same_defaults() -> None:
    assert parse_options(REQUIRED) == TrainOptions(model="mnist_cnn", data="d", model_dir="m")


def test_every_option_has_a_flag() -> None:
    given: dict[str, Any] = {
        "model": "a.b:c",
        "data": "x",
        "model_dir": "y",
        "mode": "predict",
        "train_split": "t",
        "eval_split": "e",
        "train_steps": 7,
        "batch_size": 8,
        "eval_batch_size": 9,
        "learning_rate": 0.5,
        "params": {"units": 3},
        "iterations_per_loop": 3,
        "save_checkpoints_steps": 4,
        "profile": None,
        "seed": 5,
        "use_tpu": True,
        "master": "",
        "tpu_name": "t",
        "tpu_zone": "z",
        "gcp_project": "p",
        "cluster": None,
        "coordinator_address": "a:1",
        "num_processes": 3,
        "process_id": 2,
        "rehearse": True,
        "tpu": "v5e-8",
        "tpu_effort": "full",
        "feeding": "1000",
        "json": True,
        "warm_start": None,
        "allow_other_data": False,
        "image_size": (6, 11),
        "crop": None,
        "augment": False,
        "mix": None,
        "sequence_length": 12,
        "truncate": True,
        "pad": {"caption": 5},
        "num_predictions": 2,
        "prompt": "p",
        "checkpoint": "best",
        "output": "o.jsonl",
        "continuous": False,
        "continuous_timeout": None,
        "early_stop_metric": None,
        "early_stop_patience": None,
        "early_stop_goal": None,
    }
    assert set(given) == {field.name for field in dataclasses.fields(TrainOptions)}
    texts = {**given, "image_size": "6x11"}
    del texts["params"], texts["pad"]
    words = [f"--{name}={value}" for name, value in texts.items() if value is not None]
    words += ["--param=units=3", "--pad=caption=5"]
    assert parse_options(words) == TrainOptions(**given)


def test_cluster_accepts_slurm_and_rejects_other_names_and_modes() -> None:
    words = ["--model=m", "--data=x", "--model-dir=y"]
    assert parse_options([*words, "--cluster=slurm-evaluator"]).cluster == "slurm-evaluator"
    with pytest.raises(UsageError, match=r"--cluster: .* \(got 'slrm', expected slurm or .*\); did you mean slurm\?"):
        parse_options([*words, "--cluster=slrm"])
    with pytest.raises(UsageError, match="--cluster is for GPUs and CPUs"):
        parse_options([*words, "--cluster=slurm", "--use-tpu"])
    with pytest.raises(UsageError, match="--cluster requires --mode train or train_and_eval"):
        parse_options([*words, "--cluster=slurm", "--mode=eval"])


def test_process_flags_require_each_other() -> None:
    words = ["--model=m", "--data=x", "--model-dir=y", "--coordinator-address=a:1", "--num-processes=2"]
    assert parse_options([*words, "--process-id=0"]).process_id == 0
    with pytest.raises(UsageError, match=r"--coordinator-address, --num-processes and --process-id belong together"):
        parse_options(words)
    with pytest.raises(UsageError, match="--cluster and --process-id both give this process its number"):
        parse_options([*words, "--process-id=1", "--cluster=slurm"])


@pytest.mark.parametrize("text", ["", "3", "3:", ":3", "0:3", "4:3", "1:11", "1-3", "a:b"])
def test_rejects_profiles_outside_the_training_steps(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--profile must be FIRST:LAST, steps from 1 to 10, got '.*'"):
        parse_options([*REQUIRED, "--train-steps=10", f"--profile={text}"])


def test_profile_gives_the_first_and_last_step() -> None:
    assert parse_options([*REQUIRED, "--profile=3:5"]).profile_steps == (3, 5)
    assert parse_options(REQUIRED).profile_steps is None


def test_accepts_the_flags_of_the_original_programs() -> None:
    options = parse_options([*REQUIRED, "--use_tpu=false", "--master=", "--iterations=50", "--train_steps=10"])
    assert (options.use_tpu, options.master, options.iterations_per_loop, options.train_steps) == (False, "", 50, 10)


def test_tpu_flags_accept_dashes_and_underscores() -> None:
    flags = {"use_tpu": "true", "tpu_name": "my-tpu", "tpu_zone": "us-central1-b", "gcp_project": "my-project"}
    underscored = parse_options([*REQUIRED, *(f"--{name}={value}" for name, value in flags.items())])
    dashed = parse_options([*REQUIRED, *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items())])
    assert underscored == dashed
    assert (dashed.use_tpu, dashed.tpu_name, dashed.tpu_zone, dashed.gcp_project) == (True, *list(flags.values())[1:])
    assert parse_options([*REQUIRED, "--use-tpu", "--master=grpc://h:8470"]).master == "grpc://h:8470"


@pytest.mark.parametrize(("text", "size"), [("224", (224, 224)), ("32x64", (32, 64)), ("8X9", (8, 9))])
def test_image_size_accepts_one_or_two_sides(text: str, size: tuple[int, int]) -> None:
    assert parse_options([*REQUIRED, "--image-size", text]).image_size == size


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--mode=evaluate"],
            "(got 'evaluate', expected train, eval, train_and_eval, predict, export); did you mean eval?",
        ),
        (["--mode=test"], "--mode: unknown value (got 'test', expected train, eval, train_and_eval, predict, export)"),
        (["--batch-size=0"], "'0' is not a whole number of 1 or more"),
        (["--train-steps=1.5"], "'1.5' is not a whole number"),
        (["--learning-rate=0"], "argument --learning-rate: '0' is not a number above 0"),
        (["--learning-rate=nan"], "argument --learning-rate: 'nan' is not a number above 0"),
        (["--learning-rate=fast"], "--learning-rate"),
        (["--seed=-1"], "--seed: out of range (got -1, expected 0 to 2,147,483,647)"),
        (["--image-size=8x"], "'8x' is not HEIGHTxWIDTH"),
        (["--image-size=-8"], "'-8' is not HEIGHTxWIDTH"),
        (["--image-size=0x8"], "--image-size must be 1 or more in height and width"),
        (["--master=grpc://10.0.0.2:8470"], "--master requires --use-tpu."),
        (["--tpu_name=t", "--use_tpu=false"], "--tpu-name requires --use-tpu."),
        (["--tpu-zone=z"], "--tpu-zone requires --use-tpu."),
        (["--gcp-project=p"], "--gcp-project requires --use-tpu."),
        (["--use-tpu", "--master=m", "--tpu-name=t"], "both name a TPU. Pass one."),
        (["--model="], "--model is empty"),
        (["--output=x"], "--output requires --mode predict or export (got train_and_eval)."),
        (["--num-predictions=3", "--mode=eval"], "--num-predictions requires --mode predict"),
        (["--output=x", "--mode=eval"], "--output requires --mode predict or export"),
        (["--continuous"], "--continuous requires --mode eval (got train_and_eval)."),
        (
            ["--mode=eval", "--continuous", "--continuous-timeout=0"],
            "argument --continuous-timeout: '0' is not a number above 0",
        ),
        (["--mode=eval", "--continuous-timeout=5"], "--continuous-timeout requires --continuous."),
        (["--continuous-timeout=5"], "--continuous-timeout requires --mode eval"),
        (["--mode=eval", "--continuous", "--checkpoint=best"], "Omit --checkpoint."),
        (["--checkpoint=best"], "--checkpoint requires --mode eval or predict or export"),
        (["--checkpoint=", "--mode=eval"], "--checkpoint is empty"),
        (["--output=", "--mode=predict"], "--output is empty"),
        (["--crop=8", "--image-size=8"], "--crop 8 sets the size of images. Omit --image-size."),
        (["--mix=mixups"], "--mix: unknown value (got 'mixups', expected mixup or cutmix); did you mean mixup?"),
        (["--truncate"], "--truncate requires --sequence-length."),
        (["--param=use_tpu=true"], "params: 'use_tpu' is set by the estimator. Use --use-tpu instead."),
        (["--mode=export", "--rehearse"], "--rehearse requires --mode train or eval or train_and_eval or predict"),
        (["--tpu=v5e-8"], "--tpu requires --rehearse. Pass it, too, or omit --tpu."),
        (["--json"], "--json requires --rehearse."),
        (["--rehearse", "--tpu-effort=full"], "--tpu-effort requires --tpu."),
        (["--rehearse", "--feeding=10"], "--feeding requires --tpu."),
        (["--rehearse", "--tpu=v5e-8", "--tpu-effort=ful"], "(got 'ful', expected quick or full); did you mean full?"),
        (["--early-stop-metric=loss"], "requires --save-checkpoints-steps"),
        (["--early-stop-metric=loss", "--mode=train"], "--early-stop-metric requires --mode train_and_eval"),
        (
            ["--early-stop-metric=loss", "--save-checkpoints-steps=3", "--early-stop-goal=up"],
            "--early-stop-goal: unknown value (got 'up', expected min or max)",
        ),
        (["--early-stop-patience=3"], "--early-stop-patience requires --early-stop-metric"),
        (["--early-stop-patience=0"], "'0' is not a whole number"),
        (["--eval-bach-size=3"], "did you mean --eval-batch-size"),
    ],
)
def test_rejects_options_that_do_not_fit_together(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options([*REQUIRED, *words])
    assert message in str(caught.value)


@pytest.mark.parametrize("number", range(3))
def test_names_missing_flags(number: int) -> None:
    words = REQUIRED[:number] + REQUIRED[number + 1 :]
    with pytest.raises(UsageError, match=REQUIRED[number].split("=")[0]):
        parse_options(words)


@pytest.mark.parametrize(
    "name", ["train_steps", "batch_size", "eval_batch_size", "iterations_per_loop", "save_checkpoints_steps"]
)
def test_options_reject_counts_of_0(name: str) -> None:
    with pytest.raises(
        UsageError, match=rf"--{name.replace('_', '-')}: .* \(got 0, expected a whole number of 1 or more\)"
    ):
        TrainOptions(model="m", data="d", model_dir="x", **{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.0, -1, float("nan"), float("inf"), True])
def test_options_reject_learning_rates_that_are_not_above_0(value: float) -> None:
    with pytest.raises(UsageError, match=r"--learning-rate: .* expected a number above 0"):
        TrainOptions(model="m", data="d", model_dir="x", learning_rate=value)


def test_the_help_shows_the_defaults() -> None:
    options = list_options(TrainOptions)
    helps = {name: re.search(r"\(default: ([a-z_\d]+)\)", one.help) for name, one in options.items()}
    found = {name: match[1] for name, match in helps.items() if match and options[name].default is not None}
    assert found == {name: str(options[name].default) for name in found}
    assert len(found) >= 6


def test_modes_say_whether_they_train_and_evaluate() -> None:
    def does(mode: str) -> tuple[bool, bool]:
        options = TrainOptions(model="m", data="d", model_dir="x", mode=mode)
        return options.trains, options.evaluates

    assert [does(mode) for mode in ("train", "eval", "train_and_eval", "predict")] == [
        (True, False),
        (False, True),
        (True, True),
        (False, False),
    ]


def test_parses_crop_augment_and_mix() -> None:
    options = parse_options([*REQUIRED, "--crop=32", "--augment", "--mix=cutmix"])
    assert (options.crop, options.augment, options.mix) == (32, True, "cutmix")


def test_parses_early_stopping_and_continuous_evaluation() -> None:
    words = [
        "--early-stop-metric=loss",
        "--early-stop-patience=2",
        "--early-stop-goal=max",
        "--save-checkpoints-steps=5",
    ]
    options = parse_options([*REQUIRED, *words])
    continuous = ["--mode=eval", "--continuous", "--continuous-timeout=2.5"]
    assert parse_options([*REQUIRED, *continuous]).continuous_timeout == 2.5
    assert (options.early_stop_metric, options.early_stop_patience, options.early_stop_goal) == ("loss", 2, "max")
    assert parse_options([*REQUIRED, "--mode=eval", "--continuous"]).continuous
