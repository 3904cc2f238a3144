"""Cost of tokenizing and packing text, next to plain loops, and how much of the packed tokens is text.

    python scripts/bench/text.py PATH... [--length 512] [--megabytes 20] [--rounds 5]

PATH is a text file, or a folder of text files. Documents are separated by blank lines, such as the speeches of a play; they are
repeated up to the requested number of megabytes. Everything runs in this process, in turn, and the best of several rounds counts.
Figures are tokens of text per CPU second. Nothing here passes or fails.

    plain loop      one stream of bytes, cut every `length`, each row a tf.train.Example with one int64_list
    bytes, stream   the converter: documents to Examples with input_ids
    bytes, packed   the same with input_ids, segment_ids and positions
    own batch       SentencePiece's and tokenizers' own batch calls, on models trained here
    encode_batch    the same through tpudata's tokenizers
    packed          documents to packed Examples with tpudata's tokenizers
"""

from __future__ import annotations

import argparse
import io
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import sentencepiece
import tensorflow as tf
import tokenizers

from beam_jobs.references.packs.pack import PACK_REFERENCES, Pack
from beam_jobs.references.reference import Reference
from beam_jobs.text_files.document_form import PLAIN_TEXT
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_records.records import Block, TextRecords
from beam_jobs.text_records.summary import TextSummary
from tpudata.errors import BadRecordError
from tpudata.tokenizers import Tokenizer, TokenizerSpec, open_tokenizer

