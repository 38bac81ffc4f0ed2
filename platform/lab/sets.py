"""Expand named sets, `vary` and names of systems in a document into plain items.

`{set: all-streets, duration_s: 240}` stands for the items of a set, each with these changes; a change may reach deeper,
as `devices.0.count: 4`. An item with `vary` stands for one item for every combination of the values:
`{name: "devices-{count}", devices: [{}], vary: {devices.0.count: [4, 6]}}`, and so does a system:
`{name: "wide-{batch}", base: one_time, vary: {adaptation.batch: [2, 4]}}`. The place in the name, or in the alias of a
workload, takes the last word of the key. Values that make no good names are given labels, as in
`vary: {adaptation.fraction: {20: 0.2, 5: 0.05}}`.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from driftlab.errors import RequestError, quoted, unknown_name
from driftlab.platform.core.documents import REFUSED, read_text, read_yaml
from driftlab.platform.core.registry import FAMILIES, member_class, parameters
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.core.systems import System
from driftlab.platform.lab.cells import plain_slot, slot_of
from driftlab.platform.lab.overrides import set_at
from driftlab.platform.lab.size import MAX_CELLS

FILE = Path(__file__).parent / "sets.yaml"
NAMED_BY = MappingProxyType({"workloads": "alias", "fleets": "name", "apps": "name"})  # key of a varied name
PLACE = re.compile(r"\{([^{}]*)\}")  # placeholder of a varied value in a name
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")  # of an expanded system
Sets = Mapping[str, Mapping[str, list[dict[str, Any]]]]


def built_in() -> Sets:
    """Read the built-in sets by kind and name."""
    return _read(FILE)


@functools.cache
def _read(path: Path) -> Sets:
    return MappingProxyType(read_yaml(read_text(path)))


@dataclass
class Expanded:
    """A document with sets, `vary` and names of systems expanded, and the faults of these items.

    A refused item is replaced by REFUSED, a refused system by its row, so that other items keep their numbers.
    """

    document: dict[str, Any]
    faults: list[str]
    rows: list[int]  # of each system: its number before rows were written out


def expand_items(document: Mapping[str, Any]) -> Expanded:
    """Expand the items of a document; malformed items stay unchanged, the validation reports them."""
    own, faults, rows = document.get("sets") or {}, list[str](), list[int]()
    if not isinstance(own, dict) or not all(isinstance(kind, dict) for kind in own.values()):
        faults, own = [f"sets is {quoted(own)}; give lists by kind and name: {{fleets: {{mine: [...]}}}}"], {}
    elif strange := sorted(map(str, set(own) - set(NAMED_BY))):
        faults, own = [f"sets.{strange[0]} is no kind of set; there are {', '.join(NAMED_BY)}"], {}
    known = {kind: {**built_in().get(kind, {}), **own.get(kind, {})} for kind in NAMED_BY}
    result = {key: value for key, value in document.items() if key != "sets"}
    for kind in ("workloads", "fleets"):
        if isinstance(document.get(kind), list):
            result[kind] = _items(kind, document[kind], known, kind, faults)
    workloads = result.get("workloads")
    for number, workload in enumerate(workloads if isinstance(workloads, list) else ()):
        if isinstance(workload, dict) and isinstance(workload.get("apps"), list):
            apps = _items("apps", workload["apps"], known, f"workloads.{number}.apps", faults)
            result["workloads"][number] = {**workload, "apps": apps}
    if isinstance(document.get("systems"), list):
        result["systems"], rows = _systems(document["systems"], faults)
    if isinstance(document.get("bound_rows"), list):
        result["bound_rows"] = [expand_system(row) if isinstance(row, dict) else row for row in document["bound_rows"]]
    return Expanded(result, faults, rows)


def _items(kind: str, items: Sequence[Any], known: Sets, place: str, faults: list[str]) -> list[Any]:
    """Expand the items of one list; a refused item becomes REFUSED."""
    result: list[Any] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not {"set", "vary"} & set(item):
            result.append(item)
            continue
        try:
            members = _members(kind, item, known) if "set" in item else [item]
            result += [one for member in members for one in _varied(kind, member)]
        except RequestError as error:
            faults.append(f"{place}.{number}: {str(error).rstrip('.')}")
            result.append(REFUSED)
    return result


def _members(kind: str, item: Mapping[str, Any], known: Sets) -> list[dict[str, Any]]:
    """List the items of a set with the changes of `{set: NAME, key: value}`."""
    name, changes = item["set"], {key: value for key, value in item.items() if key != "set"}
    if str(name) not in known[kind]:
        raise unknown_name(f"set of {kind}", str(name), known[kind])
    members = known[kind][str(name)]
    if not isinstance(members, list) or not all(isinstance(one, dict) for one in members):
        raise RequestError(f"the set '{name}' is {quoted(members)}; give a list of {kind}")
    return [_changed(one, changes, f"set: {name}") for one in members]


def _varied(kind: str, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Expand `vary` in an item of a list other than the systems."""
    if "vary" not in item:
        yield item
        return
    vary, key = item["vary"], NAMED_BY[kind]
    if not isinstance(vary, dict) or not vary or not all(isinstance(one, list | dict) and one for one in vary.values()):
        raise RequestError(f"vary is {quoted(vary)}; give at least one value for each key: {{devices.0.count: [4, 6]}}")
    name = item.get(key)
    if not isinstance(name, str):
        last = _last(str(next(iter(vary))))
        raise RequestError(f"{key} is missing: an item with 'vary' needs one that holds {{{last}}}")
    if faults := list(_naming_faults(vary, name, key)):
        raise RequestError("; ".join(faults))
    if math.prod(len(values) for values in vary.values()) > MAX_CELLS:
        raise RequestError(f"vary gives more than {MAX_CELLS:,} {kind}; give fewer values")
    yield from _combined(item, key)


