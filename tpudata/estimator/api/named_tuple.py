"""The methods of a namedtuple: the original's configurations and specs have them, and programs call them."""

import dataclasses
from typing import Any, TypeVar

_T = TypeVar("_T", bound="NamedTupleMethods")


class _Fields:
    """The names of a dataclass's fields, of the class as well as of its objects."""

    def __get__(self, instance: object, owner: Any) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(owner))


class NamedTupleMethods:
    """The methods of a namedtuple for a frozen dataclass."""

    _fields = _Fields()

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def _replace(self: _T, **changes: Any) -> _T:
        """Return a copy with `changes`.

        Raises:
            ValueError: an unknown field.
        """
        unknown = sorted(changes.keys() - set(self._fields))
        if unknown:
            raise ValueError(
                f"{type(self).__name__}._replace got {unknown} (expected some of {', '.join(self._fields)})."
            )
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]  # Subclasses are dataclasses.
