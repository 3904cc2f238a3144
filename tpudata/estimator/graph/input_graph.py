"""Graph of an input_fn that returns tensors, and the session that runs it."""

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_v1 = tf.compat.v1


class InputGraph(tf.Graph):  # type: ignore[misc]  # TensorFlow is untyped
    """Graph in which an input_fn made its tensors.

    A hook may run operations of it before the first batch, such as an iterator's initializer in `after_create_session`. So the
    session is opened by whoever comes first, the hook or the pass over the data, and closed at the end of the pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begin: Sequence[Any] = ()
        self._session: Any = None
        self._opening = threading.Lock()

    def begins_with(self, operations: Sequence[Any]) -> None:
        """Set the operations that each session runs first."""
        self._begin = operations

    def session(self) -> Any:
        """Return the open session of the graph, or a new one."""
        with self._opening:
            if self._session is None:
                # A session on GPUs would change how the program uses them.
                self._session = _v1.Session(graph=self, config=_v1.ConfigProto(device_count={"GPU": 0}))
                self._session.run(self._begin)
            return self._session

    def close_session(self) -> None:
        """Close the session, if one is open; the next pass over the data gets a new one."""
        with self._opening:
            if self._session is not None:
                self._session.close()
                self._session = None


def input_graph_of(fetches: Any) -> InputGraph | None:
    """Return the input_fn's graph that fetches belong to; None for those of another graph, and for names."""
    graphs = (getattr(item, "graph", None) for item in tf.nest.flatten(fetches) if not isinstance(item, str | bytes))
    return next((graph for graph in graphs if isinstance(graph, InputGraph)), None)
