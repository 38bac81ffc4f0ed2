"""Every table of a run: columns, types, units and meaning; source of docs/tables.md.

Host columns (name begins with `host_`) hold measurements of the host; every other column depends only on the
experiment and its seed, and is bit-identical in repeated runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa

from driftlab.platform.results.tables.columns import (
    BYTES,
    COUNT,
    FLAG,
    HOST,
    INDEX,
    PLACE,
    PNG,
    REAL,
    SCHEMA_VERSION,
    TEXT,
    column,
    note,
    table_of,
)
from driftlab.platform.results.tables.detail_tables import (
    ADAPTATIONS,
    AUDITS,
    CHANNELS,
    CLASSES,
    ESTIMATES,
    LOADS,
    MOTION,
    PREDICTIONS,
    STAGES,
    SYSTEMS,
)
from driftlab.platform.results.tables.search import SEARCH_TABLES

_PURPOSES = {
    "inference": "inference",
    "training": "training on the device, trials of training configurations included",
    "labelling": "a teacher on the device",
    "tracking": "optical flow",
    "coding": "encoding samples and decoding labels",
    "patching": "writing updates into the copy of the weights that is not in use",
    "paging": "loading networks",
    "radio": "the device's end of the link",
}


def _energy_columns(null: str) -> list[pa.Field]:
    """Describe the columns of energy by purpose, which add up to `energy_j`."""
    return [column(f"{name}_j", REAL, f"part of it: {purpose}", "J", null=null) for name, purpose in _PURPOSES.items()]


_FAILED = "the cell failed"
_ALLOCATED_ONLY = "applications were only given shares"
_NOT_RUN = f"{_ALLOCATED_ONLY} or {_FAILED}"
_NO_TRUTH = "the stream has no truth"
_GRACE = "how long after a frame is shown a prediction may be ready and still be the live one"
_LIVE = (
    "likewise, of the live predictions: the newest that were ready (time_s + latency_ms) when a frame was shown, or "
    "runs.grace_s later; before the first one, frames are wrong"
)

_RUNS = table_of(
    "runs",
    "One row per cell: its request and its results.",
    column("experiment", TEXT, "name of the experiment"),
    column("system", TEXT, "row of the table of systems"),
    column("streaming", TEXT, "messages over the link, and when they are sent"),
    column("adaptation", TEXT, "how the weights are adapted"),
    column("scaling", TEXT, "how the network that fits the budget is chosen"),
    column("scheduling", TEXT, "how the processor is shared in a window"),
    column("workload", TEXT, "stream that the devices receive"),
    column("fleet", TEXT, "devices and links by name"),
    column("devices", INDEX, "how many devices"),
    column("seed", COUNT, "seed of the cell"),
    column(
        "bound",
        TEXT,
        "no_adaptation, zero_delay_link, best_static, oracle, true_load or true_gains",
        null="the system is a method, not a bound",
    ),
    column("tuned", TEXT, "search for its settings: space, trial of N", null="they are defaults, or were given"),
    column("status", TEXT, "done or failed"),
    column("error", TEXT, "error of the cell", null="it did not fail"),
    column("duration_s", REAL, "virtual length of the session", "s", null=_FAILED),
    column("frames", COUNT, "frames of the cameras", "frames", null=_NOT_RUN),
    column("grace_s", REAL, _GRACE, "s", null=_FAILED),
    column(
        "score_live",
        REAL,
        "mean over frames of frames.score_live, 0 to 1: the score by which systems are ranked",
        null=f"{_NO_TRUTH}, {_NOT_RUN}",
    ),
    column(
        "score",
        REAL,
        "mean over frames of the windowed score, 0 to 1: late predictions count as if they were in time",
        null=f"{_NO_TRUTH}, {_NOT_RUN}",
    ),
    column("score_frame", REAL, "mean over frames of each frame's own score, 0 to 1", null=f"{_NO_TRUTH}, {_NOT_RUN}"),
    column("score_global", REAL, "score of the whole session at once, 0 to 1", null=f"{_NO_TRUTH}, {_NOT_RUN}"),
    column("uplink_bytes", BYTES, "device to server, all devices, with retransmissions", "B", null=_NOT_RUN),
    column("downlink_bytes", BYTES, "server to device, all devices, likewise", "B", null=_NOT_RUN),
    column("uplink_kbps", REAL, "mean per device over the session", "kbit/s", null=_NOT_RUN),
    column("downlink_kbps", REAL, "mean per device over the session", "kbit/s", null=_NOT_RUN),
    column("energy_j", REAL, "energy of all devices", "J", null=_NOT_RUN),
    *_energy_columns(_NOT_RUN),
    column("updates", COUNT, "updates that devices accepted", "updates", null=_NOT_RUN),
    column("student", TEXT, "network on the devices, or one per application", null=_FAILED),
    column("teacher", TEXT, "teacher that labels the samples", null="there is none"),
    column(
        "weights_digest",
        TEXT,
        "hash of the students' final states: weights, buffers that moved, memory of adaptations on devices",
        null=_NOT_RUN,
    ),
    column("parameters", COUNT, "size of the student", "values", null=_FAILED),
    column("macs", COUNT, "multiply-accumulates of the student for one frame", "MAC", null=_FAILED),
    column("host_seconds", REAL, "time of the host", "s", null="not measured"),
    column("host_peak_memory_bytes", BYTES, "peak memory of the process that ran the cell", "B", null="not measured"),
)

_FRAMES = table_of(
    "frames",
    "One row per frame and application.",
    *PLACE,
    column("frame", INDEX, "number of the frame in the stream"),
    column("time_s", REAL, "when the frame was shown", "s"),
    column("scene", INDEX, "which scene it shows; a scene that comes back keeps its number"),
    column("version", INDEX, "version of the model in use, 0 before any update"),
    column("processed", FLAG, "whether the model ran on it; if not, the last prediction remains"),
    column("latency_ms", REAL, "from shown to predicted", "ms", null="not processed"),
    column(
        "score_frame",
        REAL,
        "score of this frame by the student's task, 0 to 1",
        null=_NO_TRUTH,
    ),
    column(
        "score_window",
        REAL,
        "score over the 10 s that end with this frame, likewise, 0 to 1",
        null=f"{_NO_TRUTH}, or nothing was predicted yet",
    ),
    column("score_live", REAL, _LIVE, null=_NO_TRUTH),
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
    column("kind", TEXT, "samples, labels, update, plan (new rates only), or resync: the device requests every weight"),
    column("sequence", COUNT, "number of the application's message in this direction"),
    column("bytes", BYTES, "payload", "B"),
    column("wire_bytes", BYTES, "payload with retransmissions", "B"),
    column("queued_s", REAL, "when it was handed to the link", "s"),
    column("start_s", REAL, "when its first bit left", "s", null="the session ended before"),
    column("sent_s", REAL, "when its last bit left", "s", null="the session ended before"),
    column("arrive_s", REAL, "when its last bit arrived", "s", null="the session ended before"),
    column("retransmissions", COUNT, "packets sent again", "packets"),
    column("refused", TEXT, "why its receiver refused it", null="it was accepted"),
    column("samples", COUNT, "frames it carries", "frames", null=_NO_SAMPLES),
    column(
        "rate_fps", REAL, "sampling rate in force when they were chosen", "frames/s", null=f"{_NO_SAMPLES} or no rate"
    ),
    column("gross_bytes", BYTES, "payload with the encoder's headers", "B", null=_NO_SAMPLES),
    column("host_pack_seconds", REAL, "time of the host to encode them", "s", null=_NO_SAMPLES),
    column(
        "unlisted_labels",
        COUNT,
        "labels it carries outside the class list",
        "labels",
        null="it carries no labels",
    ),
)

_NO_PHASE = "nothing was trained"
_NO_PLAN = "the streaming member sets none"

_UPDATES = table_of(
    "updates",
    "One row per training round, and one per response to a device that requested every weight.",
    column("device", TEXT, "for which device"),
    column("app", TEXT, "for which application on it"),
    column("learner_site", TEXT, "where the learner runs: server or device"),
    column("version", INDEX, "version of the model that the update makes", null="the round made no update"),
    column("uploads", COUNT, "uploads that were labelled; more than one if the server is late", "messages"),
    column("samples", COUNT, "samples of these uploads", "frames"),
    column("unlisted_labels", COUNT, "their labels outside the class list, which are not trained on", "labels"),
    column("buffered", COUNT, "samples in the buffer that was trained on", "frames"),
    column("phi", REAL, "how much the teacher's labels change from sample to sample", null="not measured"),
    column("rate_fps", REAL, "sampling rate from here on, within its limits", "frames/s", null=_NO_PLAN),
    column("interval_s", REAL, "time between uploads from here on, within its limits", "s", null=_NO_PLAN),
    column("training_config", TEXT, "training configuration that the scheduler chose of several", null="there was one"),
    column("iterations", COUNT, "optimiser steps", "steps"),
    column("values", COUNT, "weights that the update carries", "values"),
    column("clamped", COUNT, "weights of these outside the range of the encoding", "values"),
    column("loss_first", REAL, "loss of the first step", null=_NO_PHASE),
    column("loss_last", REAL, "loss of the last step", null=_NO_PHASE),
    column("bytes", BYTES, "payload of the update", "B"),
    column("label_start_s", REAL, "when the teacher began to label the samples", "s", null="no teacher labelled them"),
    column("label_end_s", REAL, "when they were labelled", "s", null="no teacher labelled them"),
    column("train_start_s", REAL, "when training began", "s", null=_NO_PHASE),
    column("train_end_s", REAL, "when training ended", "s", null=_NO_PHASE),
    column("isolated_s", REAL, "time of labelling, trials and training without co-running tasks", "s"),
    column("energy_j", REAL, "energy of these on the processor that ran them", "J"),
    column("memory_bytes", BYTES, "peak memory in addition to the running network", "B"),
    column("arrive_s", REAL, "when the device had the whole update", "s", null="it did not arrive in the session"),
    column(
        "accepted",
        FLAG,
        "whether the application accepted it",
        null="there was none, or it did not arrive in the session",
    ),
    column("reason", TEXT, "why there was no update, or why it was refused", null="it was accepted"),
    column("host_train_seconds", REAL, "time of the host to train", "s", null="not measured"),
)

_WAITS = "it waits, or there is nothing to choose"
_NO_GOAL = "the application has none"
_KERNELS = (
    "of its weights, those of several dimensions, which networks of other widths can share: no batch norm, no bias"
)
_TAKES = "memory of its weights, or as a profile measured it"
_VAL = "accuracy that schedulers use: on validation data, or as a profile measured it, 0 to 1"

_SHARES = table_of(
    "shares",
    "One row per application and interval of constant shares: the allocation of the scheduler.",
    *PLACE,
    column("time_s", REAL, "when the interval began", "s"),
    column("window_s", REAL, "its length", "s"),
    column("inference_share", REAL, "share of the device's compute for inference, 0 to 1; 0: it waits"),
    column("training_share", REAL, "share for training on the device, 0 to 1", null="nothing is trained there"),
    column("variant", INDEX, "which of its networks it runs, from the smallest on", null=_WAITS),
    column("network", TEXT, "name of that network", null="it waits, or there are several to choose from"),
    column(
        "accuracy", REAL, "accuracy of that network on test data, else on validation data, 0 to 1", null="not measured"
    ),
    column("val_accuracy", REAL, _VAL, null="not measured"),
    column("latency_ms", REAL, "time of one frame on this share, at the mean load", "ms", null=_WAITS),
    column("fps", REAL, "frame rate of its stream", "frames/s"),
    column("accuracy_goal", REAL, "its accuracy goal, 0 to 1", null=_NO_GOAL),
    column("latency_goal_ms", REAL, "its latency goal per frame", "ms", null=_NO_GOAL),
    column("priority", REAL, "factor on its cost"),
    column("memory_bytes", BYTES, f"{_TAKES}; 0: it waits", "B"),
    column("paged_in_bytes", BYTES, "weights that had to be loaded to run it", "B"),
    column("paged_out_bytes", BYTES, "weights that were dropped", "B"),
    column("paging_s", REAL, "part of the interval in which its network is read from storage, and it waits", "s"),
    column("energy_j", REAL, "energy of the frames that it has time for", "J", null=f"{_WAITS}, or not modelled"),
    column("paging_j", REAL, "energy of loading", "J"),
    column("note", TEXT, "why it waits, or which of its goals is out of reach", null="nothing to say"),
    column("host_schedule_seconds", REAL, "processor time of the host for the allocation", "s"),
)

_VARIANTS = table_of(
    "variants",
    "One row per application of a device and network that it could run there.",
    *PLACE,
    column("variant", INDEX, "number of the network, from the smallest on"),
    column("network", TEXT, "its name"),
    column("accuracy", REAL, "its accuracy on test data, else on validation data, 0 to 1", null="not measured"),
    column("val_accuracy", REAL, _VAL, null="not measured"),
    column("memory_bytes", BYTES, _TAKES, "B"),
    column("kernel_bytes", BYTES, _KERNELS, "B", null="a profile measured it"),
    column("latency_ms", REAL, "time of one frame without co-running tasks", "ms"),
    column("energy_j", REAL, "energy of one frame", "J", null="not modelled"),
    column("macs", COUNT, "multiply-accumulates for one frame", "MAC", null="not counted"),
)

_UNKNOWN = f"it is no procedural street, or {_ALLOCATED_ONLY}"

_DEVICES = table_of(
    "devices",
    "One row per device.",
    column("device", TEXT, "which device"),
    column("hardware", TEXT, "its hardware profile"),
    column("link", TEXT, "its link"),
    column("stream_seed", COUNT, "seed of the stream of its (first) application"),
    column("static_scene", FLAG, "whether that stream has one scene, before a stationary camera", null=_UNKNOWN),
    column("appearance_drift", FLAG, "whether light and weather of its scenes change", null=_UNKNOWN),
    column("frames", COUNT, "frames of its camera", "frames", null=_ALLOCATED_ONLY),
    column("processed", COUNT, "frames its model ran on", "frames", null=_ALLOCATED_ONLY),
    column("busy_s", REAL, "virtual time spent computing", "s", null=_ALLOCATED_ONLY),
    column("energy_j", REAL, "energy of the device", "J", null=_ALLOCATED_ONLY),
    *_energy_columns(_ALLOCATED_ONLY),
    column("memory_bytes", BYTES, "memory that its applications share", "B"),
    column("peak_memory_bytes", BYTES, "peak memory of inference and training", "B", null=_ALLOCATED_ONLY),
    column(
        "working_memory_bytes",
        BYTES,
        "memory of the students of all its applications, as they were built, at once: activations, and the "
        "weights twice, as one copy runs while the other is patched",
        "B",
    ),
    column("uplink_bytes", BYTES, "sent, with retransmissions", "B", null=_ALLOCATED_ONLY),
    column("downlink_bytes", BYTES, "received, with retransmissions", "B", null=_ALLOCATED_ONLY),
    column(
        "score_live",
        REAL,
        "mean over its frames of frames.score_live, 0 to 1",
        null=f"{_NO_TRUTH} or {_ALLOCATED_ONLY}",
    ),
    column(
        "score", REAL, "mean over its frames of the windowed score, 0 to 1", null=f"{_NO_TRUTH} or {_ALLOCATED_ONLY}"
    ),
)

_SNAPSHOTS = table_of(
    "snapshots",
    "Frames of a few moments with truth and prediction, drawn in one colour per class.",
    column("device", TEXT, "which device"),
    column("time_s", REAL, "when the frame was shown", "s"),
    column("scene", INDEX, "which scene it shows"),
    column("height", INDEX, "height of the frame", "px"),
    column("width", INDEX, "width of the frame", "px"),
    column("image", PNG, "the frame", "PNG"),
    column("truth", PNG, "truth: label map, boxes, or the class's colour", "PNG", null=_NO_TRUTH),
    column("prediction", PNG, "prediction, likewise", "PNG"),
)

TABLES: Mapping[str, pa.Schema] = MappingProxyType(
    {
        "runs": _RUNS,
        "frames": _FRAMES,
        "transfers": _TRANSFERS,
        "updates": _UPDATES,
        "adaptations": ADAPTATIONS,
        "audits": AUDITS,
        "channels": CHANNELS,
        "estimates": ESTIMATES,
        "stages": STAGES,
        "shares": _SHARES,
        "loads": LOADS,
        "predictions": PREDICTIONS,
        "variants": _VARIANTS,
        "devices": _DEVICES,
        "systems": SYSTEMS,
        "classes": CLASSES,
        "motion": MOTION,
        "snapshots": _SNAPSHOTS,
    }
)

VIEWS: Mapping[str, str] = MappingProxyType({"scores": "frames", "class_scores": "classes"})  # view -> its table
IDENTITY = ("system", "workload", "fleet", "seed", "bound")  # columns that a view adds to every row


def host_columns(table: str) -> frozenset[str]:
    """Return the columns that may differ between repeated runs."""
    return frozenset(name for name in TABLES[table].names if name.startswith(HOST))


def version_of(schema: pa.Schema) -> str:
    """Read the schema version of a file; empty if it is no table of a run."""
    return note(schema, "driftlab.schema")


_PREAMBLE = f"""# Tables

