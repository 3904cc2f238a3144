"""Messages of TensorFlow and XLA on steps that they cannot compile."""

import re

from tpudata.devices.graphs.graph_copy import SCOPE

_SCOPE = f"{SCOPE}/"
_PLACES = (re.compile(r"\{\{node ([^}]+)\}\}"), re.compile(r"node `([^`]+)`"))


def places_of(error: str) -> list[str]:
    """Return the names of the model's operations that a message names."""
    return [name.removeprefix(_SCOPE) for place in _PLACES for name in place.findall(error)]


def reason_of(error: str) -> str:
    """Return the first line of XLA's message, without the text that TensorFlow adds."""
    text = error.partition("'")[2] if error.startswith("Failed ") else error
    return text.strip().splitlines()[0].replace(f"`{_SCOPE}", "`").rstrip(".")
