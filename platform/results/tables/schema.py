"""Every table of a run: columns, types, units and meaning; docs/tables.md is printed from here.

Host columns (name begins with `host_`) hold what this machine happened to do; every other column depends on the
experiment and its seed alone, and two runs of the same thing agree on it to the last bit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from driftlab.platform.results.tables.columns import (
    BYTES,
    COUNT,
    FLAG,
    HOST,
    INDEX,
    OLDEST,
    PLACE,
    PNG,
    REAL,
    SCHEMA_VERSION,
    TEXT,
    column,
    note,
    ordered,
    table_of,
)
from driftlab.platform.results.tables.facts import ADAPTATIONS, CLASSES, LOADS, MOTION, SYSTEMS
from driftlab.platform.results.tables.search import SEARCH_TABLES

_PURPOSES = {
    "answering": "networks that answer frames",
    "learning": "learning, and trying out ways to learn, on the device",
    "labelling": "a teacher on the device",
    "tracking": "optical flow",
    "coding": "packing samples, and unpacking labels",
    "patching": "writing updates into the copy of the weights that is not in use",
    "paging": "loading and dropping networks",
    "radio": "the device's end of the link",
}


def _split(null: str) -> list[pa.Field]:
    """Describe what energy was spent on; the parts add up to `energy_j`."""
    return [column(f"{name}_j", REAL, f"part of it: {what}", "J", null=null) for name, what in _PURPOSES.items()]


_FAILED = "the cell failed"
_GIVEN = "applications were only given shares"
_NOT_RUN = f"{_GIVEN} or {_FAILED}"
_NO_TRUTH = "the stream has no truth"

_RUNS = table_of(
    "runs",
    "One row per cell: what was asked for and what came out.",
    column("experiment", TEXT, "name of the experiment"),
    column("system", TEXT, "row of the table of systems"),
    column("streaming", TEXT, "what crosses the link, and when"),
    column("adaptation", TEXT, "how the weights follow the data"),
    column("scaling", TEXT, "which network fits the budget"),
    column("scheduling", TEXT, "who gets the machine in a window"),
    column("workload", TEXT, "stream that the devices see"),
    column("fleet", TEXT, "devices and links by name"),
    column("devices", INDEX, "how many devices"),
    column("seed", COUNT, "seed of the cell"),
    column(
        "bound",
        TEXT,
        "no_adaptation, zero_delay_link, best_static or oracle",
        null="the system is a method, not a bound",
    ),
    column("tuned", TEXT, "which search its settings come from", null="they are defaults, or were given"),
    column("status", TEXT, "done or failed"),
    column("error", TEXT, "why the cell failed", null="it did not"),
    column("duration_s", REAL, "virtual length of the session", "s", null=_FAILED),
    column("frames", COUNT, "frames the cameras saw", "frames", null=_NOT_RUN),
    column("score", REAL, "mean over frames of the windowed score, 0 to 1", null=f"{_NO_TRUTH}, {_NOT_RUN}"),
    column("score_frame", REAL, "mean over frames of each frame's own score, 0 to 1", null=f"{_NO_TRUTH}, {_NOT_RUN}"),
    column("score_global", REAL, "score of the whole session at once, 0 to 1", null=f"{_NO_TRUTH}, {_NOT_RUN}"),
    column("uplink_bytes", BYTES, "device to server, all devices, with retransmissions", "B", null=_NOT_RUN),
    column("downlink_bytes", BYTES, "server to device, all devices, likewise", "B", null=_NOT_RUN),
    column("uplink_kbps", REAL, "mean per device over the session", "kbit/s", null=_NOT_RUN),
    column("downlink_kbps", REAL, "mean per device over the session", "kbit/s", null=_NOT_RUN),
    column("energy_j", REAL, "what all devices draw for what they do", "J", null=_NOT_RUN),
    *_split(_NOT_RUN),
    column("updates", COUNT, "updates that devices accepted", "updates", null=_NOT_RUN),
    column("student", TEXT, "network on the devices, or one per application", null=_FAILED),
    column("teacher", TEXT, "who labels the samples", null="nobody does"),
    column(
        "weights_digest",
        TEXT,
        "hash of the students' final states: weights, buffers that moved, memory of adaptations on devices",
        null=_NOT_RUN,
    ),
    column("parameters", COUNT, "size of the student", "values", null=_FAILED),
    column("macs", COUNT, "multiply-accumulates of the student for one frame", "MAC", null=_FAILED),
    column("host_seconds", REAL, "time this machine took", "s", null="not measured"),
    column("host_peak_memory_bytes", BYTES, "peak memory of the process that ran the cell", "B", null="not measured"),
)

_FRAMES = table_of(
    "frames",
    "One row per frame and application: what was shown, what was seen.",
    *PLACE,
    column("frame", INDEX, "number of the frame in the stream"),
    column("time_s", REAL, "when the frame was shown", "s"),
    column("scene", INDEX, "which scene it shows; a scene that comes back keeps its number"),
    column("version", INDEX, "version of the model in use, 0 before any update"),
    column("processed", FLAG, "whether the model ran on it; if not, the last prediction stands"),
    column("latency_ms", REAL, "from shown to predicted", "ms", null="not processed"),
    column(
        "score_frame",
        REAL,
        "score of this frame by the student's task, 0 to 1",
        null=_NO_TRUTH,
    ),
    column("score_window", REAL, "score over the window that ends with this frame, likewise, 0 to 1", null=_NO_TRUTH),
    column(
        "pixel_accuracy", REAL, "share of pixels that are right, 0 to 1", null=f"{_NO_TRUTH} or no pixels are named"
    ),
)

_NO_SAMPLES = "it carries no samples"

_TRANSFERS = table_of(
    "transfers",
    "One row per message over a link.",
    column("device", TEXT, "which device's link"),
    column("app", TEXT, "which application's message"),
    column("direction", TEXT, "up (device to server) or down"),
    column(
        "kind", TEXT, "samples, labels, update, plan (new rates alone), or resync: the device asks for every weight"
    ),
    column("sequence", COUNT, "number of the application's message in this direction"),
    column("bytes", BYTES, "payload", "B"),
    column("wire_bytes", BYTES, "payload with retransmissions", "B"),
    column("queued_s", REAL, "when it was handed to the link", "s"),
    column("start_s", REAL, "when its first bit left", "s", null="the session ended before"),
    column("sent_s", REAL, "when its last bit left", "s", null="the session ended before"),
    column("arrive_s", REAL, "when its last bit arrived", "s", null="the session ended before"),
    column("retransmissions", COUNT, "packets sent again", "packets"),
    column("refused", TEXT, "why its receiver threw it away", null="it was taken"),
    column("samples", COUNT, "frames it carries", "frames", null=_NO_SAMPLES),
    column(
        "rate_fps", REAL, "sampling rate in force when they were chosen", "frames/s", null=f"{_NO_SAMPLES} or no rate"
    ),
    column("gross_bytes", BYTES, "payload with what the encoder says about itself", "B", null=_NO_SAMPLES),
    column("host_pack_seconds", REAL, "time this machine took to pack them", "s", null=_NO_SAMPLES),
    column("unknown", COUNT, "labels it carries that name no class of the list", "labels", null="it brought no labels"),
)

_OLDER = "an older run, which did not count it"
_NO_PHASE = "nothing was trained"
_NO_PLAN = "the streaming member sets none"

_UPDATES = table_of(
    "updates",
    "One row per round of learning from samples, and one per answer to a device that asked for every weight.",
    column("device", TEXT, "for which device"),
    column("app", TEXT, "for which application on it"),
    column("place", TEXT, "where the learner stands: server or device", null="not said", before="server"),
    column("version", INDEX, "version of the model that the update makes", null="no update came of it"),
    column("uploads", COUNT, "uploads that were labelled; more than one where the server is late", "messages"),
    column("samples", COUNT, "samples they brought", "frames"),
    column("unknown", COUNT, "labels of theirs that name no class of the list; no one learns from them", "labels"),
    column("buffered", COUNT, "samples in the buffer that was trained on", "frames"),
    column("phi", REAL, "how much the teacher's labels change from sample to sample", null="not measured"),
    column("rate_fps", REAL, "sampling rate from here on, within its limits", "frames/s", null=_NO_PLAN),
    column("interval_s", REAL, "time between uploads from here on, within its limits", "s", null=_NO_PLAN),
    column("way", TEXT, "which of several ways to learn the scheduler chose", null="there was one way"),
    column("iterations", COUNT, "optimiser steps", "steps"),
    column("values", COUNT, "weights that the update carries", "values"),
    column("clamped", COUNT, "of these, too large for how they are written", "values"),
    column("loss_first", REAL, "loss of the first step", null=_NO_PHASE),
    column("loss_last", REAL, "loss of the last step", null=_NO_PHASE),
    column("bytes", BYTES, "payload of the update", "B"),
    column("teach_start_s", REAL, "when the teacher began to label the samples", "s", null="nobody labelled them"),
    column("teach_end_s", REAL, "when they were labelled", "s", null="nobody labelled them"),
    column("train_start_s", REAL, "when the learner began", "s", null=_NO_PHASE),
    column("train_end_s", REAL, "when the learner was done", "s", null=_NO_PHASE),
    column("work_s", REAL, "time of labelling, trying out and learning, alone on the machine", "s", null=_OLDER),
    column("energy_j", REAL, "what that draws on the machine where it was done", "J", null=_OLDER),
    column("memory_bytes", BYTES, "what it held beside the network at work", "B", null=_OLDER),
    column("arrive_s", REAL, "when the device had the whole update", "s", null="it did not arrive in the session"),
    column(
        "accepted", FLAG, "whether the application took it", null="none came of it, or it did not arrive in the session"
    ),
    column("reason", TEXT, "why there was no update, or why it was refused", null="it was taken"),
    column("host_train_seconds", REAL, "time this machine took to train", "s", null="not measured"),
)

_WAITS = "it waits, or there is nothing to choose"
_NO_GOAL = "the application has none"
_KERNELS = (
    "of its weights, those of several dimensions, which networks of other widths can share: no batch norm, no bias"
)
_TAKES = "what it takes of the memory that is shared out: its weights, or what somebody measured"
_KNOWN = "accuracy that schedulers go by: on other held-out data, unless somebody else measured it, 0 to 1"

_SHARES = table_of(
    "shares",
    "One row per application and stretch of time in which its share stays: what the scheduler gave it.",
    *PLACE,
    column("time_s", REAL, "when the stretch began", "s"),
    column("window_s", REAL, "how long it really lasted", "s"),
    column("share", REAL, "share of the device's compute that answers frames, 0 to 1; 0: it waits"),
    column("learn_share", REAL, "share that learns on the device, 0 to 1", null="nothing is learned there"),
    column("variant", INDEX, "which of its networks it runs, from the smallest on", null=_WAITS),
    column("network", TEXT, "name of that network", null="it waits, or there are several to choose from"),
    column("accuracy", REAL, "what that network reached on held-out data, 0 to 1", null="not measured"),
    column("known_accuracy", REAL, _KNOWN, null="not measured"),
    column("latency_ms", REAL, "time of one frame on this share, at the mean load", "ms", null=_WAITS),
    column("fps", REAL, "frames that its stream shows", "frames/s"),
    column("accuracy_goal", REAL, "accuracy that it asks for, 0 to 1", null=_NO_GOAL),
    column("latency_goal_ms", REAL, "time of one frame that it asks for", "ms", null=_NO_GOAL),
    column("priority", REAL, "how many times as much its cost counts"),
    column("memory_bytes", BYTES, f"{_TAKES}; 0: it waits", "B"),
    column("paged_in_bytes", BYTES, "weights that had to be loaded to run it", "B"),
    column("paged_out_bytes", BYTES, "weights that were dropped", "B"),
    column("energy_j", REAL, "what the frames draw that there is time for", "J", null=f"{_WAITS}, or not modelled"),
    column("paging_j", REAL, "what loading and dropping draws", "J"),
    column("note", TEXT, "why it waits, which of its goals is out of reach", null="nothing to say"),
    column("host_schedule_seconds", REAL, "processor time that this machine took to share out the device", "s"),
)

_VARIANTS = table_of(
    "variants",
    "One row per application of a device and network that it could run there.",
    *PLACE,
    column("variant", INDEX, "number of the network, from the smallest on"),
    column("network", TEXT, "its name"),
    column("accuracy", REAL, "what it reached on held-out data, 0 to 1", null="not measured"),
    column("known_accuracy", REAL, _KNOWN, null="not measured"),
    column("memory_bytes", BYTES, _TAKES, "B"),
    column("kernel_bytes", BYTES, _KERNELS, "B", null="somebody measured it elsewhere"),
    column("latency_ms", REAL, "time of one frame, alone on the device", "ms"),
    column("energy_j", REAL, "what one frame draws", "J", null="not modelled"),
    column("macs", COUNT, "multiply-accumulates for one frame", "MAC", null="not counted"),
)

_UNKNOWN = f"it is no procedural street, or {_GIVEN}"

_DEVICES = table_of(
    "devices",
    "One row per device.",
    column("device", TEXT, "which device"),
    column("hardware", TEXT, "its hardware profile"),
    column("link", TEXT, "its link"),
    column("stream_seed", COUNT, "seed of the stream that its (first) application watches"),
    column("steady", FLAG, "whether that stream has one scene for ever, before a stationary camera", null=_UNKNOWN),
    column("drifts", FLAG, "whether light and weather of its scenes move on to other looks", null=_UNKNOWN),
    column("frames", COUNT, "frames its camera saw", "frames", null=_GIVEN),
    column("processed", COUNT, "frames its model ran on", "frames", null=_GIVEN),
    column("busy_s", REAL, "virtual time spent computing", "s", null=_GIVEN),
    column("energy_j", REAL, "what the device draws for what it does", "J", null=_GIVEN),
    *_split(_GIVEN),
    column("memory_bytes", BYTES, "memory that its applications share", "B"),
    column("peak_memory_bytes", BYTES, "the most that answering and learning needed at once", "B", null=_GIVEN),
    column(
        "working_memory_bytes",
        BYTES,
        "what the students of all its applications, as they were built, would need at once: activations, and the "
        "weights twice, as one copy runs while the other is patched",
        "B",
    ),
    column("uplink_bytes", BYTES, "sent, with retransmissions", "B", null=_GIVEN),
    column("downlink_bytes", BYTES, "received, with retransmissions", "B", null=_GIVEN),
    column("score", REAL, "mean over its frames of the windowed score, 0 to 1", null=f"{_NO_TRUTH} or {_GIVEN}"),
)

_PICTURES = table_of(
    "pictures",
    "What a model saw at a few moments; answers are drawn in one colour per class.",
    column("device", TEXT, "which device"),
    column("time_s", REAL, "when the frame was shown", "s"),
    column("scene", INDEX, "which scene it shows"),
    column("height", INDEX, "height of the frame", "px"),
    column("width", INDEX, "width of the frame", "px"),
    column("image", PNG, "the frame", "PNG"),
    column("truth", PNG, "true answer: label map, boxes, or the class's colour", "PNG", null=_NO_TRUTH),
    column("prediction", PNG, "predicted answer, likewise", "PNG"),
)

TABLES: Mapping[str, pa.Schema] = MappingProxyType(
    {
        "runs": _RUNS,
        "frames": _FRAMES,
        "transfers": _TRANSFERS,
        "updates": _UPDATES,
        "adaptations": ADAPTATIONS,
        "shares": _SHARES,
        "loads": LOADS,
        "variants": _VARIANTS,
        "devices": _DEVICES,
        "systems": SYSTEMS,
        "classes": CLASSES,
        "motion": MOTION,
        "pictures": _PICTURES,
    }
)

VIEWS: Mapping[str, str] = MappingProxyType({"scores": "frames", "class_scores": "classes"})  # view -> its table
IDENTITY = ("system", "workload", "fleet", "seed", "bound")  # what a view adds to every row


def host_columns(table: str) -> frozenset[str]:
    """Name the columns that two runs of the same thing need not agree on."""
    return frozenset(name for name in TABLES[table].names if name.startswith(HOST))


def version_of(schema: pa.Schema) -> str:
    """Read the schema version that a file was written with; empty if it is no table of a run."""
    return note(schema, "driftlab.schema")


def is_newer(table: str, version: str) -> bool:
    """Tell whether a table was added after a schema version."""
    return ordered(note(TABLES[table], "driftlab.since")) > ordered(version)


def before(field: pa.Field) -> Any:
    """Return what a column holds where older runs lack it."""
    return json.loads(note(field, "before") or "null")


_PREAMBLE = f"""# Tables

