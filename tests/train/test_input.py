"""Options of the input of `tpudata train`: crops, augmentation, mixing, padding; and data that does not match a model.

Two tests count how often a dataset is made, which no output shows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset, write_images
from tests.helpers.sequences import VOCAB_SIZE, write_sequences
from tpudata.cli import main
from tpudata.format import Feature
from tpudata.input.input_fn import InputFn
from tpudata.train.input import CheckedInput

# Its checkpoint and its predictions hold its input.
MIRROR_MODEL = """
import tensorflow as tf
from tpudata.estimator import TPUEstimatorSpec

def model_fn(features, labels, mode, params):
    v1 = tf.compat.v1
    if mode == "infer":
        return TPUEstimatorSpec(mode, predictions=dict(features))
    kept = {name: value for name, value in features.items()} | {"labels": labels}
    saved = []
    for name, value in kept.items():
        variable = v1.get_variable(f"fed/{name}", value.shape, value.dtype, v1.zeros_initializer(), trainable=False)
        saved.append(variable.assign(value))
    loss = 0 * v1.get_variable("kernel", [])
    with tf.control_dependencies(saved):
        train_op = v1.train.get_global_step().assign_add(1)
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
"""


def _train(data: Path, model_dir: Path, *flags: str, model: str = "mirror_model:model_fn") -> int:
    return main(["train", f"--model={model}", f"--data={data}", f"--model-dir={model_dir}", *flags])


@pytest.fixture(autouse=True)
def _own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mirror_model.py").write_text(MIRROR_MODEL)


def _fed(folder: Path, data: Path, *flags: str) -> dict[str, Any]:
    """Return the input of one step of training."""
    assert _train(data, folder, "--mode=train", "--train-steps=1", "--batch-size=4", *flags) == 0
    reader = tf.train.load_checkpoint(str(folder))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("fed/")]
    return {name.removeprefix("fed/"): reader.get_tensor(name) for name in names}


def _predicted(folder: Path, data: Path, *flags: str) -> list[dict[str, Any]]:
    """Return the input of prediction."""
    assert _train(data, folder, "--mode=predict", "--batch-size=4", *flags) == 0
    return [json.loads(line)["predictions"] for line in (folder / "predictions.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several sizes, red from 0 to 255 from left to right, and of several classes."""
    sizes = [(40, 60), (52, 44), (64, 48), (41, 41)]
    ramps = [np.linspace(0, 255, width).round().astype(np.uint8) for _, width in sizes]
    images = [np.zeros((*size, 3), np.uint8) for size in sizes]
    for image, ramp in zip(images, ramps, strict=True):
        image[..., 0] = ramp
        image[..., 1] = 77
    labels = {"train": [0, 1, 2, 0], "validation": [0, 1, 2, 0]}
    folder = tmp_path_factory.mktemp("photographs")
    return Path(write_images(str(folder), {"train": images, "validation": images}, labels, shape=(None, None, 3)).path)


def test_hands_on_a_checked_dataset_once_for_its_request() -> None:
    hosts = [tf.distribute.InputContext(2, host, 2) for host in range(2)]
    made = CheckedInput(lambda *request: tf.data.Dataset.range(request[-1]))
    checked = [made.make_and_keep({"batch_size": 4}, host, 3) for host in hosts]
    for params, context, start_step in (({"batch_size": 8}, hosts[0], 3), ({"batch_size": 4}, hosts[0], 0)):
        dataset = made(params, context, start_step)
        assert dataset not in checked
        assert dataset.cardinality() == start_step
    assert [made({"batch_size": 4}, host, 3) for host in hosts] == checked
    assert made({"batch_size": 4}, hosts[0], 3) not in checked


