"""Named sets of applications, workloads and fleets, and items that vary: both are written out before anything else.

`{set: all-streets, duration_s: 240}` stands for the items of a set, each with these changes; a change may reach deeper,
as `devices.0.count: 4`. An item with `vary` stands for one item for every combination of the values:
`{name: "devices-{count}", devices: [{}], vary: {devices.0.count: [4, 6]}}`. The place in the name, or in the alias of a
workload, takes the last word of the key.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from driftlab.errors import RequestError, quoted, unknown_name
from driftlab.platform.core.documents import read_text, read_yaml
from driftlab.platform.lab.overrides import set_at
from driftlab.platform.lab.size import MAX_CELLS
from driftlab.platform.lab.vary import labelled, named, naming_faults

FILE = Path(__file__).parent / "sets.yaml"
NAMED_BY = MappingProxyType({"workloads": "alias", "fleets": "name", "apps": "name"})  # what takes a varied value
Sets = Mapping[str, Mapping[str, list[dict[str, Any]]]]


def built_in() -> Sets:
    """Read the sets that every experiment may name, by kind."""
    return _read(FILE)


@functools.cache
def _read(path: Path) -> Sets:
    return MappingProxyType(read_yaml(read_text(path)))


def written_out(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Write out the sets and what varies in a document, and name all that is wrong with them.

    What has not the right shape stays as it is: the validation of the document says so.
    """
    own = document.get("sets") or {}
    if not isinstance(own, dict) or not all(isinstance(kind, dict) for kind in own.values()):
        return dict(document), [f"sets is {quoted(own)}; give lists by kind and name: {{fleets: {{mine: [...]}}}}"]
    if strange := sorted(set(own) - set(NAMED_BY)):
        return dict(document), [f"sets.{strange[0]} is no kind of set; there are {', '.join(NAMED_BY)}"]
    known = {kind: {**built_in().get(kind, {}), **own.get(kind, {})} for kind in NAMED_BY}
    result, faults = {key: value for key, value in document.items() if key != "sets"}, list[str]()
    for kind in ("workloads", "fleets"):
        if isinstance(document.get(kind), list | tuple):
            result[kind] = _items(kind, document[kind], known, kind, faults)
    workloads = result.get("workloads")
    for number, workload in enumerate(workloads if isinstance(workloads, list) else ()):
        if isinstance(workload, dict) and isinstance(workload.get("apps"), list | tuple):
            place = f"workloads.{number}.apps"
            workload = result["workloads"][number] = dict(workload)
            workload["apps"] = _items("apps", workload["apps"], known, place, faults)
    return result, faults


def _items(kind: str, items: Sequence[Any], known: Sets, place: str, faults: list[str]) -> list[Any]:
    """Write out the items of one list."""
    found: list[Any] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not {"set", "vary"} & set(item):
            found.append(item)
            continue
        try:
            members = _members(kind, item, known) if "set" in item else [item]
            found += [one for member in members for one in _varied(kind, member)]
        except RequestError as error:
            faults.append(f"{place}.{number}: {str(error).rstrip('.')}")
    return found


def _members(kind: str, item: Mapping[str, Any], known: Sets) -> list[dict[str, Any]]:
    """List what an item `{set: NAME, key: value}` stands for."""
    name, changes = item["set"], {key: value for key, value in item.items() if key != "set"}
    if str(name) not in known[kind]:
        raise unknown_name(f"set of {kind}", str(name), known[kind])
    members = known[kind][str(name)]
    if not isinstance(members, list) or not all(isinstance(one, dict) for one in members):
        raise RequestError(f"the set '{name}' is {quoted(members)}; give a list of {kind}")
    return [_changed(one, changes, f"set: {name}") for one in members]


def _varied(kind: str, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Write out an item for every combination of the values that it varies, the last key fastest."""
    if "vary" not in item:
        yield item
        return
    vary, key = item["vary"], NAMED_BY[kind]
    if not isinstance(vary, dict) or not vary or not all(isinstance(one, list | dict) and one for one in vary.values()):
        raise RequestError(f"vary is {quoted(vary)}; give at least one value for each key: {{devices.0.count: [4, 6]}}")
    name = item.get(key)
    if not isinstance(name, str):
        last = str(next(iter(vary))).rpartition(".")[2]
        raise RequestError(f"{key} is missing: what varies needs one that holds {{{last}}}")
    if faults := list(naming_faults(vary, name, key)):
        raise RequestError("; ".join(faults))
    if math.prod(len(values) for values in vary.values()) > MAX_CELLS:
        raise RequestError(f"vary gives more than {MAX_CELLS:,} {kind}; give fewer values")
    plain = {one: value for one, value in item.items() if one != "vary"}
    for choice in itertools.product(*(labelled(values) for values in vary.values())):
        chosen = dict(zip(vary, choice, strict=True))
        changes = {path: value for path, (_, value) in chosen.items()}
        yield _changed({**plain, key: named(name, chosen)}, changes, "vary")


def _changed(item: Mapping[str, Any], changes: Mapping[str, Any], told: str) -> dict[str, Any]:
    result = copy.deepcopy(dict(item))
    for path, value in changes.items():
        set_at(result, path.split("."), copy.deepcopy(value), f"{told}, '{path}'")
    return result