A run is a folder. Reports, figures and claims read its tables.

```
runs/<name>-<time>/
    spec.yaml                        the request with every default
    run.json                         versions, host and commit
    tables/<table>/<cell>.parquet    one file per table and cell; a cell counts once its `runs` file is there
    report.html  report.md           drawn from the tables
    log.jsonl
```

```python
import driftlab

run = driftlab.open_run("runs/demo-...")
run.table("frames")  # pyarrow.Table
run.frame("runs")  # pandas.DataFrame
run.sql("select system, avg(score_live) from runs group by 1")  # DuckDB; every table is a view
run.frame("scores")  # frames with the system, workload, fleet and seed of every row; likewise class_scores of classes
run.compare("ams", "no_custom")  # see analysis.md
```

Times are seconds of virtual time from the start of the session, bits are counted in SI (1 kbit = 1 000 bit), and
values that were not measured are null. Scores go from 0 to 1 and follow from the student's task: mIoU in segmentation,
accuracy in classification, F1 at an overlap of one half in detection. Columns that begin with `host_` are
measured on the host; all others depend on the experiment and its seed alone, and `driftlab diff A B` compares them
bit by bit.

Schema version {SCHEMA_VERSION}. Runs of the same major version open: a column that a run lacks is null, a table that it
lacks is empty, and columns of a newer driftlab are left out. Other major versions are refused. A cell of another
version, or with other columns, counts as not finished: `driftlab run --resume DIR` runs it again.
`spec.yaml` holds every parameter of every system: next to the member's name the given ones, under `defaults` the
others. So a run can be read when members have changed.

A search (`driftlab tune`) leaves a folder of the same shape with the tables `trials`, `settings` and `measures`, one
file per trial, and `best.yaml`.

This page is printed by `python -m driftlab.platform.results.tables.schema`.
"""


def page() -> str:
    """Return the text of docs/tables.md."""
    parts = [_PREAMBLE]
    for name, schema in {**TABLES, **SEARCH_TABLES}.items():
        parts.append(f"\n## `{name}`\n\n{note(schema, 'meaning')}\n")
        parts.append("| column | type | unit | meaning | null when |\n|---|---|---|---|---|")
        for field in schema:
            notes = [note(field, key) for key in ("unit", "meaning", "null")]
            cells = (f"`{field.name}`", str(field.type), *notes)
            parts.append("| " + " | ".join(cell or " " for cell in cells) + " |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
