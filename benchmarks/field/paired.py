"""Run the same setting in the field and in the lab, and compare the figures.

The score in the field must lie in the 95 % interval of the lab's (a bootstrap over blocks of frames), traffic must
agree within 2 %, and the median times of predictions and of updates within a stated share. The lab runs the experiment
that the device wrote, so that its machines and its link take as long as those of the field. This matters because
Just-In-Time samples less often after an update has helped, so that its samples depend on the times of updates.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.field.processes import TOKEN, ServerProcess
from driftlab.platform.field.agent import Agent
from driftlab.platform.field.lab import LAB
from driftlab.platform.field.request import SessionRequest, parse_session_request
from driftlab.platform.field.tables import write_run
from driftlab.platform.field.ticket import join
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import load
from driftlab.platform.lab.seal import create_run, execute
from driftlab.platform.results.tables.read import Run, open_run
from driftlab.platform.results.tables.run_pair import figures_of
from driftlab.platform.sim.inline import InlineBackend

SYSTEMS = ("ams", "just_in_time", "remote_tracking", "tent", "ams+nested")
STREAM = {"name": "streets/running", "fps": 4, "height": 32, "width": 48}
STUDENT = {"network": "half", "pretrain_steps": 100}
TRAFFIC, TIMES = 0.02, 0.25  # shares of the larger value
BLOCK, DRAWS = 8, 2000  # frames, and resamples of blocks


def compare_systems(seed: int, seconds: float, systems: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """Run some systems in the field and in the lab; return the figures and the violations."""
    broken: list[str] = []
    comparisons: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="driftlab-paired-", ignore_cleanup_errors=True) as place:
        os.environ["DRIFTLAB_CACHE"] = f"{place}/networks"
        server = ServerProcess(Path(place))
        try:
            for system in systems:
                workload = {**STREAM, "duration_s": seconds}
                request = parse_session_request(
                    {"system": system, "workload": workload, "student": STUDENT, "seed": seed}
                )
                field = _run_field(server, request, Path(place) / system)
                lab = _computed(field.path / LAB, Path(place) / f"lab-{system}")
                comparisons[system] = {**_figures(field, lab), "load": os.getloadavg()[0]}
                faults = [f"{system}: {fault}" for fault in _faults(comparisons[system])]
                print(system, comparisons[system], "; ".join(faults), flush=True)
                broken += faults
        finally:
            server.kill()
    return {"benchmark": "field-paired", "seed": seed, "seconds": seconds, "systems": comparisons}, broken


def _run_field(server: ServerProcess, request: SessionRequest, folder: Path) -> Run:
    agent = Agent(join(server.url, TOKEN, request))
    with create_run(agent.cell.experiment, folder) as directory:
        agent.begin(directory)
        agent.run()
        write_run(agent, directory)
    return open_run(folder)


def _computed(experiment: Path, folder: Path) -> Run:
    spec = load(str(experiment))
    with create_run(spec, folder) as directory:
        execute(spec, directory, InlineBackend, Progress())
    return open_run(folder)


def _figures(field: Run, lab: Run) -> dict[str, Any]:
    (ours,), (theirs,) = figures_of(field).values(), figures_of(lab).values()
    scores = lab.frame("frames")["score_frame"].dropna().to_numpy()
    blocks = np.array_split(scores, max(1, len(scores) // BLOCK))
    rng = np.random.default_rng(0)
    means = [
        np.concatenate([blocks[i] for i in rng.integers(len(blocks), size=len(blocks))]).mean() for _ in range(DRAWS)
    ]
    names = ("score_frame", "uplink_kbps", "downlink_kbps", "updates", "update_s", "latency_ms")
    figures = {name: [_short(ours[name]), _short(theirs[name])] for name in names}
    return figures | {"interval": [_short(float(np.percentile(means, q))) for q in (2.5, 97.5)]}


def _faults(figures: dict[str, Any]) -> Iterator[str]:
    low, high = figures["interval"]
    if not low <= figures["score_frame"][0] <= high:
        yield f"score {figures['score_frame'][0]} is not in {low} to {high}"
    tolerances = {"uplink_kbps": TRAFFIC, "downlink_kbps": TRAFFIC, "update_s": TIMES, "latency_ms": TIMES}
    for name, most in tolerances.items():
        ours, theirs = figures[name]
        if ours is not None and theirs is not None and abs(ours - theirs) > most * max(ours, theirs):
            yield f"{name} {ours}, in the lab {theirs}"


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