def test_makes_each_dataset_once(digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes a run resumed from a checkpoint, whose dataset begins at a later step."""
    made: list[tuple[bool, int]] = []
    batches = InputFn.batches

    def noted(input_fn: InputFn, rows: Any, start_step: int) -> Any:
        made.append((input_fn.training, start_step))
        return batches(input_fn, rows, start_step)

    monkeypatch.setattr(InputFn, "batches", noted)
    for flags in (["--mode=train", "--train-steps=1"], ["--mode=train", "--train-steps=2"], ["--mode=predict"]):
        assert _train(digits_dataset, tmp_path / "m", "--batch-size=4", *flags) == 0
    assert made == [(True, 0), (True, 1), (False, 0)]


def test_training_crops_are_random_and_others_central(photographs: Path, tmp_path: Path) -> None:
    images = _fed(tmp_path / "m", photographs, "--crop=32")["image"]
    assert images.shape == (4, 32, 32, 3)
    # Mirrored and partial windows begin and end elsewhere.
    assert len({(int(image[0, 0, 0]), int(image[0, -1, 0])) for image in images}) > 1
    for predicted in _predicted(tmp_path / "m", photographs, "--crop=32"):
        image = np.asarray(predicted["image"])
        assert image.shape == (32, 32, 3)
        np.testing.assert_allclose(image[0, 0, 0] + image[0, -1, 0], 255, atol=12)


def test_training_augments_and_mixes_images(photographs: Path, tmp_path: Path) -> None:
    for name, flags in (("mixup", ["--augment"]), ("cutmix", [])):
        mixed = _fed(tmp_path / name, photographs, "--image-size=32", f"--mix={name}", *flags)
        # All pictures have the same green, so a mix has it, too.
        assert (mixed["image"][..., 1] != 77).any() == bool(flags)
        assert mixed["labels"].shape == (4, 10)
        np.testing.assert_allclose(mixed["labels"].sum(axis=1), 1, rtol=1e-5)
        assert ((mixed["labels"] > 0) & (mixed["labels"] < 1)).any()


def test_a_resnet_trains_on_augmented_crops(photographs: Path, tmp_path: Path) -> None:
    flags = ["--crop=32", "--augment", "--mix=cutmix", "--train-steps=1", "--batch-size=4"]
    flags += ["--param=depth=18", "--param=blocks=[1, 1]"]
    assert _train(photographs, tmp_path / "m", *flags, model="resnet") == 0
    assert json.loads((tmp_path / "m" / "evaluation.json").read_text())["records"] == 4


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of several lengths as tokens, characters by their place in the alphabet."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "text.txt").write_text("abc\nabcdefgh\nabcde\nab\n" * 8)
    words = [f"--input={folder / 'text.txt'}", f"--output={folder / 'd'}", "--tokenizer=chars"]
    assert main(["convert", "text", *words, "--split=train=0.5,validation=0.5", "--no-shuffle"]) == 0
    return folder / "d"


def test_pads_tokens_and_takes_next_tokens_as_labels(tokens: Path, tmp_path: Path) -> None:
    fed = _fed(tmp_path / "m", tokens, "--sequence-length=8")
    names = ("input_ids", "attention_mask", "token_weights", "labels")
    assert {name: value.shape for name, value in fed.items()} == dict.fromkeys(names, (4, 8))
    lengths = fed["attention_mask"].sum(axis=1)
    assert len(set(lengths)) > 1
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(fed["labels"][row, : length - 1], fed["input_ids"][row, 1:length])
        assert fed["token_weights"][row].tolist() == [1] * (length - 1) + [0] * (9 - length)
    cut = _fed(tmp_path / "cut", tokens, "--sequence-length=3", "--truncate")
    assert cut["input_ids"].shape == (4, 3)


@pytest.mark.parametrize("model", ["char_lstm", "tiny_lm"])
def test_language_models_learn_from_padded_tokens(
    model: str, tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = {"char_lstm": ["--param=hidden_units=16", "--param=max_new_tokens=4", "--param=temperature=0"]}
    size["char_lstm"] += ["--param=schedule=cosine", "--param=warmup_steps=2"]
    flags = ["--sequence-length=8", "--batch-size=8", "--param=learning_rate=0.05"]
    flags += size.get(model, ["--param=hidden_size=16", "--param=num_layers=1"])
    assert _train(tokens, tmp_path / "m", *flags, "--train-steps=40", model=model) == 0
    # Each letter determines the next one, so every counted token can be predicted.
    evaluation = json.loads((tmp_path / "m" / "evaluation.json").read_text())
    assert evaluation["accuracy"] > 0.95
    bits = "bits_per_character" if model == "char_lstm" else "bits_per_token"
    assert evaluation[bits] < 1
    assert re.search(rf"^also: cross_entropy \d\.\d{{4}}, {bits} \d", capsys.readouterr().out, re.MULTILINE)
    # Params that the model gets from the dataset and the run.
    given = json.loads((tmp_path / "m" / "train_config.json").read_text())["params"]
    assert given["vocab_size"] == 3 + len("abcdefgh")  # three are special
    assert given.get("decay_steps") == (40 if model == "char_lstm" else None)
    if model == "char_lstm":
        assert _train(tokens, tmp_path / "m", *flags, "--mode=predict", model=model) == 0
        for line in (tmp_path / "m" / "predictions.jsonl").read_text().splitlines():
            predicted = json.loads(line)["predictions"]
            # Generated tokens follow the text, not its padding.
            if predicted["input_ids"][2] == 0:
                first = predicted["input_ids"][1] + 1
                assert predicted["generated_ids"][:3] == [first, first + 1, first + 2]


@pytest.fixture(scope="module")
def one_class(tmp_path_factory: pytest.TempPathFactory) -> Path:
    features = [Feature("measured", "float", "float32", (4,)), Feature("label", "int64", "int64", num_classes=1)]
    rows = [{"measured": [0.0] * 4, "label": 0}] * 4
    folder = str(tmp_path_factory.mktemp("one_class"))
    return Path(write_dataset(folder, {"train": rows, "validation": rows}, features, layout="examples", shards=1))


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sequences(tmp_path_factory.mktemp("sequences"), {"train": 8, "validation": 4})


@pytest.mark.parametrize(
    ("model", "data", "flags", "message"),
    [
        ("resnet", "photographs", [], "or --image-size HxW to a command"),
        ("resnet", "photographs", [], "--crop 224 to a command"),
        ("resnet", "digits_dataset", [], "or with --image-size or --crop."),
        ("tiny_lm", "tokens", [], "--sequence-length N to a command"),
        (
            "tiny_lm",
            "tokens",
            ["--sequence-length=3", "--param=hidden_size=16", "--param=num_layers=1"],
            "to a command, --sequence-length or --truncate",
        ),
        ("tiny_lm", "sequences", ["--sequence-length=3"], "Omit it."),
        ("tiny_lm", "sequences", ["--crop=32"], "the features have none"),
        ("mnist_cnn", "digits_dataset", ["--augment"], "it is for colour images"),
        (
            "mnist_cnn",
            "digits_dataset",
            ["--param=num_classes=9"],
            "has labels up to 9. Omit num_classes, or pass 10.",
        ),
        ("resnet", "digits_dataset", ["--param=num_classes=9"], "has labels up to 9"),
        ("char_lstm", "sequences", ["--param=vocab_size=5"], f"Omit vocab_size, or pass {VOCAB_SIZE}."),
        ("iris_mlp", "one_class", [], "iris_mlp needs at least 2 classes; "),
        ("char_lstm", "digits_dataset", [], "char_lstm reads tokens, and"),
        (
            "char_lstm",
            "digits_dataset",
            ["--param=vocab_size=5"],
            'char_lstm reads tokens: features must contain "input_ids"',
        ),
        (
            "resnet",
            "sequences",
            [],
            'resnet reads images: features must contain "image", got input_ids, token_weights.',
        ),
        (
            "iris_mlp",
            "sequences",
            [],
            "features must contain floats, got input_ids, token_weights. Use a dataset of numbers",
        ),
        ("iris_mlp", "digits_dataset", [], "features must contain floats, got image"),
    ],
)
def test_reports_data_that_does_not_match_the_model_in_one_line(
    model: str,
    data: str,
    flags: list[str],
    message: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = request.getfixturevalue(data)
    capsys.readouterr()
    assert _train(folder, tmp_path / "m", *flags, "--batch-size=4", model=model) in (1, 2)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tpudata: error: ")]
    assert message in line
