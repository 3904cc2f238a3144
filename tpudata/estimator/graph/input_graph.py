"""Graph of an input_fn that returns tensors, and the session that runs it."""

import threading
from collections.abc import Sequence

import tensorflow as tf

_v1 = tf.compat.v1


class InputGraph(tf.Graph):  # type: ignore[misc]  # TensorFlow is untyped
    """Graph in which an input_fn made its tensors.

    A hook may run operations of it before the first batch, such as an iterator's initializer in `after_create_session`. So
    either the hook or the pass over the data opens the session, and the end of the pass closes it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._initializers: Sequence[tf.Operation] = ()
        self._session: tf.compat.v1.Session | None = None
        self._session_lock = threading.Lock()

    def set_initializers(self, operations: Sequence[tf.Operation]) -> None:
        """Set the operations that each session runs first."""
        self._initializers = operations

    def open_session(self) -> tf.compat.v1.Session:
        """Return the open session of the graph, or a new one."""
        with self._session_lock:
            if self._session is None:
                # A session that sees GPUs could set them up with TensorFlow's defaults, instead of the memory and logical devices
                # that the program chose.
                self._session = _v1.Session(graph=self, config=_v1.ConfigProto(device_count={"GPU": 0}))
                self._session.run(self._initializers)
            return self._session

    def close_session(self) -> None:
        """Close the session, if one is open; the next pass over the data gets a new one."""
        with self._session_lock:
            if self._session is not None:
                self._session.close()
                self._session = None


def find_input_graph(fetches: object) -> InputGraph | None:
    """Return the InputGraph that fetches belong to; None if they belong to another graph or are names."""
    graphs = (getattr(fetch, "graph", None) for fetch in tf.nest.flatten(fetches) if not isinstance(fetch, str | bytes))
    return next((graph for graph in graphs if isinstance(graph, InputGraph)), None)
