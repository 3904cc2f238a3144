"""A text to convert, and what of it arrives."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import tensorflow as tf
import tokenizers as hugging_face

from beam_jobs.text import run
from tpudata.format import open_dataset, read_records, verify

PLAY = "\n\n".join(f"Citizen {n % 7}:\nSpeak, {'speak ' * (n * n % 13)}{'é三'[n % 2]} {n}!" for n in range(400)) + "\n"
SPEECHES = PLAY.rstrip("\n").split("\n\n")


def convert(source: Path | str, output: Path | str, *flags: str) -> int:
    return run(["--input", str(source), "--output", str(output), *flags])


def records(output: Path) -> Iterator[dict[str, Any]]:
    """The records of a dataset, rows of int32 as lists, once nothing in it is found to be wrong."""
    assert not list(verify(str(output)))
    dataset = open_dataset(str(output))
    rows = {feature.name for feature in dataset.manifest.features if feature.encoding == "raw"}
    for split in dataset.manifest.splits:
        for example in dataset.examples(split):
            yield {
                name: np.frombuffer(values[0], "<i4").tolist() if name in rows else values  # type: ignore[arg-type]
                for name, values in example.items()
            }


def texts(output: Path, field: str = "text") -> list[str]:
    return [record[field][0].decode() for record in records(output)]


def tokens(output: Path) -> list[int]:
    return [number for record in records(output) for number in record["input_ids"]]


def in_segments(output: Path) -> list[str]:
    """The documents of packed bytes, without their ends."""
    found = []
    for record in records(output):
        ids, segments = np.array(record["input_ids"]), np.array(record["segment_ids"])
        for number in range(1, segments.max() + 1):
            document = ids[segments == number]
            assert record["positions"][int(np.argmax(segments == number))] == 0
            assert document[-1] == 256
            found.append(document[:-1].astype(np.uint8).tobytes().decode())
    return found


def sentencepiece_model(lines: list[str]) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    return model.getvalue()


def byte_pairs(lines: list[str]) -> bytes:
    tokenizer = hugging_face.Tokenizer(hugging_face.models.BPE())
    tokenizer.pre_tokenizer = hugging_face.pre_tokenizers.ByteLevel()
    trainer = hugging_face.trainers.BpeTrainer(vocab_size=300, special_tokens=["<eos>"], show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer.to_str().encode()


def list_kinds(output: Path, name: str) -> set[str | None]:
    """The kinds of the lists in which the records of a dataset have a feature; None for a feature without a list."""
    data = (record for shard in output.glob("*.tfrecord") for _, record in read_records(str(shard)))
    return {tf.train.Example.FromString(record).features.feature[name].WhichOneof("kind") for record in data}
