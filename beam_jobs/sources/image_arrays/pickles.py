"""Pickles of arrays, numbers, strings, lists and dicts, read without making any other object.

Python's pickles are programs: unpickling one may run any code. This reader supports the operations that put values together
(pickletools.py of the standard library documents them all) and the functions with which NumPy makes arrays. None is called: an
array becomes its shape and the place of its bytes in the file, so the pixels of a file of CIFAR are not read here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

from beam_jobs.references.ranged_file import file_size, open_ranged
from tpudata.errors import CorruptionError, SourceError

# Longer bytes and strings stay in the file: the pixels of a single image are longer, names of classes and files are not.
_MAX_READ_BYTES = 1 << 10
_BUFFER_BYTES = 1 << 18
# Maximum length of the name of a module or function, with its line end.
_MAX_LINE_BYTES = 256
# Functions and types that make an array, by module and name; `_core` is NumPy 2's.
_RECONSTRUCT, _FROM_BUFFER, _DTYPE, _NDARRAY = "_reconstruct", "_frombuffer", "dtype", "ndarray"
_KNOWN_NAMES = {
    **{(f"numpy.{core}.multiarray", _RECONSTRUCT): _RECONSTRUCT for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", _FROM_BUFFER): _FROM_BUFFER for core in ("core", "_core")},
    ("numpy", _DTYPE): _DTYPE,
    ("numpy", _NDARRAY): _NDARRAY,
}


class BytesPlace(NamedTuple):
    """Long bytes that stay in the file.

    Attributes:
        offset: offset of the first byte.
        size: number of bytes.
    """

    offset: int
    size: int


class PickledArray:
    """An array.

    Attributes:
        shape: sizes; empty until the pickle sets the array's state.
        dtype: NumPy's name of the type, such as `u1`.
        is_fortran: whether the first axis is the fastest.
        data: its bytes, or their place in the file.
    """

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype = ""
        self.is_fortran = False
        self.data: bytes | BytesPlace = b""


class _KnownName(NamedTuple):
    """A function or type of `_KNOWN_NAMES`."""

    name: str


class _Dtype(NamedTuple):
    """The type of an array's numbers, as NumPy names it."""

    name: str


# On the stack, the start of the items of a tuple, list or dict.
_MARK = object()


def read_pickle(path: str) -> Any:
    """Return the pickled value of a file: strings are bytes or str, arrays `PickledArray`, long strings and bytes `BytesPlace`.

    Raises:
        CorruptionError: the file is truncated or damaged.
        SourceError: the file needs a type or function that is not in `_KNOWN_NAMES`; the message names it.
    """
    size = file_size(path)
    with open_ranged(path, size, _BUFFER_BYTES) as file:
        reader = _PickleReader(file, path, size)
        try:
            return reader.run()
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise CorruptionError(path, reader.offset, f"the pickle is cut or damaged: {error!r}") from None


