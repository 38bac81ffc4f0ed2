"""Parameters of workloads: their types, limits and defaults, and functions that check and read values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from driftlab.datasets import checks, severity
from driftlab.datasets.severity import SeveritySchedule
from driftlab.errors import quoted, unknown_name

Choice = str | int
Value = float | SeveritySchedule | tuple[Choice, ...]
Given = float | str | Sequence[Choice] | Mapping[str, object]


@dataclass(frozen=True)
class StreamParameter:
    """A numeric parameter of a workload."""

    default: float | None  # None: the default of the stream that the seed selects
    low: float
    high: float
    summary: str
    whole: bool = False
    neutral: float | None = None  # value at which a condition is absent; its severity may then vary over time


@dataclass(frozen=True)
class ChoiceParameter:
    """A parameter that is one of several values or, if `many`, a list of different ones."""

    default: tuple[Choice, ...]
    allowed: tuple[Choice, ...]
    summary: str
    many: bool = True
    prefix: str = ""  # values with this prefix are allowed too; they are checked when they are used


AnyParameter = StreamParameter | ChoiceParameter


def read_values(known: Mapping[str, AnyParameter], params: Mapping[str, Given]) -> dict[str, Value]:
    """Return the values of all parameters: the given ones, else the defaults."""
    values: dict[str, Value] = {}
    for key, one in known.items():
        value = params.get(key, one.default)
        if isinstance(one, ChoiceParameter):
            values[key] = _as_tuple(value)
        elif value is not None and one.neutral is not None:
            values[key] = severity.read(value, one.neutral)  # type: ignore[arg-type]
        elif value is not None:
            values[key] = float(value)  # type: ignore[arg-type]
    return values


def parameter_faults(known: Mapping[str, AnyParameter], params: Mapping[str, object]) -> list[str]:
    """Return the faults of given values: unknown names, and values outside the limits."""
    faults: list[str] = []
    for key, value in params.items():
        if key not in known:
            faults.append(str(unknown_name("parameter", key, known)).rstrip("."))
        elif isinstance(one := known[key], ChoiceParameter):
            faults += _choice_faults(key, value, one)
        else:
            faults += _number_faults(key, value, one)
    return faults


def _number_faults(key: str, value: object, known: StreamParameter) -> list[str]:
    if known.neutral is not None:
        return severity.faults_in(key, value, known.low, known.high)
    faults = checks.check_number(key, value, known.low, known.high)
    if known.whole and not faults and value != int(value):  # type: ignore[call-overload]
        return [f"{key} is {value!r}, allowed are whole numbers"]
    return faults


def _choice_faults(key: str, value: object, known: ChoiceParameter) -> list[str]:
    listed = _as_tuple(value)
    if not listed or (len(listed) > 1 and not known.many):
        return [f"{key} is {quoted(value)}, allowed {'is a list' if known.many else 'is one'} of {_names(known)}"]
    faults = [f"{key} holds {quoted(one)} twice" for one in dict.fromkeys(listed) if listed.count(one) > 1]
    named = [one for one in listed if not (known.prefix and str(one).startswith(known.prefix))]
    unknown = [one for one in dict.fromkeys(map(repr, named)) if one not in set(map(repr, known.allowed))]
    return faults + [str(unknown_name(f"value of {key}", one.strip("'"), _texts(known))).rstrip(".") for one in unknown]


def _as_tuple(value: object) -> tuple[Choice, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)  # type: ignore[return-value]


def _texts(known: ChoiceParameter) -> list[str]:
    return [str(one) for one in known.allowed]


def _names(known: ChoiceParameter) -> str:
    return ", ".join(_texts(known))
