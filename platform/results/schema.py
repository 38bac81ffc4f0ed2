"""Every table of a run: columns, types, units and meaning; `tables_page.py` prints docs/tables.md from here.

Host columns (name begins with `host_`) hold what this machine happened to do; every other column depends on the
experiment and its seed alone, and two runs of the same thing agree on it to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

# Major.minor. A new column or table raises the minor version: files of all of them read (see `recorder.read_file`). A
# column that changes its meaning or type raises the major version. "4" is 4.0.
SCHEMA_VERSION = "4.1"
FIRST = "4"  # version of the tables that say nothing else
HOST = "host_"

TEXT, COUNT, BYTES, REAL, FLAG = pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.bool_()
INDEX, PNG = pa.int32(), pa.binary()


def _column(
    name: str, kind: pa.DataType, meaning: str, unit: str = "", *, null: str = "", before: Any = None
) -> pa.Field:
    """Describe a column; `null` says when a value is missing, and without it a value may never be missing.

    A newer column is null where older runs lack it; `before` is what it holds there instead.
    """
    metadata = {"meaning": meaning, "unit": unit}
    if before is not None:
        metadata["before"] = json.dumps(before)
    if null:
        metadata["null"] = null
    if name.startswith(HOST):
        metadata["host"] = "true"
    return pa.field(name, kind, nullable=bool(null), metadata=metadata)


def _table(name: str, meaning: str, *columns: pa.Field, since: str = FIRST) -> pa.Schema:
    """Describe a table; runs that are older than `since` have none."""
    cell = _column("cell", TEXT, "one system on one workload with one fleet and one seed")
    metadata = {"driftlab.table": name, "driftlab.schema": SCHEMA_VERSION, "driftlab.since": since, "meaning": meaning}
    return pa.schema([cell, *columns], metadata=metadata)


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
    return [_column(f"{name}_j", REAL, f"part of it: {what}", "J", null=null) for name, what in _PURPOSES.items()]


_FAILED = "the cell failed"
_GIVEN = "applications were only given shares"
_NOT_RUN = f"{_GIVEN} or {_FAILED}"
_NO_TRUTH = "the stream has no truth"

_RUNS = _table(
    "runs",
    "One row per cell: what was asked for and what came out.",
    _column("experiment", TEXT, "name of the experiment"),
    _column("system", TEXT, "row of the table of systems"),
    _column("streaming", TEXT, "what crosses the link, and when"),
    _column("adaptation", TEXT, "how the weights follow the data"),
    _column("scaling", TEXT, "which network fits the budget"),
    _column("scheduling", TEXT, "who gets the machine in a window"),
    _column("workload", TEXT, "stream that the devices see"),
    _column("fleet", TEXT, "devices and links by name"),
    _column("devices", INDEX, "how many devices"),
    _column("seed", COUNT, "seed of the cell"),
    _column("bound", TEXT, "do_nothing, null_link, best_static or oracle", null="the system is a method, not a bound"),
    _column("status", TEXT, "done or failed"),
    _column("error", TEXT, "why the cell failed", null="it did not"),
    _column("duration_s", REAL, "virtual length of the session", "s", null=_FAILED),
    _column("frames", COUNT, "frames the cameras saw", "frames", null=_NOT_RUN),
    _column("score", REAL, "mean over frames of the windowed score, 0 to 1", null=f"{_NO_TRUTH}, {_NOT_RUN}"),
    _column("score_frame", REAL, "mean over frames of each frame's own score, 0 to 1", null=f"{_NO_TRUTH}, {_NOT_RUN}"),
    _column("score_global", REAL, "score of the whole session at once, 0 to 1", null=f"{_NO_TRUTH}, {_NOT_RUN}"),
    _column("uplink_bytes", BYTES, "device to server, all devices, with retransmissions", "B", null=_NOT_RUN),
    _column("downlink_bytes", BYTES, "server to device, all devices, likewise", "B", null=_NOT_RUN),
    _column("uplink_kbps", REAL, "mean per device over the session", "kbit/s", null=_NOT_RUN),
    _column("downlink_kbps", REAL, "mean per device over the session", "kbit/s", null=_NOT_RUN),
    _column("energy_j", REAL, "what all devices draw for what they do", "J", null=_NOT_RUN),
    *_split(_NOT_RUN),
    _column("updates", COUNT, "updates that devices accepted", "updates", null=_NOT_RUN),
    _column("student", TEXT, "network on the devices, or one per application", null=_FAILED),
    _column("teacher", TEXT, "who labels the samples", null="nobody does"),
    _column(
        "weights_digest",
        TEXT,
        "hash of the students' final states: weights, buffers that moved, memory of adaptations on devices",
        null=_NOT_RUN,
    ),
    _column("parameters", COUNT, "size of the student", "values", null=_FAILED),
    _column("macs", COUNT, "multiply-accumulates of the student for one frame", "MAC", null=_FAILED),
    _column("host_seconds", REAL, "time this machine took", "s", null="not measured"),
    _column("host_peak_memory_bytes", BYTES, "peak memory of the process that ran the cell", "B", null="not measured"),
)

_FRAMES = _table(
    "frames",
    "One row per frame and application: what was shown, what was seen.",
    _column("device", TEXT, "which device"),
    _column("app", TEXT, "which application on it"),
    _column("frame", INDEX, "number of the frame in the stream"),
    _column("time_s", REAL, "when the frame was shown", "s"),
    _column("scene", INDEX, "which scene it shows; a scene that comes back keeps its number"),
    _column("version", INDEX, "version of the model in use, 0 before any update"),
    _column("processed", FLAG, "whether the model ran on it; if not, the last prediction stands"),
    _column("latency_ms", REAL, "from shown to predicted", "ms", null="not processed"),
    _column(
        "score_frame",
        REAL,
        "score of this frame by the student's task, 0 to 1",
        null=_NO_TRUTH,
    ),
    _column("score_window", REAL, "score over the window that ends with this frame, likewise, 0 to 1", null=_NO_TRUTH),
    _column(
        "pixel_accuracy", REAL, "share of pixels that are right, 0 to 1", null=f"{_NO_TRUTH} or no pixels are named"
    ),
)

_NO_SAMPLES = "it carries no samples"

_TRANSFERS = _table(
    "transfers",
    "One row per message over a link.",
    _column("device", TEXT, "which device's link"),
    _column("app", TEXT, "which application's message"),
    _column("direction", TEXT, "up (device to server) or down"),
    _column(
        "kind", TEXT, "samples, labels, update, plan (new rates alone), or resync: the device asks for every weight"
    ),
    _column("sequence", COUNT, "number of the application's message in this direction"),
    _column("bytes", BYTES, "payload", "B"),
    _column("wire_bytes", BYTES, "payload with retransmissions", "B"),
    _column("queued_s", REAL, "when it was handed to the link", "s"),
    _column("start_s", REAL, "when its first bit left", "s", null="the session ended before"),
    _column("sent_s", REAL, "when its last bit left", "s", null="the session ended before"),
    _column("arrive_s", REAL, "when its last bit arrived", "s", null="the session ended before"),
    _column("retransmissions", COUNT, "packets sent again", "packets"),
    _column("refused", TEXT, "why its receiver threw it away", null="it was taken"),
    _column("samples", COUNT, "frames it carries", "frames", null=_NO_SAMPLES),
    _column(
        "rate_fps", REAL, "sampling rate in force when they were chosen", "frames/s", null=f"{_NO_SAMPLES} or no rate"
    ),
    _column("gross_bytes", BYTES, "payload with what the encoder says about itself", "B", null=_NO_SAMPLES),
    _column("host_pack_seconds", REAL, "time this machine took to pack them", "s", null=_NO_SAMPLES),
    _column(
        "unknown", COUNT, "labels it carries that name no class of the list", "labels", null="it brought no labels"
    ),
)

_OLDER = "an older run, which did not count it"
_NO_PHASE = "nothing was trained"
_NO_PLAN = "the streaming member sets none"

_UPDATES = _table(
    "updates",
    "One row per round of learning from samples, and one per answer to a device that asked for every weight.",
    _column("device", TEXT, "for which device"),
    _column("app", TEXT, "for which application on it"),
    _column("place", TEXT, "where the learner stands: server or device", before="server"),
    _column("version", INDEX, "version of the model that the update makes", null="no update came of it"),
    _column("uploads", COUNT, "uploads that were labelled; more than one where the server is late", "messages"),
    _column("samples", COUNT, "samples they brought", "frames"),
    _column("unknown", COUNT, "labels of theirs that name no class of the list; no one learns from them", "labels"),
    _column("buffered", COUNT, "samples in the buffer that was trained on", "frames"),
    _column("phi", REAL, "how much the teacher's labels change from sample to sample", null="not measured"),
    _column("rate_fps", REAL, "sampling rate from here on, within its limits", "frames/s", null=_NO_PLAN),
    _column("interval_s", REAL, "time between uploads from here on, within its limits", "s", null=_NO_PLAN),
    _column("way", TEXT, "which of several ways to learn the scheduler chose", null="there was one way"),
    _column("iterations", COUNT, "optimiser steps", "steps"),
    _column("values", COUNT, "weights that the update carries", "values"),
    _column("clamped", COUNT, "of these, too large for how they are written", "values"),
    _column("loss_first", REAL, "loss of the first step", null=_NO_PHASE),
    _column("loss_last", REAL, "loss of the last step", null=_NO_PHASE),
    _column("bytes", BYTES, "payload of the update", "B"),
    _column("teach_start_s", REAL, "when the teacher began to label the samples", "s", null="nobody labelled them"),
    _column("teach_end_s", REAL, "when they were labelled", "s", null="nobody labelled them"),
    _column("train_start_s", REAL, "when the learner began", "s", null=_NO_PHASE),
    _column("train_end_s", REAL, "when the learner was done", "s", null=_NO_PHASE),
    _column("work_s", REAL, "time of labelling, trying out and learning, alone on the machine", "s", null=_OLDER),
    _column("energy_j", REAL, "what that draws on the machine where it was done", "J", null=_OLDER),
    _column("memory_bytes", BYTES, "what it held beside the network at work", "B", null=_OLDER),
    _column("arrive_s", REAL, "when the device had the whole update", "s", null="it did not arrive in the session"),
    _column(
        "accepted", FLAG, "whether the application took it", null="none came of it, or it did not arrive in the session"
    ),
    _column("reason", TEXT, "why there was no update, or why it was refused", null="it was taken"),
    _column("host_train_seconds", REAL, "time this machine took to train", "s", null="not measured"),
)

_ADAPTATIONS = _table(
    "adaptations",
    "One row per batch of its stream that an application learned from on its device, or could not learn from.",
    _column("device", TEXT, "which device"),
    _column("app", TEXT, "which application on it"),
    _column("version", INDEX, "version of the model from then on"),
    _column("frames", COUNT, "frames in the batch", "frames"),
    _column("start_s", REAL, "when learning began", "s", null="the session ended before"),
    _column("end_s", REAL, "when what was learned came into use", "s", null="the session ended before"),
    _column("work_s", REAL, "time that it takes alone on the device", "s"),
    _column("energy_j", REAL, "what it draws", "J"),
    _column("memory_bytes", BYTES, "what it holds beside the network at work: activations, gradients, state", "B"),
    _column("iterations", COUNT, "optimiser steps", "steps"),
    _column("loss", REAL, "loss of the last step", null="there was none"),
    _column("skipped", TEXT, "why nothing was learned", null="something was"),
    since="4.1",
)

_WAITS = "it waits, or there is nothing to choose"
_NO_GOAL = "the application has none"
_KERNELS = (
    "of its weights, those of several dimensions, which networks of other widths can share: no batch norm, no bias"
)
_TAKES = "what it takes of the memory that is shared out: its weights, or what somebody measured"
_KNOWN = "accuracy that schedulers go by: on other held-out data, unless somebody else measured it, 0 to 1"

_SHARES = _table(
    "shares",
    "One row per application and stretch of time in which its share stays: what the scheduler gave it.",
    _column("device", TEXT, "which device"),
    _column("app", TEXT, "which application on it"),
    _column("time_s", REAL, "when the stretch began", "s"),
    _column("window_s", REAL, "how long it really lasted", "s"),
    _column("share", REAL, "share of the device's compute that answers frames, 0 to 1; 0: it waits"),
    _column("learn_share", REAL, "share that learns on the device, 0 to 1", null="nothing is learned there"),
    _column("variant", INDEX, "which of its networks it runs, from the smallest on", null=_WAITS),
    _column("network", TEXT, "name of that network", null="it waits, or there are several to choose from"),
    _column("accuracy", REAL, "what that network reached on held-out data, 0 to 1", null="not measured"),
    _column("known_accuracy", REAL, _KNOWN, null="not measured"),
    _column("latency_ms", REAL, "time of one frame on this share", "ms", null=_WAITS),
    _column("fps", REAL, "frames that its stream shows", "frames/s"),
    _column("accuracy_goal", REAL, "accuracy that it asks for, 0 to 1", null=_NO_GOAL),
    _column("latency_goal_ms", REAL, "time of one frame that it asks for", "ms", null=_NO_GOAL),
    _column("priority", REAL, "how many times as much its cost counts"),
    _column("memory_bytes", BYTES, f"{_TAKES}; 0: it waits", "B"),
    _column("paged_in_bytes", BYTES, "weights that had to be loaded to run it", "B"),
    _column("paged_out_bytes", BYTES, "weights that were dropped", "B"),
    _column("energy_j", REAL, "what the frames draw that there is time for", "J", null=f"{_WAITS}, or not modelled"),
    _column("paging_j", REAL, "what loading and dropping draws", "J"),
    _column("note", TEXT, "why it waits, which of its goals is out of reach", null="nothing to say"),
    _column("host_schedule_seconds", REAL, "processor time that this machine took to share out the whole window", "s"),
)

_VARIANTS = _table(
    "variants",
    "One row per application of a device and network that it could run there.",
    _column("device", TEXT, "which device"),
    _column("app", TEXT, "which application on it"),
    _column("variant", INDEX, "number of the network, from the smallest on"),
    _column("network", TEXT, "its name"),
    _column("accuracy", REAL, "what it reached on held-out data, 0 to 1", null="not measured"),
    _column("known_accuracy", REAL, _KNOWN, null="not measured"),
    _column("memory_bytes", BYTES, _TAKES, "B"),
    _column("kernel_bytes", BYTES, _KERNELS, "B", null="somebody measured it elsewhere"),
    _column("latency_ms", REAL, "time of one frame, alone on the device", "ms"),
    _column("energy_j", REAL, "what one frame draws", "J", null="not modelled"),
    _column("macs", COUNT, "multiply-accumulates for one frame", "MAC", null="not counted"),
)

_DEVICES = _table(
    "devices",
    "One row per device.",
    _column("device", TEXT, "which device"),
    _column("hardware", TEXT, "its hardware profile"),
    _column("link", TEXT, "its link"),
    _column("stream_seed", COUNT, "seed of the stream that its (first) application watches"),
    _column("frames", COUNT, "frames its camera saw", "frames", null=_GIVEN),
    _column("processed", COUNT, "frames its model ran on", "frames", null=_GIVEN),
    _column("busy_s", REAL, "virtual time spent computing", "s", null=_GIVEN),
    _column("energy_j", REAL, "what the device draws for what it does", "J", null=_GIVEN),
    *_split(_GIVEN),
    _column("memory_bytes", BYTES, "memory that its applications share", "B"),
    _column("peak_memory_bytes", BYTES, "the most that answering and learning needed at once", "B", null=_GIVEN),
    _column(
        "working_memory_bytes",
        BYTES,
        "what the students of all its applications, as they were built, would need at once: activations, and the "
        "weights twice, as one copy runs while the other is patched",
        "B",
    ),
    _column("uplink_bytes", BYTES, "sent, with retransmissions", "B", null=_GIVEN),
    _column("downlink_bytes", BYTES, "received, with retransmissions", "B", null=_GIVEN),
    _column("score", REAL, "mean over its frames of the windowed score, 0 to 1", null=f"{_NO_TRUTH} or {_GIVEN}"),
)

_PICTURES = _table(
    "pictures",
    "What a model saw at a few moments; answers are drawn in one colour per class.",
    _column("device", TEXT, "which device"),
    _column("time_s", REAL, "when the frame was shown", "s"),
    _column("scene", INDEX, "which scene it shows"),
    _column("height", INDEX, "height of the frame", "px"),
    _column("width", INDEX, "width of the frame", "px"),
    _column("image", PNG, "the frame", "PNG"),
    _column("truth", PNG, "true answer: label map, boxes, or the class's colour", "PNG", null=_NO_TRUTH),
    _column("prediction", PNG, "predicted answer, likewise", "PNG"),
)

TABLES: Mapping[str, pa.Schema] = MappingProxyType(
    {
        "runs": _RUNS,
        "frames": _FRAMES,
        "transfers": _TRANSFERS,
        "updates": _UPDATES,
        "adaptations": _ADAPTATIONS,
        "shares": _SHARES,
        "variants": _VARIANTS,
        "devices": _DEVICES,
        "pictures": _PICTURES,
    }
)


def host_columns(table: str) -> frozenset[str]:
    """Name the columns that two runs of the same thing need not agree on."""
    return frozenset(name for name in TABLES[table].names if name.startswith(HOST))


def version_of(schema: pa.Schema) -> str:
    """Read the schema version that a file was written with; empty if it is no table of a run."""
    return note(schema, "driftlab.schema")


def ordered(version: str) -> tuple[int, int]:
    """Split a version into numbers that compare; (0, 0) for what is none."""
    major, _, minor = version.partition(".")
    return (int(major), int(minor or 0)) if major.isdecimal() and (minor or "0").isdecimal() else (0, 0)


def is_newer(table: str, version: str) -> bool:
    """Tell whether a table was added after a schema version."""
    return ordered(note(TABLES[table], "driftlab.since")) > ordered(version)


def before(field: pa.Field) -> Any:
    """Return what a column holds where older runs lack it."""
    return json.loads(note(field, "before") or "null")


def note(described: pa.Field | pa.Schema, key: str) -> str:
    """Read a remark on a column or a table; empty if there is none."""
    found: bytes = (described.metadata or {}).get(key.encode(), b"")
    return found.decode()
