"""Run four applications on one core with one scheduler, and compare their frame rates with the plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from driftlab.platform.field.app_files import AppFile, AppSettings, experiment_of_apps
from driftlab.platform.field.shared_device import SharedDevice
from driftlab.platform.field.tables import write_shared_run
from driftlab.platform.lab.seal import create_run
from driftlab.platform.results.tables.read import open_run

SYSTEM = {"name": "shared", "base": "no_custom", "scheduling": {"name": "nestdnn", "alpha": 0.3}}
GOAL_FRAMES, PRIORITY = 2, 8.0  # latency goal in intervals of the stream; of the third application in the second phase


def run_phases(folder: Path, phase_s: float, fps: float, capacity: float, network: str) -> Path:
    """Run three phases on one core: equal applications, priority for the third, arrival of a fourth."""
    stream = {"name": "signs/depot", "duration_s": 3 * phase_s, "fps": fps, "height": 24, "width": 24}
    goal = {"latency_goal_s": GOAL_FRAMES / fps}
    apps = [AppFile(name=name, **goal) for name in ("first", "second")]
    apps += [AppFile(name="third", **goal, changes=[{"at_s": phase_s, "priority": PRIORITY}])]
    apps += [AppFile(name="fourth", **goal, arrives_s=2 * phase_s)]
    student = {"network": network, "pretrain_steps": 0}
    experiment = experiment_of_apps(apps, AppSettings(SYSTEM, stream, student, window_s=phase_s / 10))
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with create_run(experiment, folder) as directory:
            device = SharedDevice(experiment, apps, capacity)
            device.run()
            write_shared_run(device, directory)
    finally:
        os.sched_setaffinity(0, cores)
    return folder


def rates_of(folder: Path, phase_s: float) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    """Yield planned and processed frames per second by application, for each phase."""
    run = open_run(folder)
    shares, frames = run.frame("shares"), run.frame("frames")
    shares["planned"] = shares["window_s"] * (1000 / shares["latency_ms"]).clip(upper=shares["fps"])
    for start_s in (0.0, phase_s, 2 * phase_s):
        planned, processed = (
            table[table["time_s"].between(start_s, start_s + phase_s, inclusive="left")].groupby("app")[column].sum()
            for table, column in ((shares, "planned"), (frames, "processed"))
        )
        yield (planned / phase_s).to_dict(), (processed[planned.index] / phase_s).to_dict()
