"""The same setting in the field and in the lab: what a device measured beside what virtual time says.

The score in the field must lie in the 95 % interval of the lab's (a bootstrap over blocks of frames), traffic must
agree within 2 %, and the median time from an upload to its update within a stated number of seconds, since the lab
computes it for another machine. Just-In-Time's traffic is shown and not judged: it samples less often once an update
has helped, so that it follows how soon updates come.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.field.processes import TOKEN, ServerProcess
from driftlab.platform.backend.inline import InlineBackend
from driftlab.platform.field.agent import Agent, join
from driftlab.platform.field.request import SessionAsked, experiment_of, read_asked
from driftlab.platform.field.tables import write_run
from driftlab.platform.grid.progress import Progress
from driftlab.platform.grid.run import create_run, execute
from driftlab.platform.results.tables.beside import figures_of
from driftlab.platform.results.tables.read import Run, open_run

SYSTEMS = ("ams", "just_in_time", "remote_tracking", "tent", "ams+nested")
STREAM = {"name": "streets/running", "fps": 4, "height": 32, "width": 48}
STUDENT = {"network": "half", "pretrain_steps": 100}
TRAFFIC, LATE_S = 0.02, 3.0
FOLLOWS_UPDATES = ("just_in_time",)
BLOCK, DRAWS = 8, 2000  # frames, and resamples of blocks


def compared(seed: int, seconds: float) -> tuple[dict[str, object], list[str]]:
    """Play and compute every system; return the figures, and every one that differs by more than it may."""
    broken: list[str] = []
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="driftlab-beside-", ignore_cleanup_errors=True) as place:
        os.environ["DRIFTLAB_CACHE"] = f"{place}/networks"
        server = ServerProcess(Path(place))
        try:
            for system in SYSTEMS:
                workload = {**STREAM, "duration_s": seconds}
                asked = read_asked({"system": system, "workload": workload, "student": STUDENT, "seed": seed})
                field, lab = (
                    _played(server, asked, Path(place) / system),
                    _computed(asked, Path(place) / f"lab-{system}"),
                )
                told[system] = _figures(field, lab)
                broken += [f"{system}: {fault}" for fault in _faults(system, told[system])]
                print(system, told[system], flush=True)
        finally:
            server.kill()
    return {"benchmark": "field-beside", "seed": seed, "seconds": seconds, "systems": told}, broken


def _played(server: ServerProcess, asked: SessionAsked, folder: Path) -> Run:
    agent = Agent(join(server.url, TOKEN, asked))
    with create_run(agent.cell.experiment, folder) as directory:
        agent.begin(directory)
        agent.run()
        write_run(agent, directory)
    return open_run(folder)


def _computed(asked: SessionAsked, folder: Path) -> Run:
    spec = experiment_of(asked).model_copy(update={"clock": "virtual"})
    with create_run(spec, folder) as directory:
        execute(spec, directory, InlineBackend, Progress())
    return open_run(folder)


def _figures(field: Run, lab: Run) -> dict[str, Any]:
    (mine,), (theirs,) = figures_of(field).values(), figures_of(lab).values()
    scores = lab.frame("frames")["score_frame"].dropna().to_numpy()
    blocks = np.array_split(scores, max(1, len(scores) // BLOCK))
    rng = np.random.default_rng(0)
    means = [
        np.concatenate([blocks[i] for i in rng.integers(len(blocks), size=len(blocks))]).mean() for _ in range(DRAWS)
    ]
    names = ("score_frame", "uplink_kbps", "downlink_kbps", "updates", "update_s", "answer_ms")
    told = {name: [_short(mine[name]), _short(theirs[name])] for name in names}
    return told | {"interval": [_short(float(np.percentile(means, q))) for q in (2.5, 97.5)]}


def _faults(system: str, told: dict[str, Any]) -> Iterator[str]:
    low, high = told["interval"]
    if not low <= told["score_frame"][0] <= high:
        yield f"score {told['score_frame'][0]} is not in {low} to {high}"
    for name in ("uplink_kbps", "downlink_kbps"):
        mine, theirs = told[name]
        if system not in FOLLOWS_UPDATES and abs(mine - theirs) > TRAFFIC * max(mine, theirs):
            yield f"{name} {mine}, in the lab {theirs}"
    mine, theirs = told["update_s"]
    if mine is not None and theirs is not None and abs(mine - theirs) > LATE_S:
        yield f"an update takes {mine} s, in the lab {theirs}"


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
