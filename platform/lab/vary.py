"""Rows that vary: one system for every value of a parameter, or for every combination of the values of several.

`{name: "wide-{batch}", base: one_time, vary: {adaptation.batch: [2, 4]}}` stands for the rows wide-2 and wide-4. Values
that make no good names are given labels, as in `vary: {adaptation.fraction: {20: 0.2, 5: 0.05}}`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from driftlab.errors import RequestError, unknown_name
from driftlab.platform.core.registry import FAMILIES, Member, member_class, parameters
from driftlab.platform.lab.cells import base_of, slot_of

if TYPE_CHECKING:
    from driftlab.platform.core.spec import SystemPart

PLACE = re.compile(r"\{([^{}]*)\}")  # where a name takes a value
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def expanded(systems: Sequence[str | SystemPart]) -> tuple[tuple[str | SystemPart, ...], list[str]]:
    """Write out the rows that vary, the last key fastest, and name all that is wrong with them."""
    rows: list[str | SystemPart] = []
    faults: list[str] = []
    for number, part in enumerate(systems):
        if isinstance(part, str):
            rows.append(part)
            continue
        found = [*_key_faults(part), *naming_faults(part.vary or {}, part.name)]
        rows += [] if found else _rows(part)
        faults += [f"systems.{number}.{fault}" for fault in found or _called_wrongly(part)]
    return tuple(rows), faults


def _rows(part: SystemPart) -> list[SystemPart]:
    keys = list(part.vary or {})
    choices = [labelled(values) for values in (part.vary or {}).values()]
    return [_row(part, dict(zip(keys, choice, strict=True))) for choice in itertools.product(*choices)]


def labelled(values: list[Any] | dict[Any, Any]) -> list[tuple[str, Any]]:
    """List values with what a name calls them: by themselves, or by the labels that they were given."""
    pairs = values.items() if isinstance(values, dict) else zip(values, values, strict=True)
    return [(str(label), value) for label, value in pairs]


def _row(part: SystemPart, choice: dict[str, tuple[str, Any]]) -> SystemPart:
    """Write out one row: what its slots are given, and what it is called."""
    changed: dict[str, Any] = {"vary": None}
    for key, (_, value) in choice.items():
        family, _, parameter = key.partition(".")
        if parameter:
            member = _member(part.model_copy(update=changed), family)
            changed[family] = {"name": member.name, **dict(member.params), parameter: value}
        else:
            changed[family] = value
    return part.model_copy(update={**changed, "name": named(part.name, choice)})


def named(name: str, choice: Mapping[str, tuple[str, Any]]) -> str:
    """Put the labels of the values that were chosen into the places of a name."""
    labels = {_last(key): label for key, (label, _) in choice.items()}
    return PLACE.sub(lambda found: labels[found[1]], name)


def _member(part: SystemPart, family: str) -> Member:
    """Return the member that a row has in a slot, its own or the one that it starts from."""
    given, start = getattr(part, family), getattr(base_of(part), family)
    return slot_of(family, given) if given is not None else start


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _key_faults(part: SystemPart) -> Iterator[str]:
    """Ask for slots that there are, parameters that their members have, and a value at least."""
    if part.vary == {}:
        yield "vary is empty: give at least one"
    for key, values in (part.vary or {}).items():
        if not values:
            yield f"vary.{key} is empty: give at least one"
        family, _, parameter = key.partition(".")
        try:
            if family not in FAMILIES:
                raise unknown_name("slot", family, FAMILIES)
            known = parameters(member_class(family, _member(part, family).name)) if parameter else {}
            if parameter and parameter not in known:
                raise unknown_name("parameter", parameter, known)
        except RequestError as error:
            yield f"vary.{key}: {error}"


def naming_faults(vary: Iterable[str], name: str, field: str = "name") -> Iterator[str]:
    """Ask for a name that every varied key gives a part to, so that no two rows are called alike."""
    varied, held = Counter(_last(key) for key in vary), set(PLACE.findall(name))
    yield from (
        f"vary has {count} keys '{key}', which a name cannot tell apart" for key, count in varied.items() if count > 1
    )
    for key in sorted(varied.keys() - held):
        yield f"{field} is '{name}': it does not hold {{{key}}}, so all its rows would be called alike"
    for key in sorted(held - varied.keys()):
        yield f"{field} is '{name}': nothing varies {{{key}}}; varied: {', '.join(sorted(varied)) or 'nothing'}"


def _called_wrongly(part: SystemPart) -> list[str]:
    names = [row.name for row in _rows(part)]
    return [
        f"name would be '{name}', allowed are letters, digits and . _ + -; values may be given labels: {{low: 0.1}}"
        for name in names
        if not NAME.fullmatch(name)
    ]
