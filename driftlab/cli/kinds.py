"""The kinds of names in `driftlab list` and `show`: how to list each kind and describe one name."""

from __future__ import annotations

import dataclasses
import importlib
import re
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftlab.errors import unknown_name
from driftlab.platform.core.parameters import Parameter, parameters_of
from driftlab.platform.core.registry import FAMILIES, docstring_of, member_class

if TYPE_CHECKING:
    from driftlab.datasets.domains.names import Shift
    from driftlab.datasets.parameters import AnyParameter
    from driftlab.platform.core.systems import System
    from driftlab.platform.networks.zoo import ZooEntry
    from driftlab.platform.world.hardware import Hardware
    from driftlab.platform.world.link import LinkProfile
    from driftlab.platform.world.load import LoadProfile

SIDES_PX = (32, 224)  # image sizes for which the constants of a shift are shown
MAX_LISTED = 6  # allowed values that are listed with a parameter
DOCS = Path(__file__).resolve().parents[2] / "docs"
PLATFORM = Path(__file__).resolve().parents[1] / "platform"
CLAIM = re.compile(r"^(?:- |  )id: (\S+)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Entry:
    """The description of one name; all rows of facts have the same keys."""

    kind: str
    name: str
    summary: str
    facts: tuple[Mapping[str, Any], ...] = ()
    text: str = ""
    page: str = ""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Functions that list the names of a kind with one line each, describe one, and list the names only."""

    summaries: Callable[[], dict[str, str]]
    describe: Callable[[str], Entry]
    quick_names: Callable[[], Collection[str]] | None = None  # where summaries take longer

    def names(self) -> Collection[str]:
        """Return the names."""
        return self.summaries() if self.quick_names is None else self.quick_names()


def complete_kind(incomplete: str) -> list[str]:
    """Return the kinds that begin with a text."""
    return [name for name in KINDS if name.startswith(incomplete)]


def complete_entry(incomplete: str) -> list[str]:
    """Return the completions of KIND/NAME: of the kind before the slash, of its names after it."""
    kind, slash, rest = incomplete.partition("/")
    if not slash:
        return [f"{name}/" for name in complete_kind(kind)]
    return [f"{kind}/{name}" for name in KINDS[kind].summaries() if name.startswith(rest)] if kind in KINDS else []


def complete_names(kind: str, incomplete: str) -> list[str]:
    """Return the completions of the last name in a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in KINDS[kind].summaries() if name.startswith(last)]


def kind_of(name: str) -> Kind:
    """Return a kind by name."""
    if name not in KINDS:
        raise unknown_name("kind", name, KINDS)
    return KINDS[name]


def _mapping(place: str) -> Mapping[str, Any]:
    """Import a mapping by its place, module:NAME; only when used, as the modules are slow to import."""
    module, _, name = place.partition(":")
    mapping: Mapping[str, Any] = getattr(importlib.import_module(f"driftlab.{module}"), name)
    return mapping


def _lines(place: str, line: Callable[[Any], str]) -> Callable[[], dict[str, str]]:
    return lambda: {name: line(one) for name, one in _mapping(place).items()}


def _table(noun: str, place: str, line: Callable[[Any], str], describe: Callable[[str, Any], Entry]) -> Kind:
    """Return the kind of a mapping, given functions for the line and for the description of a value."""

    def described(name: str) -> Entry:
        if name not in _mapping(place):
            raise unknown_name(noun, name, _mapping(place))
        return describe(name, _mapping(place)[name])

    return Kind(_lines(place, line), described)


def _summary(one: Any) -> str:
    return str(one.summary)


def _system(name: str, system: System) -> Entry:
    facts = tuple({"slot": member.family, "member": str(member)} for member in system.members)
    return Entry("systems", name, system.summary, facts, page=_page(f"systems/{name}"))


