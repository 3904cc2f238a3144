"""Methods of a namedtuple, which programs call on the configurations and specs of TensorFlow's Estimator."""

import dataclasses
from typing import Any, TypeVar

_T = TypeVar("_T", bound="NamedTupleMethods")


class _Fields:
    """Descriptor that returns the names of a dataclass's fields, on the class and on its objects."""

    def __get__(self, instance: object, owner: Any) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(owner))


class NamedTupleMethods:
    """`_fields`, `_asdict` and `_replace` of a namedtuple, for a frozen dataclass."""

    _fields = _Fields()

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def _replace(self: _T, **changes: object) -> _T:
        """Return a copy with `changes`.

        Raises:
            ValueError: a field is unknown. A value that the class rejects raises the constructor's error.
        """
        unknown = sorted(changes.keys() - set(self._fields))
        if unknown:
            raise ValueError(
                f"{type(self).__name__}._replace got {unknown} (expected some of {', '.join(self._fields)})."
            )
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]  # Subclasses are dataclasses.