class _PickleReader:
    """Interpreter of a pickle's operations. Operations of a damaged pickle raise the errors that `read_pickle` translates.

    Attributes:
        offset: offset in the file of the current operation.
    """

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self._file = file
        self._path = path
        self._size = size
        self._stack: list[Any] = []
        # By number: values that the pickle uses again.
        self._memo: dict[int, Any] = {}
        self.offset = 0

    def run(self) -> Any:
        """Run all operations, and return the value that they leave; ValueError for an unknown operation."""
        while True:
            self.offset = self._file.tell()
            code = self._take(1)
            # STOP, the last operation of a pickle.
            if code == b".":
                return self._stack.pop()
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise ValueError(f"operation {code!r}")
            operation(self)

    def _take(self, size: int) -> bytes:
        """Return the next `size` bytes; ValueError if the file has fewer."""
        data = self._file.read(size)
        if len(data) < size:
            raise ValueError("the file ends")
        return data

    def _read_number(self, number_format: str) -> int:
        """Return the next number; `number_format` is its format, in the notation of `struct`."""
        number: int = struct.unpack(number_format, self._take(struct.calcsize(number_format)))[0]
        return number

    def _read_line(self) -> str:
        """Return the name up to the next line end; ValueError if it is too long or without an end."""
        line = self._file.readline(_MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise ValueError("a name without end")
        return line[:-1].decode()

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _push_bytes(self, size_format: str, *, is_text: bool = False) -> None:
        """Push bytes or a string whose size precedes them; if they are long, push only their place in the file.

        `size_format` is the format of the size, in the notation of `struct`.
        """
        size = self._read_number(size_format)
        start = self._file.tell()
        if not 0 <= size <= self._size - start:
            raise ValueError("the file ends inside a text")
        if size > _MAX_READ_BYTES:
            self._file.seek(start + size)
            self._push(BytesPlace(start, size))
            return
        data = self._take(size)
        self._push(data.decode("utf-8", "surrogatepass") if is_text else data)

    def _pop_mark(self) -> list[Any]:
        """Remove the topmost mark and the values above it; return the values."""
        index = len(self._stack) - 1
        while self._stack[index] is not _MARK:
            index -= 1
            if index < 0:
                raise ValueError("no mark")
        values = self._stack[index + 1 :]
        del self._stack[index:]
        return values

    def _pop(self, count: int) -> tuple[Any, ...]:
        """Remove the topmost `count` values, and return them, the topmost last; ValueError if there are fewer."""
        if count > len(self._stack):
            raise ValueError("too few values")
        values = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        return values

    def _extend_list(self, items: list[Any]) -> None:
        """Append items to the list on top of the stack."""
        self._stack[-1].extend(items)

    def _set_items(self, items: list[Any]) -> None:
        """Add items to the dict on top of the stack: keys and values alternate."""
        self._stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _memorize(self, number: int) -> None:
        """Store the topmost value under a number, so that the pickle can use it again."""
        self._memo[number] = self._stack[-1]

    def _push_known_name(self, module: str, name: str) -> None:
        """Push a known name in place of the object that Python would import; SourceError for any other name."""
        known_name = _KNOWN_NAMES.get((module, name))
        if known_name is None:
            raise SourceError(
                f"{self._path}: a pickle with {module}.{name} (expected only arrays, numbers, texts, lists and dicts). It is not"
                " read, since unpickling may run any code. Save its images as files."
            )
        self._push(_KnownName(known_name))

    def _reduce(self) -> None:
        """Replace a function and its arguments on the stack by the function's result, without calling it."""
        function, arguments = self._pop(2)
        if function == _KnownName(_RECONSTRUCT):
            # The array is empty until an operation BUILD sets its state, see `_build`.
            self._push(PickledArray())
        elif function == _KnownName(_DTYPE):
            self._push(_Dtype(_decode_text(arguments[0])))
        elif function == _KnownName(_FROM_BUFFER):
            array = PickledArray()
            array.data, dtype, array.shape, order = arguments
            array.dtype, array.is_fortran = dtype.name, _decode_text(order) == "F"
            self._push(array)
        else:
            raise TypeError(f"a call of {function!r}")

    def _build(self) -> None:
        """Pop a state, and set it in the array below; the state of a dtype, such as its byte order, is ignored."""
        (state,) = self._pop(1)
        target = self._stack[-1]
        if isinstance(target, PickledArray):
            # A version, shape, dtype, whether the first axis is the fastest, and the array's bytes.
            _, target.shape, dtype, is_fortran, target.data = state
            target.dtype, target.is_fortran = dtype.name, bool(is_fortran)
        # The state of a dtype is ignored: CIFAR's arrays are of bytes, which have no order.
        elif not isinstance(target, _Dtype):
            raise TypeError(f"a state of {target!r}")


def _decode_text(value: str | bytes) -> str:
    """Return a name as a string; pickles of Python 2 have names as bytes."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _push_integer(reader: _PickleReader) -> None:
    """Push an integer whose number of bytes precedes it."""
    # The size is one byte, so the integer has at most 255 bytes.
    reader._push(int.from_bytes(reader._take(reader._read_number("<B")), "little", signed=True))


# Operations by code; comments give the names that pickletools uses.
_OPERATIONS: Mapping[bytes, Callable[[_PickleReader], Any]] = {
    b"\x80": lambda reader: reader._take(1),  # PROTO
    b"\x95": lambda reader: reader._take(8),  # FRAME
    b"(": lambda reader: reader._push(_MARK),  # MARK
    b"}": lambda reader: reader._push({}),  # EMPTY_DICT
    b"]": lambda reader: reader._push([]),  # EMPTY_LIST
    b")": lambda reader: reader._push(()),  # EMPTY_TUPLE
    b"N": lambda reader: reader._push(None),  # NONE
    b"\x88": lambda reader: reader._push(True),  # NEWTRUE
    b"\x89": lambda reader: reader._push(False),  # NEWFALSE
    b"K": lambda reader: reader._push(reader._read_number("<B")),  # BININT1
    b"M": lambda reader: reader._push(reader._read_number("<H")),  # BININT2
    b"J": lambda reader: reader._push(reader._read_number("<i")),  # BININT
    b"\x8a": _push_integer,  # LONG1
    b"U": lambda reader: reader._push_bytes("<B"),  # SHORT_BINSTRING
    b"T": lambda reader: reader._push_bytes("<i"),  # BINSTRING
    b"C": lambda reader: reader._push_bytes("<B"),  # SHORT_BINBYTES
    b"B": lambda reader: reader._push_bytes("<I"),  # BINBYTES
    b"\x8e": lambda reader: reader._push_bytes("<Q"),  # BINBYTES8
    b"\x96": lambda reader: reader._push_bytes("<Q"),  # BYTEARRAY8
    b"X": lambda reader: reader._push_bytes("<I", is_text=True),  # BINUNICODE
    b"\x8c": lambda reader: reader._push_bytes("<B", is_text=True),  # SHORT_BINUNICODE
    b"q": lambda reader: reader._memorize(reader._read_number("<B")),  # BINPUT
    b"r": lambda reader: reader._memorize(reader._read_number("<I")),  # LONG_BINPUT
    b"\x94": lambda reader: reader._memorize(len(reader._memo)),  # MEMOIZE
    b"h": lambda reader: reader._push(reader._memo[reader._read_number("<B")]),  # BINGET
    b"j": lambda reader: reader._push(reader._memo[reader._read_number("<I")]),  # LONG_BINGET
    b"a": lambda reader: reader._stack[-2].append(reader._stack.pop()),  # APPEND
    b"e": lambda reader: reader._extend_list(reader._pop_mark()),  # APPENDS
    b"s": lambda reader: reader._set_items(list(reader._pop(2))),  # SETITEM
    b"u": lambda reader: reader._set_items(reader._pop_mark()),  # SETITEMS
    b"t": lambda reader: reader._push(tuple(reader._pop_mark())),  # TUPLE
    b"\x85": lambda reader: reader._push(reader._pop(1)),  # TUPLE1
    b"\x86": lambda reader: reader._push(reader._pop(2)),  # TUPLE2
    b"\x87": lambda reader: reader._push(reader._pop(3)),  # TUPLE3
    b"c": lambda reader: reader._push_known_name(reader._read_line(), reader._read_line()),  # GLOBAL
    b"\x93": lambda reader: reader._push_known_name(*map(_decode_text, reader._pop(2))),  # STACK_GLOBAL
    b"R": lambda reader: reader._reduce(),  # REDUCE
    b"b": lambda reader: reader._build(),  # BUILD
}