def _family(family: str) -> Kind:
    def summaries() -> dict[str, str]:
        return {name: docstring_of(family, name).partition("\n")[0] + _needs(family, name) for name in FAMILIES[family]}

    def describe(name: str) -> Entry:
        cls = member_class(family, name)
        facts = tuple(_explained(one) for one in parameters_of(cls).values())
        summary, _, text = (cls.__doc__ or "").partition("\n")
        return Entry(family, name, summary + _needs(family, name), facts, text.strip(), _page(f"{family}/{name}"))

    return Kind(summaries, describe, lambda: FAMILIES[family])


def _needs(family: str, name: str) -> str:
    """Return a sentence on the part of a network that a member needs; empty if it needs none."""
    needs = getattr(member_class(family, name), "needs", "")
    return f" Needs a network with {needs}." if needs else ""


def _explained(one: Parameter) -> Mapping[str, Any]:
    """Return the row of a member's parameter: default, unit, type, range and meaning."""
    return {
        "parameter": one.name,
        "default": "required" if one.default is dataclasses.MISSING else one.default,
        "unit": one.unit,
        "type": _type(one.hint),
        "range": one.range,
        "meaning": one.meaning,
    }


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "choice"
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _workload(name: str) -> Entry:
    from driftlab.datasets.catalogue import find_workload

    workload = find_workload(name)
    facts = tuple({"parameter": key, **_limits(one)} for key, one in workload.parameters.items())
    return Entry("workloads", name, workload.summary, facts or _file_facts(name))


def _limits(one: AnyParameter) -> dict[str, Any]:
    """Return the row of a workload's parameter: default, range and meaning."""
    from driftlab.datasets.parameters import ChoiceParameter

    default: Any
    if isinstance(one, ChoiceParameter):
        listed = f": {', '.join(map(str, one.allowed))}" if len(one.allowed) <= MAX_LISTED else ""
        return {"default": ", ".join(map(str, one.default)), "from": "", "to": "", "meaning": f"{one.summary}{listed}"}
    default = "set by the street" if one.default is None else one.default
    return {"default": default, "from": one.low, "to": one.high, "meaning": one.summary}


def _file_facts(name: str) -> tuple[Mapping[str, Any], ...]:
    """Return length, ground truth and classes of a file or a set; raise an error if it cannot be read."""
    from driftlab.datasets.catalogue import WORKLOADS, find_workload, open_stream

    if name in WORKLOADS:  # a kind of file, such as `video`, and no file
        return ()
    length_s = None if find_workload(name).own_length else 1.0
    stream = open_stream(name, seed=0, height=144, width=256, fps=30.0, duration_s=length_s)
    length = {"property": "duration_s", "value": stream.duration_s}
    return (
        *([length] if length_s is None else []),
        {"property": "has_truth", "value": stream.has_truth},
        {"property": "classes", "value": ", ".join(stream.classes)},
    )


def _shift(name: str, shift: Shift) -> Entry:
    from driftlab.datasets.domains.constants import BACKGROUND, constants_of
    from driftlab.datasets.domains.names import ANGLES, SEVERITIES, SHARES

    own = {"rotation": ANGLES, "background": BACKGROUND, "subpopulation": SHARES}
    rows = []
    for severity in SEVERITIES if shift.graded else ():
        values = (
            [(own[name][severity - 1],)] * 2 if name in own else [constants_of(name, severity, n) for n in SIDES_PX]
        )
        small, large = (", ".join(f"{value:g}" for value in row) for row in values)
        rows.append({"severity": severity, "at 32 pixels": small, "at 224 pixels": large})
    return Entry("shifts", name, shift.summary, tuple(rows), page=_page(name))


def _device_line(one: Hardware) -> str:
    return f"{one.macs_per_s / 1e9:g} GMAC/s, {one.memory_bytes / 1e9:g} GB, {one.idle_w:g} to {one.busy_w:g} W"