def _combined(item: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """Yield an item for every combination of the varied values, the last key fastest."""
    plain, vary = {one: value for one, value in item.items() if one != "vary"}, item["vary"]
    for choice in itertools.product(*(_labelled(values) for values in vary.values())):
        chosen = dict(zip(vary, choice, strict=True))
        labels = {_last(path): label for path, (label, _) in chosen.items()}
        name = PLACE.sub(lambda place, labels=labels: labels[place[1]], item[key])  # type: ignore[misc]
        yield _changed({**plain, key: name}, {path: value for path, (_, value) in chosen.items()}, "vary")


def _labelled(values: list[Any] | dict[Any, Any]) -> list[tuple[str, Any]]:
    """Return values with their labels in names; a value without label is its own label."""
    pairs = values.items() if isinstance(values, dict) else zip(values, values, strict=True)
    return [(str(label), value) for label, value in pairs]


def _changed(item: Mapping[str, Any], changes: Mapping[str, Any], whose: str) -> dict[str, Any]:
    result = copy.deepcopy(dict(item))
    for path, value in changes.items():
        set_at(result, path.split("."), copy.deepcopy(value), f"{whose}, '{path}'")
    return result


def _naming_faults(vary: Iterable[str], name: str, field: str = "name") -> Iterator[str]:
    """Require that a name contains every varied key, so that names differ."""
    varied, places = Counter(_last(key) for key in vary), set(PLACE.findall(name))
    yield from (
        f"vary has {count} keys '{key}', which the placeholders of a name cannot distinguish"
        for key, count in varied.items()
        if count > 1
    )
    for key in sorted(varied.keys() - places):
        yield f"{field} is '{name}': it does not hold {{{key}}}, so all its rows would be called alike"
    for key in sorted(places - varied.keys()):
        yield f"{field} is '{name}': nothing varies {{{key}}}; varied: {', '.join(sorted(varied)) or 'nothing'}"


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _systems(items: Sequence[Any], faults: list[str]) -> tuple[list[Any], list[int]]:
    """Expand the systems into rows, each with the number of its item; a refused item stays one row."""
    total = sum(_count(item) for item in items)
    if total > MAX_CELLS:
        raise RequestError(f"systems vary into {total:.6g} rows, allowed are {MAX_CELLS:,}; give fewer values to vary")
    result: list[Any] = []
    numbers: list[int] = []
    for number, item in enumerate(items):
        rows, own = _rows_of(item)
        faults += [f"systems.{number}.{fault}" for fault in own]
        result += rows
        numbers += [number] * len(rows)
    return result, numbers


def _rows_of(item: Any) -> tuple[list[Any], list[str]]:
    """Expand one item of the systems; return its rows and its faults."""
    row = expand_system(item)
    if not isinstance(item, dict) or not _can_vary(row):
        return [row], []
    vary = row.get("vary") or {}
    faults = [*_key_faults(row), *_naming_faults(vary, row["name"])]
    row = {key: value for key, value in row.items() if key != "vary"}
    if faults or not (vary or set("{}") & set(row["name"])):
        return [row], faults
    rows = [expand_system(one) for one in _combined({**row, "vary": vary}, "name")]
    faults = [
        f"name would be '{one['name']}', allowed are letters, digits and . _ + -; values may be given labels: "
        "{low: 0.1}"
        for one in rows
        if not NAME.fullmatch(one["name"])
    ]
    return ([row], faults) if faults else (rows, [])


def _count(item: Any) -> float:
    vary = item.get("vary") if isinstance(item, dict) else None
    return math.prod(float(len(values)) for values in vary.values()) if vary and _is_vary(vary) else 1.0


def _is_vary(vary: Any) -> bool:
    """Return whether `vary` is missing or has the types that the validation requires."""
    if not isinstance(vary, dict):
        return vary is None
    return all(isinstance(key, str) and isinstance(values, list | dict) for key, values in vary.items())


def _can_vary(row: Mapping[str, Any]) -> bool:
    """Return whether a row has the types that its expansion requires."""
    texts, slots = (row.get("name"), row.get("base") or ""), [row[family] for family in FAMILIES]
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(slot, dict) for slot in slots)
        and _is_vary(row.get("vary"))
    )


