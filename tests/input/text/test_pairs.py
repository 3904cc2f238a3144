"""Pairs and loss weights as fed to a model, compared with the converted records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tpudata
from tests.beam_jobs.texts import convert, records

PAIRS = [(f"question {n}{'?' * (n % 9)}", f"answer {n}{'!' * (n % 7)}") for n in range(50)]
FLAGS = ("--inputs=q", "--targets=a", "--tokenizer=bytes", "--no-shuffle", "--num-shards=1")
EOS, PAD = 256, 257


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "a.jsonl"
    path.write_text("".join(json.dumps({"q": q, "a": a}) + "\n" for q, a in PAIRS))
    return path


def batches(folder: Path, **options: Any) -> dict[str, npt.NDArray[Any]]:
    """All batches of an exact pass, one after the other; labels are `labels`."""
    found = []
    for batch in tpudata.make_input_fn(str(folder), "train", training=False, **options)({"batch_size": 7}):
        features, labels = batch if isinstance(batch, tuple) else (batch, None)
        found.append({**features, **({} if labels is None else {"labels": labels})})
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


def test_each_side_has_its_own_length_and_mask(source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "out", *FLAGS) == 0
    found = batches(tmp_path / "out", tokens=tpudata.Tokens(sequence_length={"inputs": 24, "targets": 16}))
    for row, pair in enumerate(PAIRS):
        for name, text, length in zip(("inputs", "targets"), pair, (24, 16), strict=True):
            rest = length - len(text)
            assert found[name][row].tolist() == [*text.encode(), *[PAD] * rest]
            assert found[f"{name}_mask"][row].tolist() == [1] * len(text) + [0] * rest


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--inputs=q", "--targets=a"], ["inputs", "targets"]),
        (["--chat=q,a"], ["messages"]),
        (["--field=q", "--field=inputs:str=none"], ["q"]),
    ],
)
def test_feeds_texts_under_their_names(flags: list[str], names: list[str], source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "out", *flags, "--no-shuffle", "--num-shards=1") == 0
    found = batches(tmp_path / "out")
    assert sorted(set(found) - {"weights"}) == names
    rows = list(records(tmp_path / "out"))
    for name in names:
        assert found[name][: len(rows)].tolist() == [row[name][0] for row in rows]


def test_rejects_lengths_of_unknown_features(source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "out", *FLAGS) == 0
    for lengths in ({"input": 24}, {"inputs": 24}, {"inputs": 0}):
        with pytest.raises(tpudata.TpudataError):
            batches(tmp_path / "out", tokens=tpudata.Tokens(sequence_length=lengths))


@pytest.mark.parametrize("pack", [True, False])
def test_targets_have_the_loss_weights_of_their_tokens(source: Path, tmp_path: Path, pack: bool) -> None:
    flags = ["--sequence-length=40", *(["--pack"] if pack else [])]
    assert convert(source, tmp_path / "out", *FLAGS, *flags) == 0
    found = batches(tmp_path / "out")
    rows = list(records(tmp_path / "out"))
    for number, row in enumerate(rows):
        segments = row.get("segment_ids", [int(one != PAD) for one in row["input_ids"]])
        expected = [float(row["loss_weights"][at + 1]) if segments[at] == segments[at + 1] else 0.0 for at in range(39)]
        assert found["token_weights"][number].tolist() == [*expected, 0.0]
        targets = found["labels"][number][:-1][np.array(expected) > 0]
        assert targets.tolist() == [row["input_ids"][at + 1] for at in range(39) if expected[at]]
    assert not found["token_weights"][len(rows) :].any()
    assert 0 < found["token_weights"].sum() < found["token_weights"].size / 2


@pytest.mark.parametrize("pack", [True, False])
def test_t5x_names_weight_the_targets(source: Path, tmp_path: Path, pack: bool) -> None:
    flags = ["--sequence-length=40", *(["--pack"] if pack else [])]
    assert convert(source, tmp_path / "out", *FLAGS, *flags) == 0
    found = batches(tmp_path / "out", tokens=tpudata.Tokens(names="t5x"))
    assert "loss_weights" not in found
    for number, row in enumerate(records(tmp_path / "out")):
        assert found["decoder_loss_weights"][number].tolist() == row["loss_weights"]
        real = [one for one in row["input_ids"] if one != PAD]
        assert found["decoder_target_tokens"][number].tolist() == [*real, *[0] * (40 - len(real))]
        assert np.count_nonzero(found["decoder_segment_ids"][number]) == len(real)


def test_maxtext_names_count_only_the_targets(source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "out", *FLAGS, "--sequence-length=40", "--pack") == 0
    plain = batches(tmp_path / "out")
    found = batches(tmp_path / "out", tokens=tpudata.Tokens(names="maxtext"))
    assert ((found["targets_segmentation"] > 0) == (plain["token_weights"] > 0)).all()
    assert (found["inputs_segmentation"] == plain["segment_ids"]).all()


def test_sample_weight_holds_the_token_weights(source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "out", *FLAGS, "--sequence-length=40", "--pack") == 0
    plain = batches(tmp_path / "out")
    input_fn = tpudata.make_input_fn(str(tmp_path / "out"), "train", training=False, weights="sample_weight")
    weights = np.concatenate([batch[2] for batch in input_fn({"batch_size": 7})])
    assert (weights == plain["token_weights"]).all()


def test_packed_pairs_get_t5x_names(source: Path, tmp_path: Path) -> None:
    flags = ["--inputs-length=48", "--targets-length=32", "--pack", "--long-documents=reject"]
    assert convert(source, tmp_path / "out", *FLAGS, *flags) == 0
    rows = list(records(tmp_path / "out"))
    plain = batches(tmp_path / "out")
    found = batches(tmp_path / "out", tokens=tpudata.Tokens(names="t5x"))
    assert sorted(found) == [
        *("decoder_input_tokens", "decoder_loss_weights", "decoder_positions", "decoder_segment_ids"),
        *("decoder_target_tokens", "encoder_input_tokens", "encoder_positions", "encoder_segment_ids"),
    ]
    for number, row in enumerate(rows):
        assert {name: values[number].tolist() for name, values in plain.items() if name in row} == row
        segments = row["targets_segment_ids"]
        before = [0, *row["targets"][:-1]]
        starts = [at == 0 or segments[at] != segments[at - 1] for at in range(32)]
        assert found["encoder_input_tokens"][number].tolist() == [one % PAD for one in row["inputs"]]
        assert found["encoder_segment_ids"][number].tolist() == row["inputs_segment_ids"]
        assert found["encoder_positions"][number].tolist() == row["inputs_positions"]
        assert found["decoder_target_tokens"][number].tolist() == [one % PAD for one in row["targets"]]
        assert found["decoder_segment_ids"][number].tolist() == segments
        assert found["decoder_positions"][number].tolist() == row["targets_positions"]
        assert found["decoder_loss_weights"][number].tolist() == [int(one > 0) for one in segments]
        expected = [0 if start or not real else one for start, real, one in zip(starts, segments, before, strict=True)]
        assert found["decoder_input_tokens"][number].tolist() == expected
    assert not found["decoder_loss_weights"][len(rows) :].any()
    with pytest.raises(tpudata.UsageError):
        batches(tmp_path / "out", tokens=tpudata.Tokens(names="maxtext"))