A run is a folder; everything a person looks at is read from its tables.

```
runs/<name>-<time>/
    spec.yaml                        what was asked for, and every parameter that was not given
    run.json                         versions, machine, commit: where it came from
    tables/<table>/<cell>.parquet    one file per table and cell; a cell counts once its `runs` file is there
    report.html  report.md           drawn from the tables
    log.jsonl
```

```python
import driftlab

run = driftlab.open_run("runs/demo-...")
run.table("frames")  # pyarrow.Table
run.frame("runs")  # pandas.DataFrame
run.sql("select system, avg(score) from runs group by 1")  # DuckDB; every table is a view
run.frame("scores")  # frames with the system, workload, fleet and seed of every row; likewise class_scores of classes
run.compare("ams", "no_custom")  # see analysis.md
```

Times are seconds of virtual time from the start of the session, bits are counted in SI (1 kbit = 1 000 bit), and what
was not measured is null. Scores go from 0 to 1; what they are follows from the student's task: mIoU in segmentation,
accuracy in classification, F1 at an overlap of one half in detection. Columns that begin with `host_` hold what one
machine happened to do; all others depend on the experiment and its seed alone, and `driftlab diff A B` compares them
bit by bit.

Schema version {SCHEMA_VERSION}. Runs of every version from {OLDEST} to the next major one open. In older runs a newer
column is null, or holds what its meaning says, and a newer table is empty. Columns of a newer minor version are left
out. A newer major version is refused, and so are tables from before the first release. A cell of another version counts
as not finished: `driftlab run --resume DIR` runs it again.
`spec.yaml` holds every parameter of every system: beside the member's name those that were given, under `defaults` the
others. So a run can be read when members have changed.

A search (`driftlab tune`) leaves a folder of the same shape with the tables `trials`, `settings` and `measures`, one
file per trial, and `best.yaml`.

This page is printed by `python -m driftlab.platform.results.tables.schema`.
"""


def page() -> str:
    """Write docs/tables.md."""
    parts = [_PREAMBLE]
    for name, schema in {**TABLES, **SEARCH_TABLES}.items():
        parts.append(f"\n## `{name}`\n\n{note(schema, 'meaning')}\n")
        parts.append("| column | type | unit | meaning | null when |\n|---|---|---|---|---|")
        for field in schema:
            cells = (f"`{field.name}`", str(field.type), note(field, "unit"), _meaning(field), note(field, "null"))
            parts.append("| " + " | ".join(cell or " " for cell in cells) + " |")
    return "\n".join(parts) + "\n"


def _meaning(field: pa.Field) -> str:
    fill = note(field, "before")
    return note(field, "meaning") + (f"; {fill} in older runs" if fill else "")


if __name__ == "__main__":
    sys.stdout.write(page())
