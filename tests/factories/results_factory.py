"""Made-up run folders: small, complete, and the same every time."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow
import yaml
from PIL import Image
from spec_factory import stored

from driftlab.datasets.sheet import PALETTE
from driftlab.platform.results.tables.recorder import Recorder, files_of, read_file, reason_to_repeat

SLOTS = {
    "no_custom": ("local", "frozen", "no_adaptation"),
    "one_time": ("one_time", "distill", None),
    "best_static": ("local", "distill", "best_static"),
    "oracle": ("foresight", "distill", "oracle"),
    "ams": ("ams", "distill", None),
}
USUAL = ("no_custom", "one_time", "best_static", "oracle")
LEVEL = {"no_custom": 0.42, "one_time": 0.68, "best_static": 0.6, "oracle": 0.8, "ams": 0.72}
DEVICES = ("cam-0", "cam-1")
CHANGES_S = (40.0, 80.0)
UPLINK_BYTES = {"one_time": 400_000, "ams": 200_000}  # of each device
INFO = {
    "started": "2026-01-02T03:04:05Z",
    "command": ["driftlab", "run", "demo", "--seed", "0,1,2", "--set", "student.network=tiny wide"],
    "git_commit": "0123abcdef",
    "git_changed": False,
    "packages": {"driftlab": "0.1.0", "torch": "2.13.0", "pyarrow": "26.0.1", "torchvision": None},
    "machine": "x86_64",
    "cores": 2,
}


def make_run(
    folder,
    *,
    systems=USUAL,
    workloads=("streets/interview", "streets/driving_la"),
    seeds=(0, 1, 2),
    failed=(),
    duration_s=120.0,
    fps=2.0,
    snapshots=True,
):
    """Write a run folder; `failed` names (system, workload, seed) cells that ended with an error."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "name": "demo",
        "summary": "Two streets, specialised once.",
        "systems": [name for name in systems if SLOTS[name][2] in (None, "no_adaptation")] or ["no_custom"],
        "workloads": [{"name": name, "duration_s": duration_s, "fps": fps} for name in workloads or ["w"]],
        "fleets": [{"name": "two-phones", "devices": [{"hardware": "phone-hi", "link": "lte", "count": len(DEVICES)}]}],
        "seeds": list(seeds),
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(stored(spec, systems), sort_keys=False))
    (folder / "run.json").write_text(json.dumps(INFO))
    recorder = Recorder(str(folder))
    for system, workload, seed in itertools.product(systems, workloads, seeds):
        cell = f"{system}/{workload}/two-phones/seed-{seed}"
        if (system, workload, seed) in failed:
            recorder.write(cell, {"runs": [identity(system, workload, seed) | failure()]})
        else:
            recorder.write(cell, rows(system, workload, seed, duration_s, fps, snapshots))
    return folder


def identity(system, workload, seed):
    streaming, adaptation, bound = SLOTS[system]
    return {
        "experiment": "demo",
        "system": system,
        "streaming": streaming,
        "adaptation": adaptation,
        "scaling": "fixed",
        "scheduling": "uniform",
        "workload": workload,
        "fleet": "two-phones",
        "devices": len(DEVICES),
        "seed": seed,
        "bound": bound,
    }


def failure():
    return {"status": "failed", "error": "Update exceeds the link: 2.4 MB for a window of 1.0 MB (device=cam-1)"}


def rows(system, workload, seed, duration_s, fps, snapshots):
    """Make the rows of one cell: a score that steps at scene changes when the system specialises."""
    rng = np.random.default_rng([seed, list(SLOTS).index(system), len(workload)])
    times = np.arange(int(duration_s * fps)) / fps
    out = {"frames": [], "transfers": [], "updates": [], "devices": [], "snapshots": []}
    for k, device in enumerate(DEVICES):
        frames = frame_columns(system, workload, times, fps, rng, (0.02 * k, 0.03 * seed))
        out["frames"].append({"device": device, "app": "segment"} | frames)
        for number, at_s in enumerate(visits_s := visits_of(system, duration_s)):
            out["transfers"] += transfers_of(system, device, number, len(visits_s), at_s)
            out["updates"].append(update(device, rng, at_s))
        sent = UPLINK_BYTES.get(system, 0)
        out["devices"].append(device_row(device, k, seed, frames["score_window"], sent))
    if snapshots:
        out["snapshots"] = [picture(t, rng, LEVEL[system]) for t in (5.0, 50.0, 100.0)]
    out["runs"] = [identity(system, workload, seed) | sums_of(out, SLOTS[system][1], duration_s)]
    return out


def visits_of(system, duration_s):
    """List the times at which a device of a system is trained."""
    return {"one_time": (10.0,), "ams": np.arange(10.0, duration_s, 10.0)}.get(system, ())


def level_of(system, scene, times, start_s):
    level = np.where((times >= start_s) & (SLOTS[system][1] == "distill"), LEVEL[system], LEVEL["no_custom"])
    return np.where(scene == 1, LEVEL["no_custom"] - 0.08, level) if system == "one_time" else level


