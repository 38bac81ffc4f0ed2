"""Made-up runs through domains, in phases and online; every number can be computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from spec_factory import stored
from tables_factory import Made, run_row

from driftlab.platform.results.tables.recorder import Recorder
from driftlab.platform.results.tables.schema import TABLES

PHASES = {"name": "on_device", "trigger": "domain"}
SMALL: dict[str, Any] = {"name": "independent", "keep_ratios": [0.5]}
CUT: dict[str, Any] = {"name": "surrogate", "keep_ratios": [0.5], "filters": "relevant", "absorb_alpha": 1.0}
TRAINS: dict[str, Any] = {"select": "cumulative", "objective": "information"}
SEEDS = (0, 1, 2)
WORKLOAD = "domains:set:digits"
# Accuracy after adapting, seconds and joules of a phase, bytes, milliseconds and joules of a frame.
PAID: dict[str, tuple[float, float, float, int, float, float]] = {
    "no_custom": (0.60, 0, 0, 4000, 4.0, 0.04),
    "onda": (0.70, 1.0, 0.1, 5000, 4.0, 0.04),
    "cua": (0.80, 40.0, 4.0, 8000, 4.0, 0.04),
    "no_custom-small": (0.50, 0, 0, 1000, 2.0, 0.01),
    "onda-small": (0.55, 0.5, 0.05, 1200, 2.0, 0.01),
    "tent-small": (0.55, 1.0, 0.10, 1500, 2.0, 0.01),
    "cua-small": (0.65, 20.0, 2.0, 4000, 2.0, 0.01),
    "elasticdnn": (0.75, 5.0, 0.5, 2000, 2.0, 0.01),
    "elasticdnn+tent": (0.72, 4.0, 0.4, 2000, 2.0, 0.01),
    "elasticdnn+cua": (0.76, 9.0, 0.9, 2000, 2.0, 0.01),
    "cut-at-random": (0.70, 5.0, 0.5, 2000, 2.0, 0.01),
    "most-fifth": (0.74, 4.0, 0.4, 2000, 2.0, 0.01),
    "least-fifth": (0.72, 4.0, 0.4, 2000, 2.0, 0.01),
    "random-fifth": (0.70, 4.0, 0.4, 2000, 2.0, 0.01),
    "nothing-fed-back": (0.65, 5.0, 0.5, 2000, 2.0, 0.01),
}


def system_of(name: str) -> dict[str, Any]:
    """Return the parts of a system, as a spec has them."""
    kind = name.removesuffix("-small")
    slots: dict[str, Any] = {"name": name, "base": "no_custom"}
    if kind != "no_custom":
        slots["streaming"] = PHASES
    if kind in ("onda", "tent", "cua"):
        slots["adaptation"] = kind
    if kind != name:
        slots["scaling"] = SMALL
    if kind in ("no_custom", "onda", "tent", "cua"):
        return slots
    selects = {"most-fifth": "topfrac", "least-fifth": "inverse", "random-fifth": "random"}
    changes = {"cut-at-random": {"filters": "random"}, "nothing-fed-back": {"absorb_alpha": 0.0, "bn_alpha": 0.0}}
    settings = TRAINS | ({"select": selects[name], "share": 0.2} if name in selects else {})
    settings |= {"objective": "entropy"} if name == "elasticdnn+tent" else {}
    adaptation = "elasticdnn_cua" if name == "elasticdnn+cua" else "elasticdnn"
    return {
        **slots,
        "scaling": {**CUT, **changes.get(name, {})},
        "adaptation": {"name": adaptation, **settings},
    }


SCENES = (0, 1, 2, 0)  # a domain comes back


def in_phases(name: str, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Make a cell: domains of six frames, of which the third and the fourth are to adapt on."""
    after, phase_s, phase_j, memory, latency, frame_j = PAID[name]
    bound = "no_adaptation" if name.startswith("no_custom") else None
    run = run_row(name, seed, "digits", "board", bound=bound, student="tiny_classifier", duration_s=24.0, frames=24)
    run |= {"inference_j": 24 * frame_j, "training_j": 4 * phase_j, "score": after, "score_frame": after}
    place = {"cell": run["cell"], "device": "d"}
    frames = []
    for number in range(24):
        stretch, at = divmod(number, 6)
        level = after + 0.01 * seed + 0.02 * (stretch - 1.5) * (1 + (name == "nothing-fed-back"))
        level -= 0.1 if at < 2 else 0.05 * (stretch == 3)
        row = {**place, "app": "a", "frame": number, "time_s": float(number), "scene": SCENES[stretch]}
        score = None if at in (2, 3) else level
        frames.append({**row, "processed": True, "latency_ms": latency, "score_frame": score, "score_window": level})
    phase = {
        **place,
        "app": "a",
        "learner_site": "device",
        "isolated_s": phase_s,
        "energy_j": phase_j,
        "memory_bytes": 0,
    }
    updates = [] if bound else [{**phase, "accepted": True} for _ in range(4)]
    return {"runs": [run], "frames": frames, "updates": updates, "devices": [{**place, "peak_memory_bytes": memory}]}


