"""The table of systems: those that are named after a method, by its row in the registry, and combinations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from driftlab.platform.core.registry import (
    ELASTIC,
    IN_PHASES,
    METHODS,
    TAUGHT,
    TAUGHT_ALL,
    Member,
    Slot,
    Slots,
    docstring_of,
)
from driftlab.platform.core.systems import Bound, System


class _Row(NamedTuple):
    """A combination: a line that describes it, its slots, and its bound in reports if it is one."""

    summary: str
    slots: Slots
    bound: Bound | None = None


def _sized(name: str, says: str, scheduler: str, **settings: Any) -> dict[str, str | _Row]:
    """Return the row of a scheduler of learners, and the row that adds surrogates of three sizes."""
    sizes = _Row(
        f"{says}, over surrogates of three sizes.",
        {
            **IN_PHASES,
            "adaptation": "elasticdnn_teacher",
            "scaling": {"name": "surrogate", "keep_ratios": (0.8, 0.5, 0.3)},
            "scheduling": {"name": scheduler, **settings},
        },
    )
    return {name: f"{says}.", f"{name}+sizes": sizes}


# A combination is a row. A text alone is the summary of a system that is named after a method; without one, the summary
# is the first line of the docstring of the method's class, and the system is listed after those that are here.
_TABLE: Mapping[str, str | _Row] = {
    "no_custom": _Row("The generic student as it was built.", {}, bound="no_adaptation"),
    "one_time": "Specialise once on the first minute, then never again.",
    "remote_tracking": "Label a frame a second on the server and carry the labels along with the motion.",
    "just_in_time": "Train on single frames until the student agrees with the teacher.",
    "ams": "Stream small updates of a twentieth of the weights, as often as the scene asks for.",
    "adabn": "Statistics of batch norms that move along with the stream, on the device.",
    "onda": "Statistics of batch norms that move a little with every ten frames, on the device.",
    "tent": "Scales and shifts of batch norms that make the device's answers less uncertain.",
    "shot": "Features that move until a frozen head answers with confidence and variety, in phases on the device.",
    "elasticdnn": "A smaller network cut for each domain from a gated master, whose filters that matter are retrained.",
    "elasticdnn+tent": _Row(
        "As elasticdnn, with Tent's loss on scales and shifts of the filters that matter.",
        {**ELASTIC, "adaptation": {"name": "elasticdnn", "objective": "entropy"}},
    ),
    "elasticdnn+cua": _Row(
        "As elasticdnn, with features aligned to those of stored source samples, which are replayed.",
        {**ELASTIC, "adaptation": "elasticdnn_cua"},
    ),
    "elasticdnn+ams": _Row(
        "Surrogates cut and retrained on the server by a teacher's labels, sent as drafts with their updates.",
        {"streaming": "ams", "adaptation": "elasticdnn_teacher", "scaling": "surrogate"},
    ),
    "cotta": (
        "A student on the device that learns from the average of its own past, with weights that return at random."
    ),
    "eata": "Tent on frames that are sure and new, with weights held near the source by their importance.",
    "sar": "Tent on sure frames, along gradients that hold in a neighbourhood of the weights.",
    "rotta": "A slow teacher, statistics that follow the stream, and lessons from a balanced memory of frames.",
    "lame": "Predictions of a batch that agree where frames look alike, with a network that never changes.",
    "t3a": "A head whose weights become the means of the surest features of each class.",
    "neo": "Features that are centred before the head by the mean of all seen so far.",
    "note": "Batch norms that look at each frame by itself, and lessons from a memory balanced over classes.",
    "bufr": "Blocks that train from the bottom up until features are spread as on the source, in phases on the device.",
    "rdumb": _Row(
        "EATA without its pull on the device, back at the source after every thousand steps.",
        {"adaptation": {"name": "rdumb", "member_params": ("fisher_weight=0",)}},
    ),
    "asr": "EATA on the device, back at the source as far as its predictions concentrate.",
    "sparse": "EATA on the device, from every fourth batch.",
    "snap": "EATA on the device, seldom and from a memory of sure frames.",
    "conda": "SHOT on mixed frames of this and past domains, in phases on the device.",
    "ace": "Labelled source frames painted in the device's colours, trained on in phases on the device.",
    "iada": "Features that follow a discriminator back to the source's, in phases on the device.",
    "cua": "Features aligned with those of the source, with samples of past domains, in phases on the device.",
    "on_device": "A teacher and a learner on the device, which labels and trains beside answering.",
    **_sized(
        "uniform-learning", "Equal shares for all that learn on one device", "uniform_learning", config_choice="best"
    ),
    **_sized("ekya", "Trials and a thief of shares among applications that learn on one device", "ekya"),
    **_sized("recl", "Micro-windows of learning where accuracy has risen fastest", "recl", config_choice="best"),
    **_sized("afs", "Slots of the machine to the learner whose completion gains most", "afs", config_choice="best"),
    **_sized("synergy", "Parts of the machine by what each learner can use of them", "synergy", config_choice="best"),
    **_sized("muri", "Learners whose stages interleave on the parts of the machine", "muri", config_choice="best"),
    **_sized("elasticdnn-many", "One way to learn for each application, for the best accuracy of all", "elasticdnn"),
    **_sized("joint", "Ways, order and shares of all applications that learn, decided together", "joint"),
    "nestdnn": "Networks inside one another on each application's share of the machine, chosen anew for every window.",
    "usnet": "As nestdnn, with networks of every width that were trained jointly.",
    "adascale": "A path through operators and exits of one network that follows the load of the device.",
    "legodnn": "A variant for each block of a network, by losses and savings that add up.",
    "adaptivenet": "The dearest of the best paths without exits that is predicted to be in time.",
    "adaspring": "Operators searched stage by stage whenever the load of the device has changed.",
    "adadeep": "Operators found once by learning from rewards, whatever the load becomes.",
    "early_exit": (
        "Each frame leaves a network at the first exit that is sure of it, by thresholds that follow the load."
    ),
    "once_for_all": (
        "Networks of uneven depths and widths trained jointly, the best of each size chosen by the load of the device."
    ),
    "nas": "One path whose operators are settings, for a search of settings to find.",
    "darts": "One path whose operators are found by gradients of a mixture of all, whatever the load of the device.",
    "enas": "One path that a controller finds among paths with shared weights, whatever the load of the device.",
    "clairvoyant": "The best path by the true load until the next reading: a bound on what following it can gain.",
    "light": "A light network of another structure, trained on the same data, whatever the load of the device.",
    "branches": "The whole of a network of stages with exits and operators, whatever the load of the device.",
    "mcdnn": "Independent networks, the best accuracy per compute within all budgets.",
    "status_quo": "One independent network for each application, whatever else runs on the machine.",
    "ams+joint": _Row(
        "AMS on a server whose GPUs go to the rounds that gain most, where others are served in order of arrival.",
        {"streaming": "ams", **TAUGHT, "scheduling": {"name": "joint", "patience_s": 30.0}},
    ),
    "ams+nested": _Row(
        "Updates streamed into networks inside one another, of which the scheduler chooses one for every window.",
        {"streaming": "ams", **TAUGHT, "scaling": "nested", "scheduling": "nestdnn"},
    ),
    "ams+adascale": _Row(
        "Updates streamed into the paths of one network, of which the device runs the one that fits its load.",
        {"streaming": "ams", **TAUGHT, "scaling": "adascale"},
    ),
    "adascale+elasticdnn": _Row(
        "A path that follows the load by accuracies that are estimated for the domain, and learns it.",
        {
            "streaming": {"name": "on_device", "rate_fps": 10.0},
            "adaptation": {"name": "elasticdnn", "estimates": 12},
            "scaling": {"name": "adascale", "exits": 2},
        },
    ),
    "nestdnn+adascale": _Row(
        "Shares of the machine by NestDNN's plan, and within each share the path that follows the load.",
        {"scaling": "adascale", "scheduling": {"name": "nestdnn", "selects_variant": False}},
    ),
    "best_static": _Row(
        "One model trained on the whole stream before it begins: the best choice that never changes.",
        {"streaming": {"name": "foresight", "iterations": 300, "span": "stream"}, **TAUGHT_ALL},
        bound="best_static",
    ),
    "oracle": _Row(
        "A model trained on each window before it is seen, over a link that takes no time.",
        {"streaming": {"name": "foresight", "span": "window"}, **TAUGHT_ALL},
        bound="oracle",
    ),
}
_NAMED = {
    method.system or name: (family, name)
    for family, methods in METHODS.items()
    for name, method in methods.items()
    if method.others is not None
}


def _system(name: str) -> System:
    """Make the system of a row, or the one that the registry names after a method."""
    row = _TABLE.get(name, "")
    if isinstance(row, str):
        family, method = _NAMED[name]
        summary = row or docstring_of(family, method).partition("\n")[0]
        row = _Row(summary, {family: method, **(METHODS[family][method].others or {})})
    members = {family: _member(family, slot) for family, slot in row.slots.items()}
    return System(name, row.summary, bound=row.bound, **members)


def _member(family: str, slot: Slot) -> Member:
    params = {"name": slot} if isinstance(slot, str) else dict(slot)
    return Member(family, params.pop("name"), tuple(params.items()))


SYSTEMS: Mapping[str, System] = {name: _system(name) for name in {**_TABLE, **_NAMED}}
