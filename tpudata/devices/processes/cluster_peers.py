"""Several processes, and how they agree: each is connected with the first, which combines what they send and answers.

Numbers are exchanged apart from the devices, so an exchange neither waits for a loop that runs nor needs a compiled program.

jax has no door for this (tried: 0.10.2 and 0.12.0, processes with CPU devices):

- Its coordination service, with its store of keys and `live_devices`, aborts all processes once the first is killed, also with
  `jax_enable_recoverability`; without that, once any is. Its client's private `missed_heartbeat_callback` aborts as well.
- `multihost_utils.process_allgather` and the like are collectives of the devices. Gloo matches these by their order alone: next
  to a step that another thread runs on the same devices, they hang, or abort a process. Their errors name no process, and a
  process that computes or waits for a TPU would not notice the end of another.
"""

import atexit
import contextlib
import functools
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.devices.errors import ClusterError
from tpudata.devices.processes.links import Link, LinkEndedError
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.process_group import ProcessGroup
from tpudata.error_text import libraries as texts

_log = logging.getLogger("tpudata")
_SUM, _LEAST, _BYTES = b"s", b"m", b"b"
# The first process gets numbers, the others also values of variables.
_MOST_BYTES_OF_NUMBERS, _MOST_BYTES_OF_VALUES = 1 << 20, 1 << 36
# The connections may notice the end of a process later than the devices.
_NOTICE_SECONDS = 3.0
STUCK_SECONDS = 5.0


class ClusterPeers(Peers):
    """The processes of a cluster.

    Args:
        group: the processes.
        connections: a connection to each other process by its number, in the first process; in the others, one to the first.
        stuck_seconds: seconds after which `waiting` ends this process, if another one has ended.
    """

    def __init__(
        self, group: ProcessGroup, connections: Mapping[int, socket.socket], stuck_seconds: float = STUCK_SECONDS
    ) -> None:
        self.index = group.index
        self.count = group.count
        self._group = group
        self._pid = os.getpid()
        self._stuck_seconds = stuck_seconds
        self._lost = threading.Event()
        self._loss = ""
        self._waits_since: float | None = None
        most_bytes = _MOST_BYTES_OF_NUMBERS if self.is_chief else _MOST_BYTES_OF_VALUES
        self._links = {
            number: Link(connection, most_bytes, self._note, functools.partial(self._lose, number))
            for number, connection in connections.items()
        }
        for link in self._links.values():
            link.start()
        atexit.register(self.close)

    def sum_numbers(self, numbers: Sequence[int]) -> list[int]:
        """Return the sums of the numbers over the processes, each of which must call this."""
        return self._combine(_SUM, numbers, np.sum)

    def least(self, numbers: Sequence[int]) -> list[int]:
        """Return the least of each of the numbers over the processes, each of which must call this."""
        return self._combine(_LEAST, numbers, np.min)

    def chiefs_bytes(self, data: bytes) -> bytes:
        """Return the chief's bytes."""
        return self._exchange(_BYTES, b"", lambda _: data)

    def chiefs_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chief's values of tensors, of the same shapes and dtypes everywhere."""
        return {name: self._chiefs_value(value) for name, value in values.items()}

    def _chiefs_value(self, value: Any) -> Any:
        tensor = tf.convert_to_tensor(value)
        if tensor.dtype == tf.string:
            data = self.chiefs_bytes(tf.io.serialize_tensor(tensor).numpy())
            return tf.io.parse_tensor(data, tf.string)
        array = tensor.numpy()
        data = self.chiefs_bytes(np.ascontiguousarray(array).tobytes() if self.is_chief else b"")
        return tensor if self.is_chief else tf.constant(np.frombuffer(data, array.dtype).reshape(array.shape))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise errors that follow from the end of another process as a ClusterError."""
        try:
            yield
        except ClusterError as error:
            _forget_frames(error)
            raise
        except (RuntimeError, ValueError) as error:
            if isinstance(error, tf.errors.OpError) or not self._follows(error):
                raise
            _forget_frames(error)
            raise ClusterError(self._message()) from None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for the devices inside this: after another process has ended, they may wait for it for ever.

        Nothing can stop such a wait, so it ends this process after 5 s, with a message.
        """
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waits_since = None

    def close(self) -> None:
        """Say to the others that this process ends, and do nothing in a forked child."""
        for link in self._links.values() if os.getpid() == self._pid else ():
            link.close()

    def _combine(self, kind: bytes, numbers: Sequence[int], combine: Callable[..., Any]) -> list[int]:
        def reply(sent: list[bytes]) -> bytes:
            return bytes(combine([np.frombuffer(data, np.int64) for data in sent], axis=0))

        data = self._exchange(kind, np.asarray(numbers, np.int64).tobytes(), reply)
        return list(map(int, np.frombuffer(data, np.int64)))

    def _exchange(self, kind: bytes, data: bytes, reply: Callable[[list[bytes]], bytes]) -> bytes:
        """Send bytes to the first process, and return its reply to those of all."""
        try:
            if not self.is_chief:
                link = self._links[0]
                link.send(kind, data)
                return self._receive(link, kind)
            answer = reply([data, *(self._receive(link, kind, len(data)) for link in self._links.values())])
            for link in self._links.values():
                link.send(kind, answer)
            return answer
        except LinkEndedError:
            raise ClusterError(self._message()) from None

    def _receive(self, link: Link, kind: bytes, size: int | None = None) -> bytes:
        """Return the bytes of the next message, which must be of the same call."""
        found, data = link.receive()
        if found != kind or size not in (None, len(data)):
            raise ClusterError(
                f"{self._group.origin}: {self._group.name} and another process do different things (got a message {found!r} of "
                f"{len(data)} bytes, expected {kind!r}). Start the same program with the same options in all processes."
            )
        return data

    def _lose(self, number: int, has_left: bool) -> None:
        """Note the end of a process, and pass it on."""
        how = "has ended" if has_left else "was killed or cannot be reached"
        loss = f"{self._group.names[number]} {how}".encode()
        self._note(loss)
        for other, link in self._links.items() if self.is_chief else ():
            if other != number:
                link.notify(loss)

    def _note(self, loss: bytes) -> None:
        """Note the end of a process, which this one or the first has noticed."""
        if not self._lost.is_set():
            self._loss = loss.decode(errors="replace")
            self._lost.set()
            threading.Thread(target=self._end_if_stuck, name="tpudata-peer", daemon=True).start()

    def _end_if_stuck(self) -> None:
        begin = time.monotonic()
        while True:
            time.sleep(min(1.0, self._stuck_seconds / 4))
            since = self._waits_since
            if since is not None and time.monotonic() - max(since, begin) > self._stuck_seconds:
                _log.critical("ClusterError: %s", self._message())
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(ClusterError.exit_code)

    def _follows(self, error: Exception) -> bool:
        """Return whether an error follows from the end of another process."""
        text = str(error)
        return bool(texts.LOST_EXCHANGE.search(text) or (self._lost.is_set() and texts.RUNTIME_STATUS.match(text)))

    def _message(self) -> str:
        self._lost.wait(_NOTICE_SECONDS)
        loss = self._loss or "which ended or cannot be reached"
        return (
            f"{self._group.origin}: {self._group.name} lost another process of the cluster: {loss}. Check the log of that process, "
            "and start all processes again: training continues from the newest checkpoint."
        )


def _forget_frames(error: Exception) -> None:
    """Let go of the frames of an error: at exit, the data's iterator in them would wait for ever for Python in the input."""
    traceback.clear_frames(error.__traceback__)
