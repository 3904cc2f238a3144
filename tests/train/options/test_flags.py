"""Flags and config files become options of a training.

Most options show in no output of a short training, so tests call the parser.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpudata.errors import StorageError, UsageError
from tpudata.train.options.flags import parse_options
from tpudata.train.options.train_options import TrainOptions

REQUIRED = ["--model=mnist_cnn", "--data=d", "--model-dir=m"]


@pytest.fixture
def parse(tmp_path: Path) -> Any:
    """Function that parses the text of a config file and further flags."""

    def parsed(text: str, *flags: str) -> TrainOptions:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return parse_options([f"--config={path}", *flags])

    return parsed


def test_a_config_file_alone_sets_all_options(parse: Any) -> None:
    options = parse(
        "model: char_lstm\ndata: d\nmodel-dir: m\ntrain_steps: 7\nlearning-rate: 4e-3\nimage-size: 6x4\nuse-tpu: no\n"
        "eval_batch_size: null\nparams:\n  hidden-units: 512\n  decay: 1e-2\n  sizes: [1, 2]\n  clip: null\n"
    )
    assert options == TrainOptions(
        model="char_lstm",
        data="d",
        model_dir="m",
        train_steps=7,
        learning_rate=0.004,
        image_size=(6, 4),
        params={"hidden_units": 512, "decay": 0.01, "sizes": [1, 2], "clip": None},
    )


def test_flags_override_the_file_and_the_file_overrides_defaults(parse: Any) -> None:
    text = "model: a.b:c\ndata: d\nmodel_dir: m\nbatch_size: 8\nseed: 5\nuse_tpu: true\nparams: {a: 1, b: x}\n"
    options = parse(text, "--batch-size=9", "--no-use-tpu", "--param", "b=[2, 3]", "--param=c=off")
    assert (options.batch_size, options.seed, options.use_tpu, options.train_steps) == (9, 5, False, 1000)
    assert options.params == {"a": 1, "b": [2, 3], "c": False}


def test_merges_pad_of_the_file_and_of_flags(parse: Any) -> None:
    text = 'model: a.b:c\ndata: d\nmodel_dir: m\npad: {"image/object/*": 100, caption: 5}\n'
    assert parse(text).pad == {"image/object/*": 100, "caption": 5}
    assert parse(text, "--pad=caption=7", "--pad", "a=b=3").pad == {"image/object/*": 100, "caption": 7, "a=b": 3}
    for value in ("3", "[a]", "{a: x}", "{a: 0}", "{3: 3}", "{a: true}"):
        with pytest.raises(UsageError, match="pad must be a mapping from names to whole numbers of 1 or more"):
            parse(f"{text.partition('pad')[0]}pad: {value}\n")


@pytest.mark.parametrize(
    ("text", "flag", "rate", "params"),
    [
        ("learning_rate: 0.1", "--learning-rate=0.2", 0.2, {}),
        ("learning_rate: 0.1", "--param=learning_rate=0.2", None, {"learning_rate": 0.2}),
        ("params: {learning_rate: 0.1}", "--learning-rate=0.2", 0.2, {}),
        ("params: {learning_rate: 0.1}", "--param=learning-rate=0.2", None, {"learning_rate": 0.2}),
    ],
)
def test_a_learning_rate_flag_overrides_the_file_under_either_name(
    parse: Any, text: str, flag: str, rate: float | None, params: dict[str, Any]
) -> None:
    options = parse(text, *REQUIRED, flag)
    assert (options.learning_rate, options.params) == (rate, params)


def test_rejects_a_learning_rate_under_both_names() -> None:
    with pytest.raises(UsageError, match="Pass one"):
        parse_options([*REQUIRED, "--learning-rate=0.1", "--param=learning_rate=0.2"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bach_size: 3", "run.yaml: unknown key 'bach_size'; did you mean batch_size?"),
        ("hidden_units: 3", "Put parameters of the model under params."),
        ("config: other.yaml", "unknown key 'config'"),
        ("batch_size: many", "run.yaml: batch_size must be a whole number, got 'many'."),
        ("batch-size: true", "run.yaml: batch-size must be a whole number, got true."),
        ("use_tpu: 1", "run.yaml: use_tpu must be true or false, got 1."),
        ("learning_rate: fast", "run.yaml: learning_rate must be a number, got 'fast'."),
        ("data: 3", "run.yaml: data must be a text, got 3."),
        ("train_steps: null", "run.yaml: train_steps must be a whole number, got null."),
        ("continuous_timeout: 2020-01-01", "must be a number, got 2020-01-01."),
        ("a: &a [*a]", "run.yaml: not valid YAML: Circular reference detected."),
        ("params: {a-b: 1, a_b: 2}", "run.yaml: params: a_b occurs twice, with dashes and underscores"),
        ("params: {batch_size: 3}", "params: 'batch_size' is set by the estimator. Use --batch-size instead."),
        ("image_size: 8x", "run.yaml: image_size: '8x' is not HEIGHTxWIDTH"),
        ("batch_size: 1\nbatch-size: 2", "batch_size occurs twice, with dashes and underscores"),
        (
            "batch_size: 1\nbatch_size: 2",
            "run.yaml: not valid YAML at line 1, column 1: the key 'batch_size' occurs twice.",
        ),
        ("params: [1]", "run.yaml: params must be a mapping from names to values"),
        ("params: {day: 2020-01-01}", "run.yaml: params.day must be a finite number, a text"),
        ("params: {sizes: [1, .inf]}", "run.yaml: params.sizes must be a finite number, a text"),
        ("params: {1: 2}", "run.yaml: params: 1 cannot be the name of a parameter. Use letters, digits and _."),
        ("- a", "run.yaml: the file must be a mapping"),
        ("a: [", "run.yaml: not valid YAML at line 1"),
        ("a: !!python/object:os.x {}", "run.yaml: not valid YAML at line 1"),
        ("batch_size: 0", "--batch-size: out of range (got 0, expected a whole number of 1 or more)"),
        ("seed: !!timestamp x", "run.yaml: not valid YAML at line 1, column 7: 'x' is not of the type timestamp."),
        ("seed: !!bool x", "at line 1, column 7: 'x' is not of the type bool."),
        ('seed: !!int ""', "at line 1, column 7: '' is not of the type int."),
        ('seed: !!float ""', "at line 1, column 7: '' is not of the type float."),
        ("seed: 2001-13-45", "at line 1, column 7: '2001-13-45' is not of the type timestamp."),
        (f"seed: {'1' * 6000}", "at line 1, column 7: '1111"),
        (f"params: {{a: {'[' * 5000}{']' * 5000}}}", "at line 1, column 61: values are nested too deeply (expected at"),
        (f"params: {{a: {'[' * 60}", "values are nested too deeply (expected at most 50 levels)."),
        # Each of ten lists has the one before ten times.
        (
            "\n".join(["a0: &a0 [1]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11))]),
            "its aliases stand for too many values (expected at most 100,000).",
        ),
        (f"learning_rate: 1{'0' * 400}", "run.yaml: learning_rate must be a number"),
        (f"data: [{', '.join(['1000'] * 1000)}]", "data must be a text, got [1000, 1000,"),
        (f"[{', '.join(['1000'] * 1000)}]", "must be a mapping, such as `model: mnist_cnn`, got [1000"),
    ],
)
def test_reports_a_wrong_file_in_one_short_line(parse: Any, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, *REQUIRED)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("word", ["units", "=3", "a b=3"])
def test_rejects_a_param_without_a_value(word: str) -> None:
    with pytest.raises(UsageError, match="is not NAME=VALUE, such as hidden_units=512"):
        parse_options([*REQUIRED, f"--param={word}"])


def test_rejects_a_param_that_json_lacks() -> None:
    for word in (".inf", "-.inf", ".nan", "[0.5, {a: .nan}]"):
        with pytest.raises(UsageError, match="must be a finite number"):
            parse_options([*REQUIRED, f"--param=scale={word}"])


def test_a_crop_flag_overrides_the_image_size_of_the_file(parse: Any) -> None:
    options = parse("image_size: 64x64", *REQUIRED, "--crop=32")
    assert (options.crop, options.image_size) == (32, None)
    options = parse("crop: 64", *REQUIRED, "--image-size=32")
    assert (options.crop, options.image_size) == (None, (32, 32))
    for text, *flags in (("crop: 64\nimage_size: 64",), ("crop: 64", "--crop=8", "--image-size=8")):
        with pytest.raises(UsageError, match="Omit --image-size"):
            parse(text, *REQUIRED, *flags)


def test_ignores_keys_of_the_file_for_other_modes(parse: Any) -> None:
    text = "early_stop_metric: loss\nearly_stop_patience: 2\nsave_checkpoints_steps: 5\n"
    text += "continuous: true\naugment: true\noutput: o\n"
    trained = parse(text, *REQUIRED)
    assert (trained.early_stop_metric, trained.early_stop_patience, trained.augment) == ("loss", 2, True)
    assert (trained.continuous, trained.output) == (False, None)
    predicted = parse(text, *REQUIRED, "--mode=predict")
    assert (predicted.output, predicted.early_stop_metric, predicted.augment) == ("o", None, False)
    assert parse(f"{text}mode: eval", *REQUIRED).continuous
    # A flag is checked against the mode.
    with pytest.raises(UsageError, match=r"--augment requires --mode train or train_and_eval \(got predict\)"):
        parse(text, *REQUIRED, "--mode=predict", "--augment")


def test_an_empty_file_sets_nothing_and_missing_flags_are_named(parse: Any) -> None:
    assert parse("# nothing\n", *REQUIRED) == TrainOptions(model="mnist_cnn", data="d", model_dir="m")
    with pytest.raises(UsageError, match=r"missing: --data, --model-dir\. Pass them as flags, or as keys in the file"):
        parse("model: mnist_cnn\n")


def test_rejects_an_empty_or_missing_config_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--config is empty"):
        parse_options([*REQUIRED, "--config="])
    with pytest.raises(StorageError, match=r"nothing\.yaml"):
        parse_options([*REQUIRED, f"--config={tmp_path / 'nothing.yaml'}"])