# Accuracy of each job on the stream, and the time that learning from it takes, over that of plain inference.
ON_STREAM: dict[str, tuple[float, float]] = {
    "no_custom": (0.50, 0.0),
    "adabn": (0.60, 0.2),
    "sar": (0.80, 5.0),
    "tent": (0.70, 2.0),
    "sar-of-4": (0.40, 5.0),
}
JOBS, OF = 20, 2  # and frames of a job


def learner_of(name: str) -> dict[str, Any]:
    """Return the parts of a system that trains online, as a spec has them."""
    if name == "sar-of-4":
        return {"name": name, "base": "no_custom", "adaptation": {"name": "sparse", "member": "sar", "budget": 4}}
    return {"name": name, "base": "no_custom", "adaptation": name if name != "no_custom" else "frozen"}


def on_stream(name: str, seed: int, fleet: str) -> dict[str, list[dict[str, Any]]]:
    """Make a cell of two recurring domains; a slow fleet completes as many jobs as fit in the time."""
    accuracy, learn = ON_STREAM[name]
    accuracy += 0.001 * seed * (1 + list(ON_STREAM).index(name))
    plain_s = 0.05 if fleet == "calm" else 0.5  # of a frame, of which there are two a second
    every = 1 if fleet == "calm" else 1 + round(learn)
    bound = "no_adaptation" if name == "no_custom" else None
    right = accuracy if fleet == "calm" else accuracy / every
    run = run_row(name, seed, "again", fleet, bound=bound, student="tiny_classifier", duration_s=20.0)
    run |= {"frames": JOBS * OF, "inference_j": JOBS * OF * 0.01, "score": right, "score_frame": right}
    place = {"cell": run["cell"], "device": "d", "app": "a"}
    frames, batch_rows = [], []
    for number in range(JOBS * OF):
        job = number // OF
        row = {**place, "frame": number, "time_s": number / 2, "scene": (job // 5) % 2}
        row |= {"processed": job % every == 0, "latency_ms": 1000 * plain_s}
        frames.append({**row, "score_frame": accuracy - 0.02 * (job >= 10) * learn, "score_window": accuracy})
    if learn:
        batch_row = {**place, "frames": OF, "isolated_s": learn * OF * plain_s, "energy_j": 0.1, "iterations": 1}
        batch_row |= {"accepted": 0.25}
        batch_rows = [{**batch_row, "start_s": float(job), "end_s": job + 0.5} for job in range(JOBS)]
    devices = [{"cell": run["cell"], "device": "d", "peak_memory_bytes": 1000}]
    return {"runs": [run], "frames": frames, "adaptations": batch_rows, "devices": devices}


SPEC: dict[str, Any] = {
    "name": "elasticdnn-domains",
    "systems": [system_of(name) for name in PAID],
    "workloads": [{"name": WORKLOAD}],
}
STREAM_SPEC: dict[str, Any] = {
    "name": "tta-streams",
    "systems": [learner_of(name) for name in ON_STREAM],
    "workloads": [{"name": WORKLOAD, "alias": "again"}],
}


def phases() -> Made:
    """Make the tables of a run in phases."""
    return _made(SPEC, [in_phases(name, seed) for name in PAID for seed in SEEDS])


def streams() -> Made:
    """Make the tables of a run on the stream, in a fleet with time and in one without."""
    return _made(STREAM_SPEC, stream_cells())


def stream_cells() -> list[dict[str, list[dict[str, Any]]]]:
    return [on_stream(name, seed, fleet) for name in ON_STREAM for seed in SEEDS for fleet in ("calm", "full")]


def make_run(folder: Path) -> Path:
    """Write a run folder that has both."""
    folder.mkdir(parents=True)
    spec = {"name": "both", "systems": [*SPEC["systems"], *(learner_of(name) for name in ("adabn", "sar", "tent"))]}
    spec["systems"].append(learner_of("sar-of-4"))
    spec["workloads"] = [*SPEC["workloads"], *STREAM_SPEC["workloads"]]
    (folder / "spec.yaml").write_text(yaml.safe_dump(stored(spec), sort_keys=False))
    (folder / "run.json").write_text(json.dumps({"started": "2026-01-02T03:04:05Z"}))
    recorder = Recorder(str(folder))
    for cell in [*(in_phases(name, seed) for name in PAID for seed in SEEDS), *stream_cells()]:
        rows = {table: [filled(table, row) for row in own] for table, own in cell.items()}
        recorder.write(cell["runs"][0]["cell"], rows)
    return folder


def _made(spec: dict[str, Any], cells: list[dict[str, list[dict[str, Any]]]]) -> Made:
    names = {table for cell in cells for table in cell}
    return Made(spec, **{table: [row for cell in cells for row in cell.get(table, ())] for table in names})


def filled(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """Give a row something in every column that may not be empty."""
    kinds = {field.name: field.type for field in TABLES[table] if not field.nullable and field.name != "cell"}
    usual = {name: "" if pa.types.is_string(kind) else 0 for name, kind in kinds.items()}
    return {**usual, **{key: value for key, value in row.items() if key != "cell"}}
