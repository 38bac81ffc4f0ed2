"""Find search spaces by name: from files, or from parameter ranges of systems and members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftlab.errors import RequestError, unknown_name
from driftlab.platform.core.registry import FAMILIES, Member
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.core.systems import System
from driftlab.platform.lab import read as experiments
from driftlab.platform.lab.forecast import can_act
from driftlab.platform.streaming.base import StreamFacts
from driftlab.platform.tune.document import SpaceDocument, parse
from driftlab.tune_spaces.ranges import FOLDER, files, names, space_of

FIRST = {family: next(iter(names)) for family, names in FAMILIES.items()}  # the null members
STREAM = StreamFacts(fps=2.0, duration_s=60.0)  # the shortest of those that members are tuned on
STREETS, SIGNS, APPS = "ams", "tent", "nestdnn"  # spaces with files, whose experiments the others share


def summary_of(name: str) -> str:
    """Return the summary of a space."""
    return str(raw(name)["summary"]) if name in files() else _summary_by_ranges(name)


def _summary_by_ranges(name: str) -> str:
    return f"Every parameter of {name}, by its range."


def load(request: str, overrides: Sequence[str] = ()) -> SpaceDocument:
    """Read a space by name or file, apply its size and the overrides, and validate it."""
    return parse(raw(request), overrides, source=request)


def load_equal(
    systems: Sequence[str], streams: str | None = None, overrides: Sequence[str] = ()
) -> dict[str, SpaceDocument | None]:
    """Read a search per system, equal but for system and space; None if there is nothing to tune.

    `streams` is a space or an experiment. Its streams, seeds, objectives, trials and searcher are those of all systems.
    """
    for override in overrides:
        if override.startswith(("system=", "space", "early_stopping=")):
            raise RequestError(
                f"--set {override}: with --equal, only the systems and their spaces differ; leave it out."
            )
    for name in systems:
        if name not in SYSTEMS:
            raise unknown_name("system", name, SYSTEMS)
    source = streams or _shared_streams([SYSTEMS[name] for name in systems])
    sizes = [override.removeprefix("size=") for override in overrides if override.startswith("size=")]
    frame = dict(raw(source, streams_only=True))
    if frame.get("sizes"):
        frame = experiments.sized(frame, sizes, source)
        overrides = [override for override in overrides if not override.startswith("size=")]
    tunable = names()
    return {
        name: parse(_framed(frame, name, sizes), overrides, source=name) if name in tunable else None
        for name in systems
    }


def _shared_streams(systems: Sequence[System]) -> str:
    """Choose the streams that all of the systems are tuned on, or signs, on which every system runs."""
    likely = set(map(_like, systems))
    return likely.pop() if len(likely) == 1 else SIGNS


def _framed(frame: Mapping[str, Any], name: str, sizes: Sequence[str]) -> dict[str, Any]:
    """Put the space of a system, and its row if the frame has none, into the search of all systems."""
    own = dict(raw(name))
    if own.get("sizes"):
        own = experiments.sized(own, [size for size in sizes if size in own["sizes"]], name)
    given = frame["experiment"]
    if isinstance(given, str):
        given = experiments.document_of(experiments.find(given))
    rows = list(given.get("systems", ()))
    if name not in [_name(row) for row in rows]:
        rows += [row for row in own["experiment"].get("systems", ()) if _name(row) == name]
    return {
        **frame,
        "name": f"equal-{name}".replace("+", "-"),
        "summary": f"{name} with as many trials as the other systems.",
        "system": name,
        "space": own["space"],
        "early_stopping": False,
        "experiment": {**given, "systems": rows or [name]},
    }


def _name(row: Any) -> Any:
    """Return the name of a system of an experiment, which is a text or a mapping with `name`."""
    return row.get("name") if isinstance(row, Mapping) else row


def raw(request: str, *, streams_only: bool = False) -> Mapping[str, Any]:
    """Read a space as it is written; in a file it may be the `tune` section of an experiment."""
    if request.endswith((".yaml", ".yml")):
        if not Path(request).is_file():
            raise RequestError(f"There is no file '{request}'. Spaces: {', '.join(names())}.")
        return _sectioned(experiments.document_of(Path(request)), request, streams_only)
    if request in files():
        return experiments.document_of(FOLDER / f"{request}.yaml")
    if request in experiments.names():
        return _sectioned(experiments.document_of(experiments.find(request)), request, streams_only)
    if request not in names():
        raise unknown_name("space (with anything to choose)", request, names())
    return _by_ranges(request)


def _sectioned(document: Mapping[str, Any], request: str, streams_only: bool = False) -> Mapping[str, Any]:
    """Convert an experiment with a `tune` section to a search, or without one to its streams only."""
    section = document.get("tune", {} if streams_only and "space" not in document else None)
    if section is None and "space" not in document:
        raise RequestError(f"'{request}' has neither a space nor a section 'tune' with one: it says nothing to search.")
    if section is None:
        return document
    if not isinstance(section, Mapping):
        raise RequestError("'tune' of the experiment is no mapping; give it a system and a space")
    rest = {key: value for key, value in document.items() if key != "tune"}
    return {"name": rest.get("name"), "summary": rest.get("summary", ""), **section, "experiment": rest}


def _by_ranges(name: str) -> Mapping[str, Any]:
    """Search all parameters of a system, or of one member in a system that it works in."""
    family, _, member = name.rpartition("/")
    row = host_of(family, member) if family else {"name": name}
    system = SYSTEMS[str(row.get("base", row["name"]))]
    searched = [Member(family, member)] if family else list(system.members)
    if family and getattr(system, family).name == member:
        searched = [getattr(system, family)]
    like = experiments.document_of(FOLDER / f"{_like(system)}.yaml")
    like["experiment"] = {**like["experiment"], "systems": [row]}
    space = {path: domain for one in searched for path, domain in space_of(one).items()}
    own = {"name": name.replace("/", "-").replace("+", "-"), "summary": _summary_by_ranges(name)}
    return {**like, **own, "system": row["name"], "space": space, "constraints": []}


def _like(system: System) -> str:
    """Choose the streams that a system is tuned on: streets where a server learns or labels."""
    if system.needs_server:
        return STREETS
    return SIGNS if system.scheduling.name == "uniform" else APPS


def host_of(family: str, name: str) -> dict[str, Any]:
    """Return a system with the member: one of the table, or one based on nestdnn."""
    rows = [one for one in SYSTEMS.values() if getattr(one, family).name == name]
    if rows:
        return {"name": next((one for one in rows if can_act(one, STREAM)), rows[0]).name}
    base = next(one for one in SYSTEMS.values() if getattr(one, family).name != FIRST[family])
    return {"name": name, "base": base.name, family: name}
