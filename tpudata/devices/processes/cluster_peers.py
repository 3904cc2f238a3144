"""Several processes, and how they agree: each is connected to the first, which combines what they send and answers.

Numbers are exchanged without the devices, so an exchange neither waits for a loop that runs nor needs a compiled program.

jax offers nothing that fits (0.10.2 and 0.12.0, processes with CPU devices):

- Its coordination service, with its store of keys and `live_devices`, aborts all processes once the first is killed, even with
  `jax_enable_recoverability`, and without this option once any is killed. Its client's private `missed_heartbeat_callback` aborts
  as well.
- `multihost_utils.process_allgather` and the like are collectives of the devices. Gloo matches these only by their order: next
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

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpudata.devices.errors import ClusterError
from tpudata.devices.processes.links import Link, LinkEndedError
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.process_group import ProcessGroup
from tpudata.error_text import libraries as texts
from tpudata.tensor_types import Tensors

_log = logging.getLogger("tpudata")
# Kinds of messages.
_SUM, _MIN, _BYTES = b"s", b"m", b"b"
# Maximum bytes of a message to the first process, which has numbers, and from it, which may have values of variables.
_MAX_BYTES_OF_NUMBERS, _MAX_BYTES_OF_VALUES = 1 << 20, 1 << 36
# The devices may notice the end of a process earlier than the connections, by up to this time.
_NOTICE_SECONDS = 3.0
STUCK_SECONDS = 5.0


class ClusterPeers(Peers):
    """The processes of a cluster.

    Args:
        group: the processes, and which of them this one is.
        connections: in the first process, a connection to each other process by its index; in any other process, its connection to
            the first process by the index 0.
        stuck_seconds: seconds after which `limit_wait` ends this process, if another one has ended.
    """

    def __init__(
        self, group: ProcessGroup, connections: Mapping[int, socket.socket], stuck_seconds: float = STUCK_SECONDS
    ) -> None:
        self.index = group.index
        self.count = group.count
        self._group = group
        self._pid = os.getpid()  # A forked child inherits this object, and must not announce an end.
        self._stuck_seconds = stuck_seconds
        self._peer_ended = threading.Event()
        self._end_description = ""
        self._wait_start: float | None = None
        # Other processes send only numbers to the first process, which may send values of variables to them.
        max_bytes = _MAX_BYTES_OF_NUMBERS if self.is_chief else _MAX_BYTES_OF_VALUES
        self._links = {
            process: Link(connection, max_bytes, self._record_end, functools.partial(self._handle_end, process))
            for process, connection in connections.items()
        }
        for link in self._links.values():
            link.start()
        atexit.register(self.announce_end)

    def sum_numbers(self, numbers: Sequence[int]) -> list[int]:
        """Return the sums of the numbers over the processes; every process must call this."""
        return self._combine(_SUM, numbers, np.sum)

    def min_numbers(self, numbers: Sequence[int]) -> list[int]:
        """Return the minimum of each number over the processes; every process must call this."""
        return self._combine(_MIN, numbers, np.min)

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Return the chief's bytes in every process; every process must call this."""
        # The other processes send no bytes; the chief replies with its bytes.
        return self._exchange(_BYTES, b"", lambda _: data)

    def broadcast_values(self, values: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """Return the chief's values, as tensors, in every process; names, shapes and dtypes must be equal in all processes."""
        return {name: self._broadcast_value(value) for name, value in values.items()}

    def _broadcast_value(self, value: Tensors) -> tf.Tensor:
        """Return the chief's value as a tensor; each process passes its own value, which shows the dtype and the shape."""
        tensor = tf.convert_to_tensor(value)
        if tensor.dtype == tf.string:  # Strings have no fixed size, so their bytes do not suffice.
            data = self.broadcast_bytes(tf.io.serialize_tensor(tensor).numpy())
            return tf.io.parse_tensor(data, tf.string)
        array = tensor.numpy()
        data = self.broadcast_bytes(np.ascontiguousarray(array).tobytes() if self.is_chief else b"")
        return tensor if self.is_chief else tf.constant(np.frombuffer(data, array.dtype).reshape(array.shape))

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate errors that the end of another process caused into a ClusterError."""
        try:
            yield
        except ClusterError as error:
            # Iterators in the frames of an error would deadlock at exit.
            _forget_frames(error)
            raise
        except (RuntimeError, ValueError) as error:
            # TensorFlow exchanges nothing with other processes; only jax does.
            if isinstance(error, tf.errors.OpError) or not self._is_caused_by_ended_peer(error):
                raise
            _forget_frames(error)
            raise ClusterError(self._describe_error()) from None

    @contextlib.contextmanager
    def limit_wait(self) -> Iterator[None]:
        """End this process with a message if code inside waits for devices for `stuck_seconds` after another process has ended.

        The devices would wait for the ended process for ever, and nothing can stop this wait.
        """
        self._wait_start = time.monotonic()
        try:
            yield
        finally:
            self._wait_start = None

    def announce_end(self) -> None:
        """Tell the other processes that this one is ending; do nothing in a forked child."""
        if os.getpid() == self._pid:
            for link in self._links.values():
                link.announce_end()

    def _combine(self, kind: bytes, numbers: Sequence[int], combine: Callable[..., npt.NDArray[np.int64]]) -> list[int]:
        """Return the numbers of all processes, reduced elementwise by `combine` (a NumPy reduction)."""

        def make_reply(all_data: list[bytes]) -> bytes:
            return bytes(combine([np.frombuffer(data, np.int64) for data in all_data], axis=0))

        reply = self._exchange(kind, np.asarray(numbers, np.int64).tobytes(), make_reply)
        return list(map(int, np.frombuffer(reply, np.int64)))

    def _exchange(self, kind: bytes, data: bytes, make_reply: Callable[[list[bytes]], bytes]) -> bytes:
        """Send bytes to the first process, which sends the same reply to all, and return the reply.

        Args:
            kind: kind of the messages.
            data: bytes of this process.
            make_reply: function that the first process calls with the bytes of all processes.

        Raises:
            ClusterError: a process has ended, or sent a message of the wrong kind or size.
        """
        try:
            if not self.is_chief:
                link = self._links[0]
                link.send(kind, data)
                return self._receive(link, kind)
            reply = make_reply([data, *(self._receive(link, kind, len(data)) for link in self._links.values())])
            for link in self._links.values():
                link.send(kind, reply)
            return reply
        except LinkEndedError:
            raise ClusterError(self._describe_error()) from None

    def _receive(self, link: Link, kind: bytes, num_bytes: int | None = None) -> bytes:
        """Return the bytes of the next message; raise ClusterError unless it has this kind and size (None: any size)."""
        received_kind, data = link.receive()
        has_wrong_size = num_bytes is not None and len(data) != num_bytes
        if received_kind != kind or has_wrong_size:
            raise ClusterError(
                f"{self._group.origin}: {self._group.name} and another process do different things (got a message "
                f"{received_kind!r} of {len(data)} bytes, expected {kind!r}). Start the same program with the same options in all "
                "processes."
            )
        return data

    def _handle_end(self, ended_process: int, is_announced: bool) -> None:
        """Record the end of a process; the first process also notifies the remaining processes.

        Args:
            ended_process: index of the process.
            is_announced: whether the process announced its end; otherwise it was killed or cannot be reached.
        """
        ending = "has ended" if is_announced else "was killed or cannot be reached"
        description = f"{self._group.names[ended_process]} {ending}".encode()
        self._record_end(description)
        if not self.is_chief:
            return
        for process, link in self._links.items():
            if process != ended_process:
                link.notify(description)

    def _record_end(self, description: bytes) -> None:
        """Record the first end of a process, and start a thread that ends this process if it is stuck waiting for devices."""
        if not self._peer_ended.is_set():
            self._end_description = description.decode(errors="replace")
            self._peer_ended.set()
            threading.Thread(target=self._end_if_stuck, name="tpudata-peer", daemon=True).start()

    def _end_if_stuck(self) -> None:
        """End this process once it has waited for devices for too long since another process ended."""
        peer_end = time.monotonic()
        while True:
            time.sleep(min(1.0, self._stuck_seconds / 4))
            wait_start = self._wait_start
            if wait_start is not None and time.monotonic() - max(wait_start, peer_end) > self._stuck_seconds:
                _log.critical("ClusterError: %s", self._describe_error())
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
                # sys.exit would end only this thread; the thread that waits is inside jax, where no exception reaches it.
                os._exit(ClusterError.exit_code)

    def _is_caused_by_ended_peer(self, error: Exception) -> bool:
        """Return whether the end of another process caused an error."""
        message = str(error)
        return bool(
            texts.LOST_EXCHANGE.search(message) or (self._peer_ended.is_set() and texts.RUNTIME_STATUS.match(message))
        )

    def _describe_error(self) -> str:
        """Return the message about a lost process, with its name if the connections notice its end in time."""
        self._peer_ended.wait(_NOTICE_SECONDS)
        description = self._end_description or "it ended or cannot be reached"
        return (
            f"{self._group.origin}: {self._group.name} lost another process of the cluster: {description}. Check the log of that "
            "process, and start all processes again: training continues from the newest checkpoint."
        )


def _forget_frames(error: Exception) -> None:
    """Clear the frames of an error: an iterator that they hold would deadlock at exit if its input calls Python."""
    traceback.clear_frames(error.__traceback__)
