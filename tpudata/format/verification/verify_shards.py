"""Checks of all shards of a dataset, in this process or divided among several."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from tpudata.console.process import useful_workers
from tpudata.format.manifest.manifest import Shard
from tpudata.format.verification.defect import Defect
from tpudata.format.verification.shard_check import ShardCheck


def shard_defects(
    check: ShardCheck, shards: list[Shard], workers: int, progress: Callable[[int, int], None] | None
) -> Iterator[Defect]:
    """Yield the defects of shards, in their order.

    Args:
        check: check of one shard.
        shards: the shards.
        workers: number of processes among which they are divided; no more are started than are useful.
        progress: called with the number of bytes read since the last call, and the number in all shards.
    """
    total = sum(shard.bytes for shard in shards)
    advance = functools.partial(_advance, progress, total) if progress else None
    if min(workers, len(shards)) <= 1:
        for shard in shards:
            yield from check.defects(shard, advance)
        return
    # Spawned processes: a fork would copy locks that threads of this process hold.
    context = multiprocessing.get_context("spawn")
    # A pipe without data: each process ends at end-of-file, which comes when this one closes its end or is killed.
    reader, writer = context.Pipe(duplex=False)
    count = useful_workers(workers, len(shards))
    with concurrent.futures.ProcessPoolExecutor(count, context, _start_process, (reader,)) as pool:
        try:
            with _defer_signals():
                defects_by_shard = pool.map(functools.partial(_list_defects, check), shards)
            for shard, defects in zip(shards, defects_by_shard, strict=True):
                yield from defects
                if advance:
                    advance(shard.bytes)
        except BaseException:
            writer.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            writer.close()
            reader.close()


@contextlib.contextmanager
def _defer_signals() -> Iterator[None]:
    """Handle signals after processes have started: a half-started one would end with a traceback.

    Signals are also blocked, which the processes inherit. Blocking alone is not enough: another thread receives a signal that the
    main thread blocks, and the main thread handles it.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    received: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        # A handler that is not Python's cannot be restored.
        handlers = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
        for number in handlers:
            signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for late in received:
            signal.raise_signal(late)


def _start_process(lifeline: Connection) -> None:
    """Let a process end with the one that started it, or by SIGTERM. Ctrl-C, which goes to all, stays blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def _advance(progress: Callable[[int, int], None], total: int, read: int) -> None:
    progress(read, total)


def _list_defects(check: ShardCheck, shard: Shard) -> list[Defect]:
    return list(check.defects(shard))
