"""Speed of reading and converting gs:// if every request takes time, next to plain ways.

    python scripts/bench/gcs.py [CASE ...] [--latency MS] [--bandwidth MB] [--objects N] [--kilobytes KB] [--megabytes MB]
                                [--shards N] [--streams N] [--block MB] [--rounds N] [--only PIPELINE ...]

Cases, by default all:

    convert   many small objects to shards by `tpudata convert images`, next to reading them one by one with Google's client
    read      records of 110 kB in shards through make_input_fn, next to tf.data.TFRecordDataset with as many streams, without
              and with a shuffle of the same window; in one pass, and in the steady state. `fetched` is bytes for each one used
    source    the same records through RecordSource, in order, shuffled, and at random, and as arrays of numpy and JAX, next to the
              same pipelines

The store is the one of the tests, in a separate process on loopback, in which every request waits for --latency and every answer is
sent at --bandwidth. This measures how requests overlap, not the speed of Google's store. All times are by the clock, in one run;
nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
RECORD_BYTES = 110_000
PIPELINES = {
    "read": ("plain, one pass", "evaluation", "plain", "in order", "plain, shuffled", "training"),
    "source": (
        *("plain, one pass", "source, one pass", "plain, shuffled", "source, shuffled", "source, grain"),
        *("source, batches", "source, 64 threads", "training, arrays", "as_numpy", "as_jax"),
    ),
}
# Number of objects that are read one after the other, to compute the rate for all of them.
ONE_BY_ONE = 60


def main() -> None:
    """Start the store, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="out of convert, read, source")
    parser.add_argument(
        "--latency", type=float, default=50.0, metavar="MS", help="of each request (default %(default)g)"
    )
    parser.add_argument(
        "--bandwidth", type=float, default=25.0, metavar="MB", help="MB/s of each answer (default %(default)g)"
    )
    parser.add_argument("--objects", type=int, default=8000, help="small ones (default %(default)s)")
    parser.add_argument("--kilobytes", type=int, default=10, help="of each small one (default %(default)s)")
    parser.add_argument("--megabytes", type=int, default=1200, help="in the shards (default %(default)s)")
    parser.add_argument("--shards", type=int, default=16, help="of the cases read and source (default %(default)s)")
    parser.add_argument("--streams", type=int, default=16, help="files or pieces read at a time (default %(default)s)")
    parser.add_argument("--block", type=int, metavar="MB", help="TensorFlow's block (default: its own, 64)")
    parser.add_argument("--rounds", type=int, default=1, help="of the cases read and source (default %(default)s)")
    names = sorted({name for pipelines in PIPELINES.values() for name in pipelines})
    parser.add_argument(
        "--only", action="append", choices=names, help="one of the pipelines; may be passed several times"
    )
    flags = parser.parse_args()
    for case in flags.cases or CASES:
        if case not in CASES:
            parser.error(f"no case {case!r}; there are {', '.join(CASES)}")
        with tempfile.TemporaryDirectory(prefix="tpudata-bench-") as folder:
            if case == "convert":
                convert(Path(folder), flags)
            else:
                read(Path(folder), flags, [name for name in PIPELINES[case] if name in (flags.only or PIPELINES[case])])


def convert(folder: Path, flags: argparse.Namespace) -> None:
    """Print objects per second: of a whole conversion, and of reading alone, one by one."""
    data = folder / "data"
    write_pictures(data / "in", flags.objects, flags.kilobytes * 1000)
    with run_store(data, flags):
        from tpudata.storage import storage_for

        gcs = storage_for("gs://data/in")
        paths = [entry.path for part in gcs.list("gs://data/in") for entry in gcs.list(part.path)]
        from google.cloud import storage

        bucket = storage.Client(project="test").bucket("data")
        # The first request also connects.
        bucket.blob(paths[0].removeprefix("gs://data/")).download_as_bytes()
        some_paths = paths[:ONE_BY_ONE]
        begin = time.perf_counter()
        for path in some_paths:
            bucket.blob(path.removeprefix("gs://data/")).download_as_bytes()
        single_rate = len(some_paths) / (time.perf_counter() - begin)
        command = [sys.executable, "-m", "beam_jobs.images", "--input", "gs://data/in", "--output", "gs://data/out"]
        begin, cpu = time.perf_counter(), read_child_cpu()
        process = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        process_rate = len(paths) / (time.perf_counter() - begin)
        cpu = read_child_cpu() - cpu
        # The first line of the job's result gives its time, without the start of the process.
        job_seconds = re.search(r"in ([\d.]+) s", process.stdout)
        job_rate = len(paths) / float(job_seconds[1]) if job_seconds else process_rate
    print(f"convert: {len(paths):,} objects of {flags.kilobytes} kB, {flags.latency:g} ms a request; objects a second")
    for name, rate in (
        ("one by one, Google's client, read alone", single_rate),
        ("tpudata convert images, as it says", job_rate),
        ("the same with the start of its process", process_rate),
    ):
        print(f"    {name:42} {rate:8.0f} {rate / single_rate:8.1f}")
    print(f"    CPU of the process: {cpu:.1f} s, {cpu / len(paths) * 1e3:.2f} ms an object")


