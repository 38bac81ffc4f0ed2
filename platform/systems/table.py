"""The table of systems: one row of four slots each; a slot that is not named is its family's null member."""

from __future__ import annotations

from collections.abc import Mapping

from driftlab.platform.core.catalogue import Member
from driftlab.platform.systems.system import System

_ALL_WEIGHTS = Member("adaptation", "distill", (("fraction", 1.0),))

_ROWS = (
    System("no_custom", "The generic student as it was built.", bound="do_nothing"),
    System(
        "one_time",
        "Specialise once on the first minute, then never again.",
        streaming=Member("streaming", "one_time"),
        adaptation=_ALL_WEIGHTS,
    ),
    System(
        "remote_tracking",
        "Label a frame a second on the server and carry the labels along with the motion.",
        streaming=Member("streaming", "remote_tracking"),
    ),
    System(
        "just_in_time",
        "Train on single frames until the student agrees with the teacher.",
        streaming=Member("streaming", "just_in_time"),
        adaptation=Member("adaptation", "distill", (("optimiser", "momentum"), ("learning_rate", 0.003))),
    ),
    System(
        "ams",
        "Stream small updates of a twentieth of the weights, as often as the scene asks for.",
        streaming=Member("streaming", "ams"),
        adaptation=Member("adaptation", "distill"),
    ),
    System(
        "adabn",
        "Statistics of batch norms that move along with the stream, on the device.",
        adaptation=Member("adaptation", "adabn"),
    ),
    System(
        "onda",
        "Statistics of batch norms that move a little with every ten frames, on the device.",
        adaptation=Member("adaptation", "onda"),
    ),
    System(
        "tent",
        "Scales and shifts of batch norms that make the device's answers less uncertain.",
        adaptation=Member("adaptation", "tent"),
    ),
    System(
        "shot",
        "Features that move until a frozen head answers with confidence and variety, in phases on the device.",
        streaming=Member("streaming", "on_device"),
        adaptation=Member("adaptation", "shot"),
    ),
    System(
        "on_device",
        "A teacher and a learner on the device, which labels and trains beside answering.",
        streaming=Member("streaming", "on_device"),
        adaptation=Member("adaptation", "distill"),
    ),
    System(
        "nestdnn",
        "Networks inside one another on each application's share of the machine, chosen anew for every window.",
        scaling=Member("scaling", "nested"),
        scheduling=Member("scheduling", "nestdnn"),
    ),
    System(
        "usnet",
        "As nestdnn, with networks of every width that were trained jointly.",
        scaling=Member("scaling", "usnet"),
        scheduling=Member("scheduling", "nestdnn"),
    ),
    System(
        "mcdnn",
        "Independent networks, the best accuracy per compute within all budgets.",
        scaling=Member("scaling", "independent"),
        scheduling=Member("scheduling", "mcdnn"),
    ),
    System(
        "status_quo",
        "One independent network for each application, whatever else runs on the machine.",
        scaling=Member("scaling", "independent"),
        scheduling=Member("scheduling", "status_quo"),
    ),
    System(
        "ams+nested",
        "Updates streamed into networks inside one another, of which the scheduler chooses one for every window.",
        streaming=Member("streaming", "ams"),
        adaptation=Member("adaptation", "distill"),
        scaling=Member("scaling", "nested"),
        scheduling=Member("scheduling", "nestdnn"),
    ),
    System(
        "best_static",
        "One model trained on the whole stream before it begins: the best choice that never changes.",
        streaming=Member("streaming", "foresight", (("span", "stream"), ("iterations", 300))),
        adaptation=_ALL_WEIGHTS,
        bound="best_static",
    ),
    System(
        "oracle",
        "A model trained on each window before it is seen, over a link that takes no time.",
        streaming=Member("streaming", "foresight", (("span", "window"),)),
        adaptation=_ALL_WEIGHTS,
        bound="oracle",
    ),
)

SYSTEMS: Mapping[str, System] = {system.name: system for system in _ROWS}
