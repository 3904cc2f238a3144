"""`tpudata bench`: its stages, the limiting stage, and whether feeding meets a step time."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.datasets import Written, write_dataset, write_images, write_undecodable
from tpudata.cli import main
from tpudata.format import Feature


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Pictures of two sizes, of one colour each: decoding takes a hundred times longer than reading, even on a busy machine."""
    images = [np.full((800, 600 + number % 2, 3), number, np.uint8) for number in range(12)]
    folder = str(tmp_path_factory.mktemp("pictures"))
    return write_images(folder, {"train": images}, {"train": [0] * 12}, shape=(None, None, 3))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A small dataset of each kind."""
    random = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("others")
    floats = [{"x": random.random(5).astype(np.float32), "y": number % 3} for number in range(60)]
    texts = [{"text": "word " * (number % 7)} for number in range(60)]
    tokens = [{"input_ids": list(range(1 + number % 9))} for number in range(60)]
    rows = [{"input_ids": list(range(16)), "segment_ids": [1] * 16, "positions": list(range(16))} for _ in range(60)]
    lists = [{"a/x": [1.0] * (number % 9), "b": [b"word"] * (number % 3)} for number in range(60)]
    varied = [Feature("a/x", "float", "float32", (None,)), Feature("b", "bytes", "string", (None,))]
    raw = [{"image_raw": bytes(48), "label": number % 10} for number in range(60)]
    packed = [Feature(name, "int64", "int64", (16,)) for name in ("input_ids", "segment_ids", "positions")]
    kinds: dict[str, tuple[list[Any], list[Feature], str]] = {
        "features": (floats, [Feature("x", "float", "float32", (5,)), Feature("y", "int64", "int64")], "table"),
        "text": (texts, [Feature("text", "bytes", "string", encoding="utf8")], "text"),
        "tokens": (tokens, [Feature("input_ids", "int64", "int64", (None,))], "tokens"),
        "packed": (rows, packed, "packed"),
        "lists": (lists, varied, "lists"),
        "raw": (
            raw,
            [Feature("image_raw", "bytes", "uint8", (4, 4, 3), "raw"), Feature("label", "int64", "int64")],
            "raw",
        ),
    }
    return {
        kind: write_dataset(
            str(folder / kind),
            {"train": records},
            features,
            layout=layout,
            compression="gzip" if kind == "text" else None,
        )
        for kind, (records, features, layout) in kinds.items()
    }


def report(argv: list[str], capsys: pytest.CaptureFixture[str], seconds: float = 0.02) -> dict[str, Any]:
    assert main(["bench", *argv, f"--seconds={seconds}", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [stage["name"] for stage in found["stages"]]


@pytest.fixture(scope="module", params=[True, False], ids=["training", "in order"])
def argv(request: pytest.FixtureRequest, digits_dataset: Path) -> list[str]:
    """The command for training order and a short step, or for stored order, floats and a long step."""
    flags = ["--step-time=0.001"] if request.param else ["--no-training", "--dtype=float32", "--step-time=1e6"]
    # A stage takes a batch then, and less than a tick of the kernel's clock.
    return ["bench", str(digits_dataset), "--batch-size=16", "--seconds=0.0001", "--split=validation", *flags]


@pytest.fixture(scope="module")
def bench_report(argv: list[str]) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert main([*argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(output.getvalue())
    return found


@pytest.mark.cases(1)
def test_reports_the_rate_and_cost_of_every_stage(digits_dataset: Path, bench_report: dict[str, Any]) -> None:
    found = bench_report
    in_order = not found["training"]
    manifest = json.loads((digits_dataset / "manifest.json").read_bytes())
    shards = manifest["splits"]["validation"]["shards"]
    a_record = sum(shard["bytes"] for shard in shards) / sum(shard["records"] for shard in shards)
    assert names(found) == ["read", "parse", *(["decode"] if in_order else []), "input_fn"]
    for stage in found["stages"]:
        assert stage["records_per_second"] > 0
        assert stage["bytes_per_second"] == pytest.approx(stage["records_per_second"] * a_record)
        assert stage["cpu_seconds_per_record"] == pytest.approx(stage["cores"] / stage["records_per_second"])
        assert stage["cpu_seconds_per_record"] > 0
        assert stage["other_cores"] >= 0
    shares = {stage["name"]: stage["share"] for stage in found["stages"] if stage["share"] is not None}
    assert sum(shares.values()) == pytest.approx(1)
    assert found["limit"] == max(shares, key=lambda name: shares[name])
    # In training, a split that fits the window is read once.
    assert found["is_held"] is not in_order
    assert ("read" in shares) is in_order


def test_says_whether_a_step_time_is_met(bench_report: dict[str, Any]) -> None:
    step, whole = bench_report["step"], bench_report["stages"][-1]
    milliseconds = step["milliseconds"]
    assert step["records_per_second"] == pytest.approx(16_000 / milliseconds)
    assert step["is_input_bound"] is bench_report["training"] is (milliseconds == 0.001)
    assert step["waiting"] == pytest.approx(max(0, 1 - whole["records_per_second"] * milliseconds / 16_000))
    if bench_report["waits_for"] == "cores":
        assert 0 <= step["cores"] - whole["cpu_seconds_per_record"] * step["records_per_second"] <= 1
    else:
        assert step["cores"] is None


def test_the_text_names_the_stages_and_the_limit(
    digits_dataset: Path, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[2].split()[:2] == ["stage", "records/s"]
    assert "records/s are fed. The limit is the stage " in text
    if "--no-training" in argv:
        assert "training is not input-bound" in text
        assert "they are read once" not in text
        return
    assert lines[0] == f"{digits_dataset}: split validation, training order, batches of 16"
    assert [line.split("  ")[0] for line in lines[3:6]] == [
        "read from the storage, compare checksums",
        "+ parse, shuffle",
        "+ decode, batch: the whole input_fn",
    ]
    assert lines[3].endswith("once")
    assert "they are read once, and then fed from memory." in lines[7]
    assert lines[-1].startswith(
        "A step of 0.001 ms takes 16,000,000 records/s: training is input-bound, and the device"
    )


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("features", []),
        ("text", []),
        pytest.param("tokens", ["--sequence-length=9"], marks=pytest.mark.matrix),
        ("tokens", ["--sequence-length=4", "--truncate", "--no-training"]),
        ("packed", ["--no-training"]),
        ("raw", ["--dtype=bfloat16", "--crop=3", "--augment"]),
        ("lists", ["--pad=a/*=9", "--pad", "b=3"]),
    ],
)
def test_measures_every_kind_of_dataset(
    kind: str, flags: list[str], others: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = report([others[kind], "--batch-size=8", *flags], capsys)
    assert names(found) == ["read", "parse", *(["decode"] if kind == "raw" else []), "input_fn"]
    assert ("unpack" in found["stages"][0]["does"]) is (kind == "text")
    assert found["step"] is None


def test_decoding_limits_cropped_float_images(pictures: Written, capsys: pytest.CaptureFixture[str]) -> None:
    found = report([pictures.path, "--batch-size=8", "--crop=128", "--dtype=bfloat16"], capsys, 0.1)
    assert (found["limit"], names(found)[2]) == ("decode", "decode")
    assert found["stages"][2]["does"] == "+ decode, crop"
    assert "--resize-shorter" in found["advice"]


def test_does_not_advise_shrinking_small_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = [np.full((8, 8, 3), number, np.uint8) for number in range(40)]
    path = write_images(str(tmp_path), {"train": images}, {"train": [0] * 40}, shape=(8, 8, 3)).path
    assert "--resize-shorter" not in report([path, "--batch-size=8"], capsys)["advice"]


def test_images_of_several_sizes_need_a_size_and_limit_feeding(
    pictures: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", pictures.path, "--batch-size=8", "--seconds=0.02"]) == 1
    assert "or --image-size HxW to a command" in capsys.readouterr().err
    assert main(["bench", pictures.path, "--batch-size=8", "--seconds=0.2", "--image-size=16x24"]) == 0
    out = capsys.readouterr().out
    assert "The limit is the stage 'decode, resize, batch: the whole input_fn'" in out
    assert "--resize-shorter" in out


def test_tokens_of_varying_length_need_a_sequence_length(
    others: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", others["tokens"], "--batch-size=8", "--seconds=0.02"]
    assert main(argv) == 1
    assert "sequence_length" in capsys.readouterr().err
    assert main([*argv, "--sequence-length=4"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("truncate=True to cut; to a command, --sequence-length or --truncate.")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--batch-size"),
        (["--batch-size=0"], "'0' is not a whole number of 1 or more"),
        (["--batch-size=8", "--seconds=0"], "'0' is not a number above 0"),
        (["--batch-size=8", "--step-time=nan"], "'nan' is not a number above 0"),
        (["--batch-size=8", "--image-size=8x"], "'8x' is not HEIGHTxWIDTH"),
        (["--batch-size=8", "--dtype=int8"], "invalid choice: 'int8'"),
        (["--batch-size=8", "--pad=a"], "'a' is not NAME=N, such as caption=5"),
        (["--batch-size=8", "--pad=a=0"], "'a=0' is not NAME=N"),
        (["--batch-size=8", "--pad=a=3"], "pad: 'a' is no list of the dataset, which has none"),
        (["--batch-size=8", "--step-tim=3"], "did you mean --step-time?"),
        (["--batch-size=8", "--augment", "--no-training"], "augment: it is for training"),
        (["--batch-size=8", "--sequence-length=3"], "sequence_length=3"),
        (["--batch-size=8", "--streams=4"], "--streams is for object stores"),
        (["--batch-size=8", "--tpu=v5e-8"], "--tpu and --model belong together"),
        (["--batch-size=8", "--model=resnet"], "--tpu and --model belong together"),
        (["--batch-size=8", "--param=depth=18"], "--param is for a model"),
        (["--batch-size=8", "--model=resnet", "--tpu=v5e-7"], "there is no TPU 'v5e-7'"),
    ],
)
def test_rejects_wrong_flags(
    flags: list[str], message: str, digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(digits_dataset), *flags]) == 2
    assert message in capsys.readouterr().err


def test_tpu_needs_its_extra(
    digits_dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    flags = ["--batch-size=8", "--model=mnist_cnn", "--tpu=v5e-8"]
    assert main(["bench", str(digits_dataset), *flags]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tpudata: error: --tpu v5e-8: libtpu not installed. Run: pip install ")


def test_rejects_a_folder_without_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path), "--batch-size=8"]) == 1
    assert "has no manifest.json" in capsys.readouterr().err


def test_rejects_an_unknown_split(digits_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(digits_dataset), "--batch-size=8", "--split=tset"]) == 1
    assert "tset" in capsys.readouterr().err


def test_names_a_damaged_record(digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(digits_dataset, tmp_path / "copy"))
    shard = next(copy.glob("train-00000*"))
    data = bytearray(shard.read_bytes())
    data[40] ^= 1
    shard.write_bytes(data)
    assert main(["bench", str(copy), "--batch-size=8", "--seconds=0.02"]) == 1
    assert f"{shard} at byte 0: the record is damaged or cut" in capsys.readouterr().err


def test_reports_an_undecodable_image_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A batch is the whole split: a busy machine may measure only one.
    assert main(["bench", write_undecodable(str(tmp_path)), "--batch-size=24", "--seconds=0.02"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("tpudata: error: an encoded image does not decode: Invalid PNG data, size ")


def test_names_a_record_that_cannot_be_parsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feature = Feature("input_ids", "int64", "int64", (2,))
    records = [{"input_ids": [1, 2]}, {"input_ids": [1, 2, 3]}]
    path = write_dataset(str(tmp_path), {"train": records}, [feature], layout="tokens", shards=1)
    assert main(["bench", path, "--batch-size=2", "--seconds=0.02"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"tpudata: error: {path}/train-00000-of-00001.tfrecord at byte ")
    assert "feature 'input_ids' has 3 values, and not those of shape [2]. Convert the dataset again." in last
