"""The code that is being traced and compiled, as messages name it: model_fn, or a function of `tpu_system`."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class TracedCode:
    """Words for messages about operations of a program's code.

    Attributes:
        name: name of the code.
        before: where a program can compute values before the code runs: words that follow "Compute it ".
        after: where a program can compute values after the code has run: words that also follow "Compute it ".
    """

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return self.name


_MODEL_FN = TracedCode("model_fn", "in input_fn", "from fetched values on the host (host_call, hooks, summaries)")
_current = contextvars.ContextVar("tpudata_traced_code", default=_MODEL_FN)


def traced_code() -> TracedCode:
    """Return the code that is being traced; model_fn outside of `tracing_function`."""
    return _current.get()


@contextlib.contextmanager
def tracing_function(name: str) -> Iterator[None]:
    """Let messages inside the context name a function of `tpu_system`."""
    code = TracedCode(f"tpu_system: {name}", before="on the host", after="from its results")
    token = _current.set(code)
    try:
        yield
    finally:
        _current.reset(token)