def _link_line(one: LinkProfile) -> str:
    return f"{one.up_kbps:g} kbit/s up, {one.down_kbps:g} down, {one.rtt_ms:g} ms, loss {one.loss:g}"


def _load_line(one: LoadProfile) -> str:
    return "; ".join(f"{part.name} {_ends(part.cpu)}" for part in one.activities) or "no other programs"


def _ends(ends: tuple[float, float]) -> str:
    return f"{ends[0]:g}" if ends[0] == ends[1] else f"{ends[0]:g} to {ends[1]:g}"


def _load(name: str) -> Entry:
    from driftlab.platform.world import load
    from driftlab.platform.world.load_csv import facts_of

    profile = load.find(name)
    if profile.file is not None:
        rows = facts_of(Path(profile.file))
        return Entry("loads", name, "A recorded load.", tuple({"field": k, "value": v} for k, v in rows.items()))
    activities = tuple(
        {"activity": one.name, "CPU": _ends(one.cpu), "memory": _ends(one.memory), "seconds": _ends(one.dwell_s)}
        for one in profile.activities
    )
    fields = [(name, value) for name, value in vars(profile).items() if name not in ("name", "activities")]
    text = "\n".join(f"{name}: {value}" for name, value in fields)
    return Entry("loads", name, "Shares of CPU and memory that other programs use.", activities, text)


def _values(kind: str) -> Callable[[str, Any], Entry]:
    """Return the function that describes a profile by its fields."""

    def describe(name: str, profile: Any) -> Entry:
        fields = [field.name for field in dataclasses.fields(profile) if field.name != "name"]
        return Entry(kind, name, "", tuple({"field": field, "value": getattr(profile, field)} for field in fields))

    return describe


def _network_line(one: ZooEntry) -> str:
    return f"{one.task.name}: {one.summary}"


def _network(name: str, one: ZooEntry) -> Entry:
    pretraining = one.pretraining
    facts = {
        "input": "any size" if one.input.size is None else "{} x {}".format(*one.input.size),
        "channel mean": one.input.mean or "default",
        "channel deviation": one.input.deviation if one.input.mean else "default",
        "blocks": ", ".join(one.blocks),
        "head": one.head,
        "pre-training": "set by the experiment"
        if pretraining is None
        else f"{pretraining.steps:,} steps with batches of {pretraining.batch} images, "
        f"learning rate {pretraining.rate:g}",
    }
    rows = tuple({"field": field, "value": value} for field, value in facts.items())
    return Entry("networks", name, _network_line(one), rows)


def _any_network(name: str) -> Entry:
    """Describe a network of the zoo, or one from outside with the methods that apply to it."""
    from driftlab.platform.core.plugins import is_outside, make_absolute
    from driftlab.platform.networks import named

    entry = named.find(make_absolute(name))
    if not is_outside(name):
        return _network(name, entry)
    from driftlab.platform.lab.own_networks import applicability, examine
    from driftlab.platform.networks.training.artifacts import Recipe

    recipe = Recipe(make_absolute(name), steps=0)
    facts = dict(examine(recipe)) | {one.method: one.reason or "applies" for one in applicability(recipe)}
    rows = tuple({"field": field, "value": value} for field, value in facts.items())
    return Entry("networks", name, _network_line(entry), rows)


def _experiments() -> dict[str, str]:
    from driftlab.platform.lab import read

    return {name: _parts(read.find(name))[0].partition("\n")[0] for name in read.names()}


def _experiment_names() -> list[str]:
    """Return the names without importing the reader of experiments."""
    return [path.stem for path in (PLATFORM / "lab/experiments").glob("*.yaml")]


def _experiment(name: str) -> Entry:
    from driftlab.platform.lab import read

    path = read.find(name)
    head, body = _parts(path)
    summary, _, more = head.partition("\n")
    return Entry("experiments", name, summary, text=f"{more}\n\n{body}".strip(), page=str(path))


