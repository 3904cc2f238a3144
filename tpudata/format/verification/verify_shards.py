"""Checks of all shards of a dataset, in this process or divided among several."""

from __future__ import annotations

import concurrent.futures.process
import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from tpudata.console.lifeline import watch
from tpudata.console.process import limit_workers
from tpudata.console.signals import defer_signals
from tpudata.errors import TpudataError
from tpudata.format.manifest.manifest import Shard
from tpudata.format.verification.defect import Defect
from tpudata.format.verification.shard_check import ShardCheck


def find_shard_defects(
    check: ShardCheck, shards: list[Shard], workers: int, progress: Callable[[int, int], None] | None
) -> Iterator[Defect]:
    """Yield the defects of shards, in their order.

    Args:
        check: check of one shard.
        shards: shards to check.
        workers: number of processes among which they are divided; no more are started than are useful.
        progress: called with the number of bytes read since the last call, and the number in all shards.

    Raises:
        TpudataError: a process was killed.
    """
    total_bytes = sum(shard.bytes for shard in shards)
    advance = functools.partial(_advance, progress, total_bytes) if progress else None
    if min(workers, len(shards)) <= 1:
        for shard in shards:
            yield from check.find_defects(shard, advance)
        return
    # Spawned processes: a fork would copy locks that threads of this process hold.
    context = multiprocessing.get_context("spawn")
    # A pipe without data: each process ends at end-of-file, which comes when this process closes its end or is killed.
    reader, writer = context.Pipe(duplex=False)
    process_count = limit_workers(workers, len(shards))
    with concurrent.futures.ProcessPoolExecutor(process_count, context, _tie_to_parent, (reader,)) as pool:
        try:
            # Start the processes with signals blocked: a signal would end a half-started one with a traceback.
            with defer_signals():
                defects_by_shard = pool.map(functools.partial(_list_defects, check), shards)
            for shard, defects in zip(shards, defects_by_shard, strict=True):
                yield from defects
                if advance:
                    advance(shard.bytes)
        except concurrent.futures.process.BrokenProcessPool:
            raise TpudataError(
                f"{check.folder}: a process that checked its shards ended early. If memory ran out, use fewer --workers."
            ) from None
        except BaseException:
            # End the processes now: `shutdown` would wait for the shards that they are reading.
            writer.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            writer.close()
            reader.close()


def _tie_to_parent(lifeline: Connection) -> None:
    """Make this worker process end with the process that started it, or by SIGTERM; Ctrl-C, which reaches both, stays blocked.

    Args:
        lifeline: reading end of a pipe without data: it finds the end of file when the starting process closes its end or dies.
    """
    # `defer_signals` blocked both signals when this process started.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    watch(lifeline.fileno(), functools.partial(os._exit, TpudataError.exit_code))


def _advance(progress: Callable[[int, int], None], total_bytes: int, read_bytes: int) -> None:
    """Call `progress` with the bytes read since its last call, and the total."""
    progress(read_bytes, total_bytes)


def _list_defects(check: ShardCheck, shard: Shard) -> list[Defect]:
    return list(check.find_defects(shard))
