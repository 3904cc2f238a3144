"""Tokenizers, and other ways in which converters store items, as forms of the contract: lines of text or pictures go in."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as hugging_face
from PIL import Image

from beam_jobs import images, text
from tests.beam_jobs.contract.forms import IMAGE, Form, Item, class_folders, items, lines
from tests.beam_jobs.golden import one_pixel_png
from tests.beam_jobs.texts import sentencepiece_model
from tpudata.tokenizers import CharTokenizer, dataset_tokenizer

CORPUS = [item.text for item in items(64)]


@functools.cache
def _pieces() -> bytes:
    return sentencepiece_model(CORPUS)


@functools.cache
def _byte_pairs() -> bytes:
    tokenizer = hugging_face.Tokenizer(hugging_face.models.BPE())
    tokenizer.pre_tokenizer = hugging_face.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = hugging_face.decoders.ByteLevel()
    trainer = hugging_face.trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str().encode()


def _characters() -> bytes:
    return CharTokenizer("".join(sorted(set("".join(CORPUS))))).file_bytes


def _words() -> bytes:
    return "\n".join(sorted({word for line in CORPUS for word in line.split()})).encode()


def _tokens(kind: str, file: Callable[[], bytes] | None = None, *flags: str) -> Callable[..., list[str]]:
    """Return the function that writes lines, and the file of a tokenizer; the flags name both."""

    def write(folder: Path, written: Sequence[Item]) -> list[str]:
        path = folder.with_name("tokenizer.file")
        if file is not None:
            path.write_bytes(file())
        return [*lines(folder, written), f"--tokenizer={kind}{f':{path}' if file else ''}", *flags]

    return write


def _decode_example(output: Path, example: Mapping[str, Any]) -> list[bytes]:
    return [dataset_tokenizer(str(output)).decode(example["input_ids"]).encode()]


def _unpack_example(output: Path, example: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the documents of a row of bytes, without their ends."""
    del output
    ids, segments = (np.frombuffer(example[name][0], "<i4") for name in ("input_ids", "segment_ids"))
    for number in range(1, segments.max() + 1):
        *document, end = ids[segments == number].tolist()
        assert end == 256
        yield bytes(document)


def _arrays(folder: Path, written: Sequence[Item]) -> list[str]:
    pixels = [np.frombuffer(_pixels(item.picture), np.uint8) for item in written]
    folder.mkdir(exist_ok=True)
    labels = np.array([item.number % 3 for item in written], np.int64)
    np.savez(folder / "data.npz", x=np.array(pixels, np.uint8).reshape(-1, 1, 1, 3), y=labels)
    return ["--input", str(folder / "data.npz")]


def _raw(folder: Path, written: Sequence[Item]) -> list[str]:
    return [*class_folders(folder, written), "--layout=raw"]


@functools.cache
def _pictures_by_pixels() -> dict[bytes, bytes]:
    return {_pixels(data): data for data in map(one_pixel_png, range(64))}


def _pixels(data: bytes) -> bytes:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).tobytes()


def _picture(output: Path, example: Mapping[str, Any]) -> list[bytes]:
    """Return the picture that has the pixels of a record."""
    del output
    pixels = example["image_raw"][0] if "image_raw" in example else _pixels(example["image/encoded"][0])
    return [_pictures_by_pixels()[pixels]]


def _form(name: str, *flags: str, file: Callable[[], bytes] | None = None, **more: Any) -> Form:
    kind = name.split()[0]
    return Form(
        f"tokenizer {name}", text.run, _tokens(kind, file, *flags), "input_ids", rank=2, read=_decode_example, **more
    )


STORED_FORMS = [
    _form("bytes"),
    _form("chars"),
    _form("chars of a file", file=_characters),
    _form("sentencepiece", file=_pieces),
    _form("hf", file=_byte_pairs),
    _form("words of a package", file=_words, is_installed=True),
    _form("bytes in packed rows", "--sequence-length=64", "--pack")._replace(read=_unpack_example),
    Form("arrays", images.run, _arrays, IMAGE, rank=2, read=_picture, can_be_bad=False),
    Form("raw pixels", images.run, _raw, "image_raw", names_items=True, rank=2, read=_picture),
]
