"""The table of systems: one row of four slots each; a slot that is not named is its family's null member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftlab.platform.core.registry import Member
from driftlab.platform.core.systems import Bound, System


def _row(name: str, summary: str, bound: Bound | None = None, **slots: str | Member) -> System:
    """Name the members of a system; those with their usual parameters by name alone."""
    members = {slot: Member(slot, one) if isinstance(one, str) else one for slot, one in slots.items()}
    return System(name, summary, bound=bound, **members)


_ALL_WEIGHTS = Member("adaptation", "distill", (("fraction", 1.0),))
_TEN_FPS = Member("streaming", "on_device", (("rate_fps", 10.0),))
_LENGTHS = Member("adaptation", "distill", (("fraction", 1.0), ("lengths", (10, 40))))  # two ways to learn
_WITHOUT_ESTIMATES = ("uniform_learning", "recl", "afs", "synergy", "muri")  # their shares ignore accuracies
_SIZES = Member("scaling", "surrogate", (("keep", (0.8, 0.5, 0.3)),))


def _many(name: str, summary: str, scheduler: str = "", **settings: Any) -> tuple[System, System]:
    """Return a scheduler of applications that learn on one device: with ways of two lengths, and of three sizes."""
    alone, sizes = (
        Member("scheduling", scheduler or name, tuple({**settings, **more}.items()))
        for more in ({}, {"ways": "best"} if (scheduler or name) in _WITHOUT_ESTIMATES else {})
    )
    return (
        _row(name, f"{summary}.", streaming="on_device", adaptation=_LENGTHS, scheduling=alone),
        _row(
            f"{name}+sizes",
            f"{summary}, over surrogates of three sizes.",
            streaming="on_device",
            adaptation="elasticdnn_taught",
            scaling=_SIZES,
            scheduling=sizes,
        ),
    )


_ROWS = (
    _row("no_custom", "The generic student as it was built.", bound="do_nothing"),
    _row(
        "one_time",
        "Specialise once on the first minute, then never again.",
        streaming="one_time",
        adaptation=_ALL_WEIGHTS,
    ),
    _row(
        "remote_tracking",
        "Label a frame a second on the server and carry the labels along with the motion.",
        streaming="remote_tracking",
    ),
    _row(
        "just_in_time",
        "Train on single frames until the student agrees with the teacher.",
        streaming="just_in_time",
        adaptation=Member("adaptation", "distill", (("optimiser", "momentum"), ("learning_rate", 0.003))),
    ),
    _row(
        "ams",
        "Stream small updates of a twentieth of the weights, as often as the scene asks for.",
        streaming="ams",
        adaptation="distill",
    ),
    _row("adabn", "Statistics of batch norms that move along with the stream, on the device.", adaptation="adabn"),
    _row(
        "onda", "Statistics of batch norms that move a little with every ten frames, on the device.", adaptation="onda"
    ),
    _row("tent", "Scales and shifts of batch norms that make the device's answers less uncertain.", adaptation="tent"),
    _row(
        "shot",
        "Features that move until a frozen head answers with confidence and variety, in phases on the device.",
        streaming="on_device",
        adaptation="shot",
    ),
    _row(
        "elasticdnn",
        "A smaller network cut for each domain from a gated master, whose filters that matter are retrained.",
        streaming=_TEN_FPS,
        adaptation="elasticdnn",
        scaling="surrogate",
    ),
    _row(
        "elasticdnn+tent",
        "As elasticdnn, with Tent's loss on scales and shifts of the filters that matter.",
        streaming=_TEN_FPS,
        adaptation=Member("adaptation", "elasticdnn", (("objective", "entropy"),)),
        scaling="surrogate",
    ),
    _row(
        "elasticdnn+cua",
        "As elasticdnn, with features aligned to those of stored source samples, which are replayed.",
        streaming=_TEN_FPS,
        adaptation="elasticdnn_cua",
        scaling="surrogate",
    ),
    _row(
        "elasticdnn+ams",
        "Surrogates cut and retrained on the server by a teacher's labels, sent as drafts with their updates.",
        streaming="ams",
        adaptation="elasticdnn_taught",
        scaling="surrogate",
    ),
    _row(
        "cotta",
        "A student on the device that learns from the average of its own past, with weights that return at random.",
        adaptation="cotta",
    ),
    _row(
        "eata",
        "Tent on frames that are sure and new, with weights held near the source by their importance.",
        adaptation="eata",
    ),
    _row(
        "sar",
        "Tent on sure frames, along gradients that hold in a neighbourhood of the weights.",
        adaptation="sar",
    ),
    _row(
        "rotta",
        "A slow teacher, statistics that follow the stream, and lessons from a balanced memory of frames.",
        adaptation="rotta",
    ),
    _row(
        "lame",
        "Predictions of a batch that agree where frames look alike, with a network that never changes.",
        adaptation="lame",
    ),
    _row(
        "t3a",
        "A head whose weights become the means of the surest features of each class.",
        adaptation="t3a",
    ),
    _row(
        "neo",
        "Features that are centred before the head by the mean of all seen so far.",
        adaptation="neo",
    ),
    _row(
        "note",
        "Batch norms that look at each frame by itself, and lessons from a memory balanced over classes.",
        adaptation="note",
    ),
    _row(
        "bufr",
        "Blocks that train from the bottom up until features are spread as on the source, in phases on the device.",
        streaming="on_device",
        adaptation="bufr",
    ),
    _row(
        "rdumb",
        "EATA without its pull on the device, back at the source after every thousand steps.",
        adaptation=Member("adaptation", "rdumb", (("settings", ("beta=0",)),)),
    ),
    _row(
        "asr",
        "EATA on the device, back at the source as far as its predictions concentrate.",
        adaptation="asr",
    ),
    _row(
        "sparing",
        "EATA on the device, from every fourth batch.",
        adaptation="sparing",
    ),
    _row(
        "snap",
        "EATA on the device, seldom and from a memory of sure frames.",
        adaptation="snap",
    ),
    _row(
        "conda",
        "SHOT on mixed frames of this and past domains, in phases on the device.",
        streaming="on_device",
        adaptation="conda",
    ),
    _row(
        "ace",
        "Labelled source frames painted in the device's colours, trained on in phases on the device.",
        streaming="on_device",
        adaptation="ace",
    ),
    _row(
        "iada",
        "Features that follow a discriminator back to the source's, in phases on the device.",
        streaming="on_device",
        adaptation="iada",
    ),
    _row(
        "cua",
        "Features aligned with those of the source, with samples of past domains, in phases on the device.",
        streaming="on_device",
        adaptation="cua",
    ),
    _row(
        "on_device",
        "A teacher and a learner on the device, which labels and trains beside answering.",
        streaming="on_device",
        adaptation="distill",
    ),
    *_many("uniform-learning", "Equal shares for all that learn on one device", "uniform_learning"),
    *_many("ekya", "Trials and a thief of shares among applications that learn on one device"),
    *_many("recl", "Micro-windows of learning where accuracy has risen fastest"),
    *_many("afs", "Slots of the machine to the learner whose completion gains most"),
    *_many("synergy", "Parts of the machine by what each learner can use of them"),
    *_many("muri", "Learners whose stages interleave on the parts of the machine"),
    *_many("elasticdnn-many", "One way to learn for each application, for the best accuracy of all", "elasticdnn"),
    *_many("joint", "Ways, order and shares of all applications that learn, decided together"),
    _row(
        "nestdnn",
        "Networks inside one another on each application's share of the machine, chosen anew for every window.",
        scaling="nested",
        scheduling="nestdnn",
    ),
    _row(
        "usnet",
        "As nestdnn, with networks of every width that were trained jointly.",
        scaling="usnet",
        scheduling="nestdnn",
    ),
    _row(
        "adascale",
        "A path through operators and exits of one network that follows the load of the device.",
        scaling="adascale",
    ),
    _row(
        "legodnn",
        "A variant for each block of a network, by losses and savings that add up.",
        scaling="legodnn",
    ),
    _row(
        "adaptivenet",
        "The dearest of the best paths without exits that is predicted to be in time.",
        scaling="adaptivenet",
    ),
    _row(
        "adaspring",
        "Operators searched stage by stage whenever the load of the device has changed.",
        scaling="adaspring",
    ),
    _row(
        "adadeep",
        "Operators found once by learning from rewards, whatever the load becomes.",
        scaling="adadeep",
    ),
    _row(
        "early_exit",
        "Each frame leaves a network at the first exit that is sure of it, by thresholds that follow the load.",
        scaling="early_exit",
    ),
    _row(
        "once_for_all",
        "Networks of uneven depths and widths trained jointly, the best of each size chosen by the load of the device.",
        scaling="once_for_all",
    ),
    _row(
        "nas",
        "One path whose operators are settings, for a search of settings to find.",
        scaling="nas",
    ),
    _row(
        "darts",
        "One path whose operators are found by gradients of a mixture of all, whatever the load of the device.",
        scaling="darts",
    ),
    _row(
        "enas",
        "One path that a controller finds among paths with shared weights, whatever the load of the device.",
        scaling="enas",
    ),
    _row(
        "clairvoyant",
        "The best path by the true load until the next reading: a bound on what following it can gain.",
        scaling="clairvoyant",
    ),
    _row(
        "light",
        "A light network of another structure, trained on the same data, whatever the load of the device.",
        scaling="light",
    ),
    _row(
        "branches",
        "The whole of a network of stages with exits and operators, whatever the load of the device.",
        scaling="branches",
    ),
    _row(
        "mcdnn",
        "Independent networks, the best accuracy per compute within all budgets.",
        scaling="independent",
        scheduling="mcdnn",
    ),
    _row(
        "status_quo",
        "One independent network for each application, whatever else runs on the machine.",
        scaling="independent",
        scheduling="status_quo",
    ),
    _row(
        "ams+joint",
        "AMS on a server whose GPUs go to the rounds that gain most, where others are served in order of arrival.",
        streaming="ams",
        adaptation="distill",
        scheduling=Member("scheduling", "joint", (("patience_s", 30.0),)),
    ),
    _row(
        "ams+nested",
        "Updates streamed into networks inside one another, of which the scheduler chooses one for every window.",
        streaming="ams",
        adaptation="distill",
        scaling="nested",
        scheduling="nestdnn",
    ),
    _row(
        "ams+adascale",
        "Updates streamed into the paths of one network, of which the device runs the one that fits its load.",
        streaming="ams",
        adaptation="distill",
        scaling="adascale",
    ),
    _row(
        "adascale+elasticdnn",
        "A path that follows the load by accuracies that are estimated for the domain, and learns it.",
        streaming=_TEN_FPS,
        adaptation=Member("adaptation", "elasticdnn", (("estimates", 12),)),
        scaling=Member("scaling", "adascale", (("exits", 2),)),
    ),
    _row(
        "nestdnn+adascale",
        "Shares of the machine by NestDNN's plan, and within each share the path that follows the load.",
        scaling="adascale",
        scheduling=Member("scheduling", "nestdnn", (("names", False),)),
    ),
    _row(
        "best_static",
        "One model trained on the whole stream before it begins: the best choice that never changes.",
        streaming=Member("streaming", "foresight", (("span", "stream"), ("iterations", 300))),
        adaptation=_ALL_WEIGHTS,
        bound="best_static",
    ),
    _row(
        "oracle",
        "A model trained on each window before it is seen, over a link that takes no time.",
        streaming=Member("streaming", "foresight", (("span", "window"),)),
        adaptation=_ALL_WEIGHTS,
        bound="oracle",
    ),
)

SYSTEMS: Mapping[str, System] = {system.name: system for system in _ROWS}
