"""Whole runs on Ray with killed actors of every kind have the tables of one process."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Any

import pytest
from documents_factory import LEARNING, NESTED, SHARING, TINY

from driftlab.actors import faults
from driftlab.actors.backend import RayBackend
from driftlab.platform.lab.parts import PART_DEVICES
from driftlab.platform.lab.seal import resume, run
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.recorder import files_of

LIMIT_S = 200  # a run takes seconds, and a kill comes every second
DOCUMENT: dict[str, Any] = {**TINY, "workloads": [{**TINY["workloads"][0], "duration_s": 12}], "seeds": [0, 1]}
CHOSEN = {"name": "chosen", "base": "no_custom", "scaling": NESTED}  # switches networks at load readings
UNTRAINED = {"exits": 2, "stage_epochs": 0, "operator_epochs": 0, "path_epochs": 0}
EAGER = {"tolerance": 0.0, "accuracy_loss": 1.0, "patience": 1, "dwell_s": 0.0}
FOLLOWING = {  # switches paths with the load while they are trained
    "name": "ams+adascale",
    "streaming": {"name": "ams", "interval_s": 2},
    "adaptation": {"name": "distill", "iterations": 3},
    "scaling": {"name": "adascale", "forecaster": "ar", **UNTRAINED, **EAGER},
}
SHARED = {**SHARING, "systems": [*SHARING["systems"], CHOSEN, FOLLOWING]}
DOCUMENTS = {"alone": DOCUMENT, "learning": LEARNING, "shared": SHARED}
PARTED = {  # a fleet of two parts
    **TINY,
    "systems": ["no_custom"],
    "fleets": [{"name": "large", "devices": [{"count": PART_DEVICES + 20}]}],
    "workloads": [{**TINY["workloads"][0], "duration_s": 1}],
}


WHOLE_KILLS = 2


def under_load(document: dict[str, Any]) -> dict[str, Any]:
    """Add the load of other programs to every device."""
    fleets = [
        {**fleet, "devices": [{**device, "load": "random"} for device in fleet["devices"]]}
        for fleet in document.get("fleets", [{"devices": [{}]}])
    ]
    return {**document, "fleets": fleets}


@pytest.fixture(scope="module")
def documents():
    return {name: under_load(document) for name, document in DOCUMENTS.items()}


@pytest.fixture(scope="module")
def references(documents, tmp_path_factory):
    """The folders of finished runs in one process."""
    folder = tmp_path_factory.mktemp("references")
    every = {**documents, "parted": PARTED}
    return {name: run(document, out=folder / name).directory for name, document in every.items()}


def test_killed_actors_of_every_kind_do_not_change_tables(spread, documents, references, tmp_path, monkeypatch):
    """Every device and application has a separate process, which is the hardest case.

    Two cells run at a time: four would start twice as many processes, and their imports take most of the test's time.
    """
    monkeypatch.setattr(RayBackend, "concurrency", 2)
    deadline = time.monotonic() + LIMIT_S
    with faults.kill_repeatedly(len(faults.EVERY_KIND), 1.0, seed=0) as killed:
        for number in itertools.count():
            for name, document in documents.items():
                outcome = run(document, out=tmp_path / f"{name}-{number}", open_backend=lambda: spread)
                assert outcome.failed == ()
                assert differences(references[name], outcome.directory) == []
            if len(killed) == len(faults.EVERY_KIND):
                break
            assert time.monotonic() < deadline, f"{number + 1} rounds, and no more was killed than {killed}"
    assert Counter(map(faults.kind_in, killed)) == dict.fromkeys(faults.EVERY_KIND, 1)


def test_whole_cells_have_the_tables_of_one_process_when_killed_and_resumed(whole, documents, references, tmp_path):
    """A run may be resumed with separate nodes."""
    folder, deadline = tmp_path / "alone-0", time.monotonic() + LIMIT_S
    with faults.kill_repeatedly(WHOLE_KILLS, 0.5, seed=0, labels=("Cell",)) as killed:
        for number in itertools.count():
            for name, document in {**documents, "parted": PARTED}.items():
                outcome = run(document, out=tmp_path / f"{name}-{number}", open_backend=lambda: whole)
                assert outcome.failed == ()
                assert differences(references[name], outcome.directory) == []
            if len(killed) == WHOLE_KILLS:
                break
            assert time.monotonic() < deadline, f"{number + 1} rounds, and no more was killed than {killed}"
    files = files_of(folder / "tables", "runs")  # without the draft that a killed writer leaves
    for file in files[: len(files) // 2]:
        file.unlink()
    whole.pool.placement = "nodes"
    outcome = resume(folder, open_backend=lambda: whole)
    assert (outcome.done, outcome.failed) == (len(files) // 2, ())
    assert differences(references["alone"], folder) == []
