"""Tables of what a cell was made of, of what was counted by class, and of how its cameras moved."""

from __future__ import annotations

from driftlab.platform.results.tables.columns import COUNT, INDEX, PLACE, REAL, TEXT, column, table_of

SYSTEMS = table_of(
    "systems",
    "One row per parameter of every member that the system of the cell is made of, whether it was given or a default.",
    column("system", TEXT, "row of the table of systems"),
    column("family", TEXT, "streaming, adaptation, scaling or scheduling"),
    column("member", TEXT, "which member of that family"),
    column("parameter", TEXT, "name of the parameter", null="the member has none"),
    column("value", TEXT, "its value, in JSON", null="the member has no parameter"),
    since="4.2",
)

_ABSENT = "the class does not occur"

CLASSES = table_of(
    "classes",
    "One row per application and class of its task: what was counted over the session; none of detection.",
    *PLACE,
    column("class", INDEX, "number of the class in the task's list"),
    column("truth", COUNT, "pixels or frames of the class"),
    column("predicted", COUNT, "those that were taken for it"),
    column("hits", COUNT, "those of the class that were taken for it"),
    column("score", REAL, "of pixels intersection over union, of frames the share that is right, 0 to 1", null=_ABSENT),
    since="4.2",
)

MOTION = table_of(
    "motion",
    "One row per device and stretch in which its camera accelerates steadily, if its (first) stream is a street.",
    column("device", TEXT, "which device"),
    column("time_s", REAL, "when the stretch began", "s"),
    column("travelled_m", REAL, "way of the camera until then", "m"),
    column("speed_mps", REAL, "its speed then", "m/s"),
    column("acceleration_mps2", REAL, "its acceleration from then on", "m/s²"),
    since="4.3",
)