_TRAINING_LINES = 20_000


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence (default %(default)s)")
    parser.add_argument("--megabytes", type=float, default=20, help="of text, repeated as needed (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts (default %(default)s)")
    flags = parser.parse_args()
    documents = [document for path in flags.paths for document in read_documents(path)]
    if not documents:
        parser.error(
            f"{' '.join(map(str, flags.paths))}: no documents (expected files of UTF-8 text). Pass another PATH."
        )
    size = sum(map(len, documents))
    repeat_count = max(1, round(flags.megabytes * 1e6 / size))
    texts = documents * repeat_count
    print(f"{len(documents):,} documents of {size / len(documents):.0f} characters on average, x {repeat_count}")
    with tempfile.TemporaryDirectory(prefix="tpudata-bench-") as name:
        specs = train_tokenizers(documents, Path(name))
        report_share(documents, flags.length, specs)
        report_bytes(texts, flags.length, flags.rounds)
        for spec in specs:
            # A tenth of the texts, since these tokenizers take much longer than bytes.
            report_tokenizer(texts[: max(1, len(texts) // 10)], flags.length, flags.rounds, spec)


def read_documents(path: Path) -> list[str]:
    """Return the documents, which blank lines separate, of a file or of all files below a folder; skip files that are not UTF-8."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    documents = []
    for file in files:
        try:
            text = file.read_bytes().decode()
        except UnicodeDecodeError:
            continue
        documents += [part for part in re.split(r"\n[ \t\r]*\n", text) if part.strip()]
    return documents


def train_tokenizers(texts: Sequence[str], folder: Path) -> list[TokenizerSpec]:
    """Train a tokenizer of each package on the first lines of texts, write its file to a folder, and return the specs."""
    lines = [line for text in texts[:_TRAINING_LINES] for line in text.split("\n")][:_TRAINING_LINES]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=4000, hard_vocab_limit=False, minloglevel=2
    )
    (folder / "a.model").write_bytes(model.getvalue())
    byte_pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4000, special_tokens=["<|endoftext|>"], show_progress=False)
    byte_pairs.train_from_iterator(lines, trainer)
    byte_pairs.save(str(folder / "a.json"))
    return [TokenizerSpec("sentencepiece", f"{folder}/a.model"), TokenizerSpec("hf", f"{folder}/a.json")]


def report_share(texts: Sequence[str], length: int, specs: Sequence[TokenizerSpec]) -> None:
    """Print the share of the packed tokens that is text."""
    for spec in (TokenizerSpec("bytes"), *specs):
        summary = convert(make_blocks(texts), open_tokenizer(spec), spec, length, is_packed=True)
        print(f"packed with {spec.kind:14} {summary.filled_share:7.2%} of {summary.tokens + summary.padding:,} tokens")


def report_bytes(texts: Sequence[str], length: int, round_count: int) -> None:
    """Print how fast bytes are split into sequences and packed, next to a plain loop."""
    spec = TokenizerSpec("bytes")
    tokenizer = open_tokenizer(spec)
    blocks = make_blocks(texts)
    data = "".join(texts).encode()
    runs: dict[str, Callable[[], int]] = {
        "plain loop": lambda: convert_plainly(data, length),
        "bytes, stream": lambda: convert(blocks, tokenizer, spec, length, is_packed=False).tokens,
        "bytes, packed": lambda: convert(blocks, tokenizer, spec, length, is_packed=True).tokens,
    }
    report(runs, round_count)


def report_tokenizer(texts: Sequence[str], length: int, round_count: int, spec: TokenizerSpec) -> None:
    """Print how fast a tokenizer encodes and packs texts, next to the batch call of its package."""
    tokenizer = open_tokenizer(spec)
    blocks = make_blocks(texts)
    batch = list(texts)
    runs: dict[str, Callable[[], int]] = {
        f"{spec.kind}, own batch": make_package_encoder(spec, batch),
        f"{spec.kind}, encode_batch": lambda: sum(map(len, tokenizer.encode_batch(batch))),
        f"{spec.kind}, packed": lambda: convert(blocks, tokenizer, spec, length, is_packed=True).tokens,
    }
    report(runs, round_count)


def make_package_encoder(spec: TokenizerSpec, batch: list[str]) -> Callable[[], int]:
    """Return a function that encodes a batch of texts with the tokenizer's package alone, and returns the number of tokens."""
    if spec.kind == "sentencepiece":
        processor = sentencepiece.SentencePieceProcessor(model_file=spec.path)
        return lambda: sum(map(len, processor.encode(batch, out_type=int, num_threads=1)))
    tokenizer = tokenizers.Tokenizer.from_file(spec.path)
    return lambda: sum(len(encoding.ids) for encoding in tokenizer.encode_batch(batch))


def report(runs: dict[str, Callable[[], int]], round_count: int) -> None:
    """Run functions in turn; print for each the tokens per CPU second of its best round, and the ratio to the first function's.

    Args:
        runs: functions that return the number of their tokens, by name.
        round_count: number of rounds.
    """
    best_rates = dict.fromkeys(runs, 0.0)
    for _ in range(round_count):
        for name, run in runs.items():
            begin = time.process_time()
            token_count = run()
            best_rates[name] = max(best_rates[name], token_count / (time.process_time() - begin))
    first_rate = next(iter(best_rates.values()))
    for name, rate in best_rates.items():
        print(f"{name:28} {rate / 1e6:8.2f} M tokens per CPU second {rate / first_rate:6.2f}")


def convert_plainly(data: bytes, length: int) -> int:
    """Make Examples of rows of bytes in a plain loop, and return the number of bytes."""
    for start in range(0, len(data), length):
        ids = tf.train.Int64List(value=data[start : start + length])
        feature = {"input_ids": tf.train.Feature(int64_list=ids)}
        tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    return len(data)


def make_blocks(texts: Sequence[str]) -> list[Block]:
    """Return documents as the worker of a shard gets them: packs of references, each with the bytes of its documents."""
    blocks = []
    for start in range(0, len(texts), PACK_REFERENCES):
        encoded_texts = [text.encode() for text in texts[start : start + PACK_REFERENCES]]
        # The offsets are not read, since the block contains the bytes.
        references = [
            Reference(f"a.txt:{number}", "train", (), "a.txt", number, len(encoded), PLAIN_TEXT)
            for number, encoded in enumerate(encoded_texts)
        ]
        blocks.append((Pack.of(references, np.zeros(len(references), np.uint64)), b"".join(encoded_texts)))
    return blocks


def convert(
    blocks: Sequence[Block], tokenizer: Tokenizer, spec: TokenizerSpec, length: int, *, is_packed: bool
) -> TextSummary:
    """Make the records of documents, and return their counts.

    Args:
        blocks: the documents.
        tokenizer: the tokenizer.
        spec: name and file of the tokenizer.
        length: tokens of a sequence.
        is_packed: whether documents are packed.
    """
    summary = TextSummary()
    converter = TextRecords(TextOptions(tokenizer=spec, sequence_length=length, pack=is_packed), tokenizer.identity)
    # `records` adds the counts to `summary`.
    for _ in converter.records(blocks, tokenizer, summary, reject):
        pass
    return summary


def reject(reference: Reference, error: BadRecordError) -> None:
    """Raise the error of a rejected document."""
    del reference
    raise error


if __name__ == "__main__":
    main()