def _key_faults(row: Mapping[str, Any]) -> Iterator[str]:
    """Require known slots, known parameters and at least one value for every varied key."""
    if row.get("vary") == {}:
        yield "vary is empty: give at least one"
    for key, values in (row.get("vary") or {}).items():
        if not values:
            yield f"vary.{key} is empty: give at least one"
        family, _, parameter = key.partition(".")
        try:
            if family not in FAMILIES:
                raise unknown_name("slot", family, FAMILIES)
            if not parameter:
                continue
            if row.get("base") and row["base"] not in SYSTEMS:
                raise unknown_name("system", row["base"], SYSTEMS)
            known = parameters(member_class(family, slot_of(family, row[family]).name))
            if parameter not in known:
                raise unknown_name("parameter", parameter, known)
        except RequestError as error:
            yield f"vary.{key}: {error}"


def expand_system(item: Any) -> Any:
    """Complete the slots of a system from its base system; a name becomes the row of that system.

    Malformed items stay unchanged. An unknown name becomes a base, which `lab/check.py` refuses.
    """
    if isinstance(item, str):
        row: dict[str, Any] = {"name": item} if item in SYSTEMS else {"name": "unknown", "base": item}
    elif isinstance(item, dict):
        row = dict(item)
    else:
        return item
    start = row.get("base") or row.get("name")
    base = SYSTEMS.get(start, System("", "")) if isinstance(start, str) else System("", "")
    for family in FAMILIES:
        given, own = row.get(family), plain_slot(getattr(base, family))
        if given is not None and base.name and isinstance(given, dict) and "name" not in given:
            given = {**own, **given}  # parameters of the base's member
        row[family] = own if given is None else _slot(family, given)
    return row


def _slot(family: str, given: Any) -> Any:
    """Write a slot as a mapping of name and parameters; the validation reports malformed slots."""
    try:
        return plain_slot(slot_of(family, given)) if isinstance(given, str | dict) else given
    except RequestError:
        return given