def frame_columns(system, workload, times, fps, rng, offsets):
    static = "driving" not in workload
    scene = np.zeros(len(times), int) if static else np.searchsorted(CHANGES_S, times, side="right") % 2
    start_s = 20.0 if system == "one_time" else 0.0
    noisy = level_of(system, scene, times, start_s) + rng.normal(0, 0.05, len(times))
    frame = np.clip(noisy - offsets[0] + offsets[1], 0, 1)
    window = np.array([frame[max(0, i - int(10 * fps) + 1) : i + 1].mean() for i in range(len(times))])
    return {
        "frame": np.arange(len(times)),
        "time_s": times,
        "scene": scene,
        "version": (times >= start_s).astype(int) if system == "one_time" else 0,
        "processed": True,
        "latency_ms": rng.normal(30, 1, len(times)),
        "score_frame": frame,
        "score_window": window,
        "score_live": window,
        "pixel_accuracy": np.clip(frame + 0.2, 0, 1),
    }


def transfers_of(system, device, number, count, at_s):
    up = message(device, "up", "samples", number, UPLINK_BYTES[system] // count, at_s)
    down = message(device, "down", "update", number, 80_000 // count, at_s + 8.0)
    return [up | {"samples": 20, "rate_fps": 1.0}, down]


def device_row(device, k, seed, scores, sent):
    return {
        "device": device,
        "hardware": "phone-hi",
        "link": "lte",
        "stream_seed": seed * 10 + k,
        "frames": len(scores),
        "processed": len(scores),
        "busy_s": 3.0,
        "energy_j": 40.0 + k,
        "memory_bytes": 6_000_000_000,
        "working_memory_bytes": 1_000_000,
        "uplink_bytes": sent,
        "downlink_bytes": sent // 5,
        **dict.fromkeys(("score_live", "score"), scores.mean()),
    }


def sums_of(tables, adaptation, duration_s):
    """Make the part of a row of `runs` that sums its other tables up."""
    scores = np.concatenate([chunk["score_window"] for chunk in tables["frames"]])
    up, down = (sum(row[f"{way}link_bytes"] for row in tables["devices"]) for way in ("up", "down"))
    return {
        "status": "done",
        "duration_s": duration_s,
        "frames": len(scores),
        **dict.fromkeys(("score_live", "score", "score_frame", "score_global"), scores.mean()),
        "grace_s": 0.5,
        "uplink_bytes": up,
        "downlink_bytes": down,
        "uplink_kbps": up * 8 / 1000 / duration_s / len(DEVICES),
        "downlink_kbps": down * 8 / 1000 / duration_s / len(DEVICES),
        "energy_j": 81.0,
        "updates": len(tables["updates"]),
        "student": "tiny",
        "teacher": "oracle" if adaptation == "distill" else None,
        "weights_digest": "abc",
        "parameters": 34_000,
        "macs": 12_000_000,
        "host_seconds": 1.5,
        "host_peak_memory_bytes": 300_000_000,
    }


def message(device, direction, kind, sequence, size, at_s):
    return {
        "device": device,
        "app": "segment",
        "direction": direction,
        "kind": kind,
        "sequence": sequence,
        "bytes": size,
        "wire_bytes": size + 1000,
        "queued_s": at_s,
        "start_s": at_s,
        "sent_s": at_s + 1.0,
        "arrive_s": at_s + 1.1,
        "retransmissions": 0,
    }


def update(device, rng, at_s=10.0):
    return {
        "device": device,
        "app": "segment",
        "learner_site": "server",
        "version": 1,
        "uploads": 1,
        "samples": 20,
        "unlisted_labels": 0,
        "buffered": 20,
        "iterations": 60,
        "values": 34_000,
        "clamped": 0,
        "loss_first": 1.0 + rng.random(),
        "loss_last": 0.2,
        "bytes": 80_000,
        "label_start_s": at_s + 1.1,
        "label_end_s": at_s + 3.0,
        "train_start_s": at_s + 3.0,
        "train_end_s": at_s + 8.0,
        "isolated_s": 6.9,
        "energy_j": 1800.0,
        "memory_bytes": 500_000,
        "arrive_s": at_s + 9.1,
        "accepted": True,
        "host_train_seconds": 0.8,
    }


def picture(time_s, rng, accuracy, height=48, width=96):
    """Draw a street: sky, buildings, road, a car that moves; a prediction is the truth with holes."""
    truth = np.full((height, width), 4, np.uint8)
    truth[height // 4 : height * 2 // 3, : width // 3] = 2
    truth[height // 3 : height * 2 // 3, width // 2 : width * 4 // 5] = 3
    truth[height * 2 // 3 :] = 0
    truth[height * 3 // 4 : height * 7 // 8, int(time_s) % 60 : int(time_s) % 60 + 22] = 6
    truth[0, :4] = 255
    image = np.array([(90, 90, 95), (0, 0, 0), (150, 120, 100), (60, 110, 60), (150, 180, 220)] + [(170, 40, 40)] * 251)
    holes = rng.random((height // 4, width // 4)).repeat(4, 0).repeat(4, 1) > accuracy
    return {
        "device": DEVICES[0],
        "time_s": time_s,
        "scene": 0,
        "height": height,
        "width": width,
        "image": png(np.clip(image[truth] + rng.normal(0, 12, (height, width, 3)), 0, 255).astype(np.uint8)),
        "truth": png(PALETTE[truth]),
        "prediction": png(PALETTE[np.where(holes | (truth == 255), np.uint8(2), truth)]),
    }


def png(pixels):
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


def finished_cells(directory: str) -> set[str]:
    """Return the cells of a run that resume does not repeat."""
    tables = Path(directory) / "tables"
    cells = []
    for file in files_of(tables, "runs"):
        with contextlib.suppress(OSError, pyarrow.ArrowException):  # a damaged file is no finished cell
            cells += read_file(file, "runs", ("cell",))["cell"].to_pylist()
    return {cell for cell in cells if reason_to_repeat(tables, cell) is None}
