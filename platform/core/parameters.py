"""Type, default, meaning, unit and range of members' parameters, from annotations of their fields.

A member says `period_s: Annotated[float, Gt(0), Means("time between two uploads", "s")] = 10.0`. The check of a
request, `driftlab show` and a search over the range read the same annotation. In a list the range is that of each item.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Le, Lt

from driftlab.errors import RequestError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

NUMBERS = {int, float}
BEFORE = "before"  # metadata of a parameter that came later: with this value all is as it was without the parameter
CHOOSING = "choosing"  # metadata of a parameter that changes the choice among networks, and nothing that is built


@dataclass(frozen=True)
class Means:
    """Meaning of a parameter, and its unit."""

    text: str
    unit: str = ""
    names: tuple[str, ...] = ()  # valid texts, for a parameter that accepts others as well


@dataclass(frozen=True)
class ValueRange:
    """Where a number must lie; None: no bound on that side."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.low is None or (value > self.low if self.low_open else value >= self.low)
        return above and (self.high is None or (value < self.high if self.high_open else value <= self.high))

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"in {'[('[self.low_open]}{self.low:g}, {self.high:g}{'])'[self.high_open]}"
        if self.low is not None:
            return f"{('at least', 'above')[self.low_open]} {self.low:g}"
        return "" if self.high is None else f"{('at most', 'below')[self.high_open]} {self.high:g}"


@dataclass(frozen=True)
class Parameter:
    """One parameter of a member."""

    name: str
    hint: Any  # its type, without annotations
    default: Any  # dataclasses.MISSING: it must be given
    meaning: str = ""
    unit: str = ""
    interval: ValueRange = ValueRange()
    names: tuple[str, ...] = ()  # see `Means`

    @property
    def may_be_none(self) -> bool:
        return type(None) in typing.get_args(self.hint)

    @property
    def _allowed(self) -> tuple[Any, ...]:
        """Return the values of an enumeration; empty for other types."""
        return typing.get_args(self.hint) if _is_choice(self.hint) else ()

    @property
    def range(self) -> str:
        """Describe the allowed values, as far as the annotations define them."""
        if self._allowed:
            return " | ".join(map(str, self._allowed))
        if self.names:
            return " | ".join((*self.names, "others"))
        bounds = str(self.interval)
        if bounds and typing.get_origin(self.hint) is tuple:
            bounds = f"each {bounds}"
        return f"{bounds}, or none" if bounds and self.may_be_none else bounds

    def faults(self, value: Any) -> Iterator[str]:
        """Yield a fault if a value lies outside the range, or a default is none of the allowed values."""
        values = value if isinstance(value, tuple) else (value,)
        if self._allowed and value not in self._allowed and value is not dataclasses.MISSING:
            yield f"'{self.name}' is {value!r}, must be {self.range}"
        if any(isinstance(one, int | float) and one not in self.interval for one in values):
            yield f"'{self.name}' is {value}, must be {self.range}"


def parameters_of(cls: type[Any]) -> Mapping[str, Parameter]:
    """Describe the parameters of a member by name, in their order."""
    hint: Any = cls
    return _parameters_of(hint)


@functools.cache
def _parameters_of(cls: Any) -> Mapping[str, Parameter]:
    plain = typing.get_type_hints(cls)
    hints = [typing.get_type_hints(base, include_extras=True) for base in cls.__mro__[:-1]]
    return MappingProxyType(
        {
            field.name: _described(field, plain[field.name], [own[field.name] for own in hints if field.name in own])
            for field in dataclasses.fields(cls)
            if field.init
        }
    )


def _described(field: dataclasses.Field[Any], plain: Any, hints: Sequence[Any]) -> Parameter:
    """Describe a field; one that a base has too keeps its type of number, its choices and its range."""
    notes = [getattr(hint, "__metadata__", ()) for hint in hints]
    means = next((note for note in notes[0] if isinstance(note, Means)), Means(""))
    interval = next((found for one in notes if (found := _interval(one)) != ValueRange()), ValueRange())
    kinds = {hint.__origin__ for hint in hints[1:] if typing.get_origin(hint) is Annotated} & NUMBERS
    if kinds - {plain}:
        own, base = getattr(plain, "__name__", plain), min(kind.__name__ for kind in kinds)
        raise RequestError(f"'{field.name}' is declared as {own}, must be {base} as in the base")
    if not _is_choice(plain):
        plain = next((bare for hint in hints[1:] if _is_choice(bare := _without_notes(hint))), plain)
    return Parameter(field.name, plain, field.default, means.text, means.unit, interval, means.names)


def _is_choice(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


def _without_notes(hint: Any) -> Any:
    return hint.__origin__ if typing.get_origin(hint) is Annotated else hint


def _interval(notes: tuple[Any, ...]) -> ValueRange:
    sides: dict[str, Any] = {}
    for note in notes:
        if isinstance(note, Ge | Gt):
            sides |= {"low": note.ge if isinstance(note, Ge) else note.gt, "low_open": isinstance(note, Gt)}
        elif isinstance(note, Le | Lt):
            sides |= {"high": note.le if isinstance(note, Le) else note.lt, "high_open": isinstance(note, Lt)}
    return ValueRange(**sides)


def checker_of(hint: Any) -> TypeAdapter[Any]:
    """Return pydantic's check of a type, made once: that takes longer than a hundred checks."""
    return _checker(hint)


@functools.cache
def _checker(hint: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(hint)
