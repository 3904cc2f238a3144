"""Windows for the elements that a step yields at the end of a bundle, which Beam leaves without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue


def put_in_global_window(elements: Iterable[Any]) -> Iterator[Any]:
    """Yield elements, including those of side outputs, in the global window, with its last timestamp."""
    window = GlobalWindow()
    for element in elements:
        if isinstance(element, TaggedOutput):
            yield TaggedOutput(element.tag, WindowedValue(element.value, window.max_timestamp(), [window]))
        else:
            yield WindowedValue(element, window.max_timestamp(), [window])