def read_child_cpu() -> float:
    """Return the CPU time, of user and system, of the child processes that have ended, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def read(folder: Path, flags: argparse.Namespace, pipelines: Sequence[str]) -> None:
    """Run each pipeline in a separate process, and print the numbers that it reports."""
    data = folder / "data"
    size = write_shards(str(data / "set"), flags.megabytes, flags.shards)
    # The records in the default window of 512 MiB.
    window = (512 << 20) // RECORD_BYTES
    program = [sys.executable, str(Path(__file__).with_name("sides") / "read_gcs.py")]
    with run_store(data, flags):
        block = f"blocks of {flags.block} MB" if flags.block else "TensorFlow's own blocks"
        print(
            f"read: {flags.shards} shards, {size / 1e6:.0f} MB, {flags.latency:g} ms a request, {flags.bandwidth:g} MB/s each,"
            f" {flags.streams} streams, {block}; load {os.getloadavg()[0]:.1f}"
        )
        environment = os.environ | {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        # Without this variable our client sends requests by HTTPS, as TensorFlow's always does.
        url = environment.pop("STORAGE_EMULATOR_HOST")
        if flags.block:
            environment["GCS_READ_CACHE_BLOCK_SIZE_MB"] = str(flags.block)
        arguments = [
            str(flags.streams),
            str(window),
            str(flags.megabytes),
            f"{url}/counts",
        ]
        for round_number in range(flags.rounds):
            for name in pipelines:
                process = subprocess.run([*program, name, *arguments], env=environment, capture_output=True, text=True)
                if process.returncode:
                    sys.exit(f"{name}: {process.stderr[-2000:]}")
                # Libraries may print lines before the one with the numbers.
                numbers = json.loads(process.stdout.splitlines()[-1])
                if name == pipelines[0] and round_number == 0:
                    print("    " + " " * 18 + "".join(f"{column:>15}" for column in numbers))
                print(f"    {name:18}" + "".join(f"{value:15.2f}" for value in numbers.values()), flush=True)


CASES = ("convert", *PIPELINES)


@contextlib.contextmanager
def run_store(data: Path, flags: argparse.Namespace) -> Iterator[None]:
    """Run the store with a folder's files in the bucket data, and set the environment variables that lead to it."""
    file = data.parent / "environment"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scripts.fake_gcs", f"--bucket=data={data}", f"--environment={file}"]
    command += [f"--latency={flags.latency}", f"--bandwidth={flags.bandwidth}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            # The store writes the file, lines of `export NAME='VALUE'`, once it listens.
            while not file.exists():
                time.sleep(0.05)
            for line in file.read_text().splitlines():
                name, _, value = line.removeprefix("export ").partition("=")
                os.environ[name] = value.strip("'")
            yield
        finally:
            process.terminate()


def write_pictures(folder: Path, count: int, size: int) -> None:
    """Write `count` pictures into ten class folders, each padded to `size` bytes, which a conversion keeps."""
    from PIL import Image

    for number in range(count):
        path = folder / str(number % 10) / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = io.BytesIO()
        Image.fromarray(np.full((8, 8), number % 256, np.uint8)).save(encoded, "PNG")
        path.write_bytes(encoded.getvalue() + bytes(size - encoded.tell()))


def write_shards(folder: str, megabytes: int, shard_count: int) -> int:
    """Write records of random bytes to shards; return the bytes of the shards."""
    from tpudata.format import Feature, Manifest, Source, Split, encode_example, shard_name, write_metadata, write_shard

    random = np.random.default_rng(0)
    records_per_shard = megabytes * 10**6 // RECORD_BYTES // shard_count

    def make_records() -> Iterator[bytes]:
        for number in range(records_per_shard):
            yield encode_example({"image_raw": random.bytes(RECORD_BYTES), "label": number % 10})

    written_shards = [
        write_shard(folder, shard_name("train", number, shard_count), make_records()) for number in range(shard_count)
    ]
    features = (
        Feature("image_raw", "bytes", "uint8", (RECORD_BYTES, 1, 1), "raw"),
        Feature("label", "int64", "int64", num_classes=10),
    )
    source = Source("random", records_per_shard * shard_count, bytes=0, fingerprint="0")
    manifest = Manifest("raw", {"train": Split(tuple(written_shards))}, features, source, "bench", labels=10)
    write_metadata(folder, manifest, [str(number) for number in range(10)])
    return sum(shard.bytes for shard in written_shards)


if __name__ == "__main__":
    main()
