"""The prefetching thread: the items it holds, and its end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tpudata.devices.batches.prefetcher import Prefetcher


class Item:
    """A value that weak references can watch."""

    def __init__(self, number: int) -> None:
        self.number = number


def numbers(end: int) -> Any:
    return lambda: iter(range(end))


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_items_come_in_order_and_then_the_end() -> None:
    items = Prefetcher(numbers(20), lambda number: number * 2, ahead=2, name="test")
    assert list(items) == list(range(0, 40, 2))
    assert list(items) == []


@pytest.mark.parametrize("ahead", [1, 3])
def test_places_no_more_than_ahead_items(ahead: int) -> None:
    placed: list[int] = []
    read: list[int] = []

    def source() -> Iterator[int]:
        for number in range(20):
            read.append(number)
            yield number

    items = Prefetcher(source, lambda number: placed.append(number) or number, ahead=ahead, name="test")  # type: ignore[func-returns-value]
    for taken in range(3):
        wait_for(lambda taken=taken: len(placed) == ahead + taken and len(read) == ahead + taken + 1)
        time.sleep(0.02)
        assert len(placed) == ahead + taken
        assert next(items) == taken
    items.close()


@pytest.mark.parametrize("fails", ["read", "place"])
def test_an_error_is_raised_once_and_after_earlier_items(fails: str) -> None:
    error = OSError("gone")

    def source() -> Iterator[int]:
        yield from range(3)
        if fails == "read":
            raise error
        yield 3

    def place(number: int) -> int:
        if number == 3:
            raise error
        return number

    items = Prefetcher(source, place, ahead=2, name="test")
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="gone") as raised:
        next(items)
    assert raised.value is error
    assert list(items) == []


def test_closing_wakes_a_thread_that_waits_for_an_item() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        begun.set()
        go_on.wait(30)
        yield 1

    cancelled: list[int] = []
    items = Prefetcher(source, lambda number: number, ahead=1, name="test", cancel=lambda: cancelled.append(1))
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(list(items)))
    waiting.start()
    begun.wait(30)
    items.close()
    items.close()
    waiting.join(30)
    go_on.set()
    assert found == [[]]
    assert cancelled == [1]


@pytest.mark.parametrize("end", ["closed", "dropped", "failed", "used up"])
def test_the_thread_deletes_its_iterator_and_ends(end: str) -> None:
    deleted: list[threading.Thread] = []

    class Source:
        """An iterator whose deletion is slow, as TensorFlow's may be."""

        def __init__(self) -> None:
            weakref.finalize(self, lambda: deleted.append(threading.current_thread()))
            self.number = 0

        def __iter__(self) -> Source:
            return self

        def __next__(self) -> int:
            self.number += 1
            if self.number > 4:
                raise OSError if end == "failed" else StopIteration
            return self.number

    items = Prefetcher(Source, lambda number: number, ahead=1, name="tpudata-test")
    next(items)
    if end == "closed":
        items.close()
    elif end == "failed":
        with pytest.raises(OSError):  # noqa: PT011
            list(items)
    elif end == "used up":
        assert list(items) == [2, 3, 4]
    del items
    gc.collect()
    wait_for(lambda: not any(thread.name == "tpudata-test" for thread in threading.enumerate()))
    assert [thread.name for thread in deleted] == ["tpudata-test"]


def test_holds_no_item_that_was_taken() -> None:
    placed: list[int] = []

    def place(item: Item) -> Item:
        placed.append(item.number)
        return item

    items = Prefetcher(lambda: map(Item, range(9)), place, ahead=1, name="test")
    item = next(items)
    held = weakref.ref(item)
    wait_for(lambda: len(placed) == 2)
    del item
    wait_for(lambda: held() is None)
    items.close()