def _spaces() -> dict[str, str]:
    from driftlab.tune_spaces import catalogue

    return {name: catalogue.summary_of(name) for name in _space_names()}


def _space_names() -> list[str]:
    from driftlab.tune_spaces import ranges

    return ranges.names()


def _space(name: str) -> Entry:
    from driftlab.tune_spaces import catalogue

    document = catalogue.load(name)
    defaults = document.defaults()
    facts = tuple(
        {"setting": path, "domain": str(part.domain()), "default": defaults[path], "why": part.why}
        for path, part in document.space.items()
    )
    objectives = ", ".join(f"{metric} {better}" for metric, better in document.objectives.items())
    constraints = f" Constraints: {', '.join(document.constraints)}." if document.constraints else ""
    budget = f"{document.trials} trials by {document.searcher} on {len(document.seeds)} seeds."
    text = f"{budget} Objectives: {objectives}.{constraints}"
    return Entry("spaces", name, document.summary, facts, text)


def _claims() -> dict[str, str]:
    from driftlab.platform.results.claims.base import every_claim

    claims = every_claim()
    return {name: claims[name].sentence for name in sorted(claims, key=_natural_key)}


def _claim_names() -> list[str]:
    """Return the names in the files of claims without reading these, which takes ten times as long."""
    texts = (file.read_text(encoding="utf-8") for file in (PLATFORM / "results/claims").glob("*.yaml"))
    return [name for text in texts for name in CLAIM.findall(text)]


def _natural_key(name: str) -> list[str | int]:
    """Return a key that sorts AMS-2 before AMS-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _claim(name: str) -> Entry:
    from driftlab.platform.results.claims.base import every_claim

    claims = every_claim()
    if name not in claims:
        raise unknown_name("claim", name, claims)
    claim = claims[name]
    facts = {"source": claim.source, "paper": claim.paper, "unit": claim.unit, "rule": claim.rule}
    facts |= {"reads": claim.score} if claim.score else {}
    return Entry("claims", name, claim.sentence, tuple({"field": k, "value": v} for k, v in facts.items()))


def _parts(path: Path) -> tuple[str, str]:
    """Split an experiment file into its leading comment (summary, command, duration) and the rest."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(line.lstrip("#").strip() for line in lines[:end]), "\n".join(lines[end:])


def _page(name: str) -> str:
    """Return the page and section of a name by the index of methods.

    Empty without an index, as in an installed wheel. A system that is named after a member
    shares the member's section.
    """
    index = DOCS / "methods/index.md"
    text = index.read_text(encoding="utf-8") if index.is_file() else ""
    kind, _, own = name.partition("/")
    found = re.search(rf"\[{re.escape(name)}\]\(([^)]+)\)", text)
    if found is None and kind == "systems":
        found = re.search(rf"\[\w+/{re.escape(own)}\]\(([^)]+)\)", text)
    return str(index.with_name(found[1])) if found else ""


KINDS: Mapping[str, Kind] = {
    "systems": _table("system", "platform.core.system_table:SYSTEMS", _summary, _system),
    **{family: _family(family) for family in FAMILIES},
    "workloads": Kind(_lines("datasets.catalogue:WORKLOADS", _summary), _workload),
    "shifts": _table("shift", "datasets.domains.names:SHIFTS", lambda one: f"{one.group}: {one.summary}", _shift),
    "devices": _table("hardware", "platform.world.hardware:HARDWARE", _device_line, _values("devices")),
    "links": _table("link", "platform.world.link:LINKS", _link_line, _values("links")),
    "loads": Kind(_lines("platform.world.load:LOADS", _load_line), _load),
    "networks": Kind(_lines("platform.networks.zoo:ZOO", _network_line), _any_network),
    "experiments": Kind(_experiments, _experiment, _experiment_names),
    "spaces": Kind(_spaces, _space, _space_names),
    "claims": Kind(_claims, _claim, _claim_names),
}
