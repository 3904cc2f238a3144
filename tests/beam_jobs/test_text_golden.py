"""Shards of text keep the bytes of earlier versions, on which resumed runs, appends and readers rely."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from pathlib import Path

import pytest

from beam_jobs.text import run

# The first 16 digits of SHA-256 over the shards and what is next to them, in the order of their names.
GOLDEN = {
    "packed": "264595113fafa90d",
    "text": "69b29d3dd33ae51d",
    "in order": "4bf3a2a421deb25f",
    "rows": "26d3b028a973072d",
    "with rejects": "ab278cea4056f721",
}
TOKENS = ["--tokenizer=bytes", "--sequence-length=64"]
FLAGS = {
    "packed": ["--num-shards=3", *TOKENS, "--pack", "--split=train=0.8,test=0.2"],
    "text": ["--shard-size=20kB", "--seed=3"],
    "in order": ["--num-shards=3", *TOKENS, "--no-shuffle"],
    "rows": ["--num-shards=2", "--field=text", "--field=n:int", *TOKENS[:1]],
    "with rejects": ["--num-shards=2", "--on-bad-record=skip", "--max-bad-records=9", *TOKENS, "--document-bytes=300"],
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    choose = random.Random(7)
    words = ["alpha", "beta", "été", "日本語", "😀x", " ", "x" * 50]
    lines = [" ".join(choose.choices(words, k=choose.randint(1, 8))) for _ in range(2000)]
    rows = [{"text": line, "n": number} for number, line in enumerate(lines[:500])]
    files = {
        "lines/a.txt": "\n".join(lines[:1500]).encode(),
        "lines/b/c.txt": b"\xef\xbb\xbf" + "\r\n".join([*lines[1500:1700], "  \t", ""]).encode(),
        "lines/d.txt.gz": gzip.compress("\n".join(lines[1700:]).encode()),
        "lines/large.txt": b"y" * 70_000 + b"\nlast",
        "rows/a.jsonl": "\n".join(map(json.dumps, rows)).encode(),
        "rows/b.tsv": "\n".join(["text\tn", *(f"{row['text']}\t{row['n']}" for row in rows)]).encode(),
        "bad/a.txt": b"good\n\xff bad\nc\xc3\n\xa9x\n" + b"w" * 400 + b"\n" + "\n".join(lines[:200]).encode(),
    }
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


@pytest.mark.parametrize("name", GOLDEN)
def test_shards_keep_the_bytes_of_earlier_versions(name: str, inputs: Path, tmp_path: Path) -> None:
    source = inputs / {"rows": "rows", "with rejects": "bad"}.get(name, "lines")
    assert run(["--input", str(source), "--output", str(tmp_path / "out"), *FLAGS[name]]) == 0
    digest = hashlib.sha256()
    for path in sorted((tmp_path / "out").rglob("*")):
        # The manifest names paths.
        if path.is_file() and path.name != "manifest.json" and "rejects" not in path.parts:
            digest.update(path.read_bytes())
    assert digest.hexdigest()[:16] == GOLDEN[name]
