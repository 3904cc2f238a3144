"""A text job that is killed and resumed, and one on more workers, end with the bytes of an undisturbed run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.beam_jobs.test_kill import Jobs
from tests.helpers.pictures import digests
from tests.helpers.processes import assert_nobody_is_left

SHARDS = 24
MOMENTS = 3
# The vocabulary is collected, duplicates are found and documents are written aside: all of it is done again after a kill.
FLAGS = ["--form", "paragraphs", "--tokenizer", "chars", "--sequence-length", "32", "--pack", "--dedup"]
FLAGS += ["--num-shards", str(SHARDS), "--on-bad-record", "skip", "--max-bad-records", "5"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    source = tmp_path_factory.mktemp("killed") / "in"
    source.mkdir()
    words = random.Random(0)
    for number in range(6):
        speeches = [f"Citizen {words.randrange(300)}:\nSpeak{', speak' * words.randrange(9)}!" for _ in range(250)]
        (source / f"{number}.txt").write_text("\n\n".join(speeches))
    (source / "bad.txt").write_bytes(b"\xff\n\n\xfe\xff\n")
    return Jobs("beam_jobs.text", f"--input={source}", *FLAGS)


@pytest.fixture(scope="module")
def undisturbed(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    jobs.run(output)
    whole = digests(output)
    # 24 shards with an index and keys each, the vocabulary, two TFDS files, the manifest, and a list of rejects at least.
    assert len(whole) > 3 * SHARDS + 4
    assert not [name for name in whole if "/." in f"/{name}"]
    return whole


@pytest.mark.matrix
def test_keeps_bytes_after_kills_at_random_moments(jobs: Jobs, undisturbed: dict[str, str], tmp_path: Path) -> None:
    chance = random.Random(1)
    kills = runs = 0
    output = tmp_path / "0"
    while kills < MOMENTS:
        runs += 1
        assert runs < 5 * MOMENTS
        # Before anything is written, and later and later among the shards; a run that was done before starts anew.
        shards = SHARDS * (kills % 4) // 4
        pid, killed = jobs.run(output, "--resume", kill_after=chance.uniform(0, 0.5), shards=shards)
        assert_nobody_is_left(pid)
        kills += killed
        if not killed:
            assert digests(output) == undisturbed
            output = tmp_path / str(runs)
    jobs.run(output, "--resume")
    assert digests(output) == undisturbed


@pytest.mark.matrix
@pytest.mark.parametrize("workers", ["2", "4"])
def test_more_workers_write_the_same_bytes(
    jobs: Jobs, undisturbed: dict[str, str], tmp_path: Path, workers: str
) -> None:
    jobs.run(tmp_path / "out", "--workers", workers)
    assert digests(tmp_path / "out") == undisturbed


# tests/beam_jobs/test_kill.py kills two workers, of images.
@pytest.mark.matrix
def test_keeps_bytes_after_a_kill_of_two_workers(jobs: Jobs, undisturbed: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    pid, killed = jobs.run(output, "--resume", "--workers", "2", kill_after=0, shards=SHARDS // 2)
    assert killed
    assert_nobody_is_left(pid)
    assert not (output / "manifest.json").exists()
    jobs.run(output, "--resume")
    assert digests(output) == undisturbed
