"""Disturb a search on Ray at least ten times: kill its driver, its raylet or a trial, and resume it.

In the end its trials must be those of an undisturbed search in one process. A trial that had a row before a kill must
still have that row with the same duration: it was not run again.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.inflict import child, ended
from benchmarks.faults.on_ray import RUN_S, Say, clean_failure, driven, end_driver, left_running, log_of, mark_of
from driftlab.actors import faults
from driftlab.platform.results.tables.trials import read_trials
from driftlab.platform.tune.document import SpaceDocument, parse
from driftlab.platform.tune.session import begin_search
from driftlab.platform.tune.trial import WarmBackend, outcomes

KILLS, TRIALS, MAX_NEW = 10, 60, 3  # `MAX_NEW` trials end between two kills at most
MOMENT_S = 0.5  # most additional delay of a kill, about half a trial
VICTIMS = ("driver", "trial", "raylet", "interrupt")
TRIAL_ACTOR = ("TrialTrainable", "ResourceTrainable")  # titles between two calls, and during one
SPACE: Mapping[str, Any] = {
    "system": "tent",
    "experiment": {
        "window_s": 1,
        "snapshots": 0,
        "student": {"network": "tiny_classifier", "pretrain_steps": 2},
        "workloads": [{"name": "signs/seasons", "duration_s": 12, "fps": 10, "height": 16, "width": 16}],
    },
    "space": {
        "systems.0.adaptation.learning_rate": {"from": 1e-4, "to": 1e-1, "scale": "log"},
        "systems.0.adaptation.stream_batch": {"from": 4, "to": 20, "integer": True},
        "systems.0.adaptation.bn_momentum": {"from": 0.01, "to": 0.5},
    },
    "seeds": [100],
    "held_out": [200, 201],
    "trials": TRIALS,
}
Row = Mapping[str, Any]


def small(searcher: str, seed: int) -> SpaceDocument:
    """Return a search whose trials take a second; CMA-ES has one objective, the others have two."""
    objectives = {"score": "max", **({} if searcher == "cmaes" else {"energy_j": "min"})}
    return parse({**SPACE, "name": searcher, "searcher": searcher, "seed": seed, "objectives": objectives})


def disturbed_search(searcher: str, folder: Path, dice: random.Random, say: Say) -> list[str]:
    """Kill a search ten times, let it end, and return its differences from an undisturbed one."""
    document = small(searcher, dice.randrange(1000))
    _alone(document, folder / "reference")
    run, space = folder / "disturbed", folder / "space.yaml"
    space.write_text(yaml.safe_dump(document.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    victims = [dice.sample(VICTIMS, len(VICTIMS)) for _ in range(KILLS)]
    due = [victim for some in victims for victim in some][:KILLS]
    wrong: list[str] = []
    while not wrong:
        before, left = _rows(run), len(due)
        words = ["--resume", str(run)] if (run / "spec.yaml").exists() else [str(space), "--out", str(run)]
        with driven(["tune", *words, "--workers", "2"], run) as driver:
            wrong += _kill(driver, run, due, dice, say)
            code = driver.poll()
        wrong += _repeated(before, _rows(run))
        if code == 0:
            break
        output = log_of(run).read_text(encoding="utf-8")
        if left == len(due) and clean_failure(output) is None:
            wrong.append(f"it cannot be resumed (exit code {code}): {output[-1500:]}")
    few = [f"it ended before {len(due)} of {KILLS} kills"] if due and not wrong else []
    return [*wrong, *few, *_different(_rows(folder / "reference"), _rows(run))]


def _kill(driver: subprocess.Popen[bytes], run: Path, due: list[str], dice: random.Random, say: Say) -> Iterator[str]:
    """Inflict the remaining kills until the driver has ended; after the last kill let it end."""
    mark, end = None, "none"
    while due and end == "none" and _await_rows(driver, run, dice):
        mark = mark or mark_of(driver)
        if due[0] != "trial":
            end = due[0]
            yield from end_driver(driver, end, say)
        elif title := faults.kill_one(dice, TRIAL_ACTOR):
            say(f"  trial: SIGKILL {title}")
        else:
            continue  # between two trials
        del due[0]
    if end == "none":
        yield from end_driver(driver, end, say)
    yield from left_running(mark, end)


def _await_rows(driver: subprocess.Popen[bytes], run: Path, dice: random.Random) -> bool:
    """Wait for the next trials to end, and for a moment more; return whether the driver still runs."""
    wanted, deadline = len(_rows(run)) + dice.randint(1, MAX_NEW), time.monotonic() + RUN_S
    while driver.poll() is None and _files(run) < wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(dice.uniform(0, MOMENT_S))
    return driver.poll() is None


def _alone(document: SpaceDocument, folder: Path) -> None:
    """Run the search without Ray in a forked process, so that this process imports no torch."""

    def act() -> None:
        backend = WarmBackend()
        with begin_search(document, folder) as session:
            while (assignment := session.next()) is not None:
                (outcome,) = outcomes(document.experiment, assignment, backend, every_window=False)
                session.ended(assignment, outcome)

    if ended(child(act, log_of(folder)), RUN_S) != 0:
        raise RuntimeError(f"{document.name} does not run alone: {log_of(folder).read_text()[-2000:]}")


def _rows(run: Path) -> dict[tuple[str, int], Row]:
    """Read the trials that have ended, by stage and number."""
    return {(row["stage"], row["trial"]): row for row in read_trials(run).to_pylist()}


def _files(run: Path) -> int:
    return len(list((run / "tables" / "trials").glob("*.parquet")))


def _repeated(before: Mapping[tuple[str, int], Row], after: Mapping[tuple[str, int], Row]) -> Iterator[str]:
    """Name the trials whose rows are missing or have changed."""
    yield from (f"{key} was lost or run again" for key, row in before.items() if after.get(key) != row)


def _different(alone: Mapping[tuple[str, int], Row], disturbed: Mapping[tuple[str, int], Row]) -> Iterator[str]:
    """Name the trials that differ in a column, except those of the host."""
    yield from (f"{key} ran in one of both only" for key in sorted(alone.keys() ^ disturbed.keys()))
    for key in sorted(alone.keys() & disturbed.keys()):
        ours, theirs = alone[key], disturbed[key]
        other = {name for name in ours if not name.startswith("host_") and ours[name] != theirs[name]}
        yield from (f"{key} differs in {name}: {ours[name]} and {theirs[name]}" for name in sorted(other))
