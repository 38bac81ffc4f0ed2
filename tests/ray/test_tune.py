"""Searches on Ray: equal trials to one process, also if killed or on clusters; loggers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import ray
import tuning_factory as factory
import yaml
from cluster_fakes import STORE_BYTES, alive, end_added, wait_until

from driftlab.actors.cluster import ClusterConfig, unwatched
from driftlab.cli import app
from driftlab.platform.lab.tuned import read_tuned
from driftlab.platform.results.relations.searches import open_search
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.tune.session import begin_search, continue_search
from driftlab.platform.tune.trial import WarmBackend, outcomes
from driftlab.tune_spaces import sharing
from driftlab.tune_spaces.catalogue import load_equal
from driftlab.tune_spaces.loggers import loggers_of
from driftlab.tune_spaces.run import SearchRunner

pytestmark = pytest.mark.ray
LIMIT_S = 200
ROOT = Path(__file__).resolve().parents[2]


def searched(folder, document, workers, callbacks=(), address=None):
    with SearchRunner(ClusterConfig(workers=workers, address=address)) as on_ray:
        return searched_on(on_ray, folder, document, callbacks)


def searched_on(on_ray, folder, document, callbacks=()):
    with begin_search(document, folder) as session:
        on_ray.run(session, lambda assignment, outcome: None, callbacks)
        assert session.over
    return open_run(session.directory)


def trials_without_host(run):
    """Return the trials' rows without the columns about the host."""
    trials = run.frame("trials")
    return trials[[name for name in trials if not name.startswith("host_")]]


@pytest.fixture(scope="module")
def document():
    return factory.document(searcher="evolution", trials=12)


def finish_here(session):
    """Run the remaining trials of a session in this process, sequentially."""
    backend = WarmBackend()
    while (assignment := session.next()) is not None:
        (outcome,) = outcomes(session.document.experiment, assignment, backend, every_window=False)
        session.ended(assignment, outcome)
    assert session.over


@pytest.fixture(scope="module")
def alone(document, tmp_path_factory):
    """The search in one process without Ray."""
    with begin_search(document, tmp_path_factory.mktemp("alone") / "run") as session:
        finish_here(session)
    return open_run(session.directory)


def test_a_broken_trial_has_a_row_and_the_others_continue(tmp_path, one_worker):
    member = tmp_path / "breaking.py"
    member.write_text(BREAKING)
    tent = {"name": "breaks", "base": "tent", "adaptation": {"name": f"{member}:Breaking", "stream_batch": 5}}
    space = {"systems.0.adaptation.how": ["well", "exits", "dies"]}
    changes = {"system": "breaks", "space": space, "searcher": "grid", "trials": 4, "held_out": []}
    document = factory.document(experiment={**factory.SPACE["experiment"], "systems": [tent]}, **changes)
    trials = searched_on(one_worker, tmp_path / "run", document).frame("trials").set_index("trial")
    assert trials["status"].tolist() == ["done", "done", "failed", "failed"]
    assert "no luck" in trials["reason"][2]
    assert "its process ended 3 times" in trials["reason"][3]


BREAKING = """
import os, sys
from dataclasses import dataclass
from typing import Literal

from driftlab.platform.adaptation.tent import Tent


@dataclass(frozen=True)
class Breaking(Tent):
    how: Literal["well", "exits", "dies"] = "well"

    def adapt(self, model, state, batch, phase):
        if self.how == "exits":
            sys.exit("no luck")
        if self.how == "dies":
            os._exit(1)
        return super().adapt(model, state, batch, phase)
"""


def test_trials_with_low_scores_are_stopped_early(tmp_path, one_worker):
    experiment = {
        **factory.SPACE["experiment"],
        "workloads": [{**factory.SPACE["experiment"]["workloads"][0], "duration_s": 12}],
    }
    document = factory.document(experiment=experiment, early_stopping=True, trials=12, objectives={"score": "max"})
    trials = searched_on(one_worker, tmp_path / "run", document).frame("trials")
    stopped = trials[trials["status"] == "stopped"]
    assert len(stopped) >= 3
    assert (stopped["streamed_s"] < 12).all()
    assert trials[trials["status"] == "done"]["streamed_s"].eq(12 * trials["cells"]).sum() >= 2
    assert open_search(tmp_path / "run").best.number in trials[trials["status"] == "done"]["trial"].tolist()


def test_two_workers_run_the_same_trials_as_one_process_and_log_them(alone, document, tmp_path, no_ray):
    folder = tmp_path / "run"
    both = searched(folder, document, 2, loggers_of(["tensorboard"], folder))
    assert trials_without_host(both).equals(trials_without_host(alone))
    assert both.frame("measures").equals(alone.frame("measures"))
    workers = both.frame("trials")["host_worker"]
    assert 1 <= workers.nunique() <= 2  # reused: a process for each worker, not for each trial
    assert list(folder.rglob("events.out.tfevents*"))
    assert not [child for child in psutil.Process().children(recursive=True) if child.name() == "raylet"]


@pytest.fixture
def two_caches(one_ray, tmp_path_factory):
    """A cluster of two simulated computers without trials, and the empty folders of their built networks."""
    cluster, caches = one_ray.use("two caches", lambda: start_two(tmp_path_factory), lambda both: both[0].shutdown())
    for cache in caches:
        shutil.rmtree(cache)
    yield cluster, caches
    ray.shutdown()
    wait_until(lambda: not trials_here())


def start_two(tmp_path_factory):
    from ray.cluster_utils import Cluster

    caches = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    with unwatched():
        cluster = Cluster()
        for cache in caches:
            own = {"include_dashboard": False} if cache is caches[0] else {}
            variables = {"DRIFTLAB_CACHE": str(cache)}
            cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, env_vars=variables, **own)
    return cluster, caches


HELD = """
import os
import time
from dataclasses import dataclass
from pathlib import Path

from driftlab.platform.adaptation.tent import Tent


@dataclass(frozen=True)
class Held(Tent):
    while_there: str = ""

    def adapt(self, model, state, batch, phase):
        held = Path(self.while_there)
        if held.exists():
            held.with_name(f"began-{os.getpid()}").touch()
        while held.exists():
            time.sleep(0.01)
        return super().adapt(model, state, batch, phase)
"""


@pytest.fixture
def held(tmp_path):
    """A file; while it is there, the trials of `held_document` wait, so that each process gets one."""
    file = tmp_path / "held" / "held"
    file.parent.mkdir()
    file.touch()
    return file


def held_document(held):
    member = held.with_suffix(".py")
    member.write_text(HELD)
    adaptation = {"name": f"{member}:Held", "stream_batch": 5, "while_there": str(held)}
    system = {"name": "held", "base": "tent", "adaptation": adaptation}
    experiment = {**factory.SPACE["experiment"], "systems": [system]}
    return factory.document(experiment=experiment, system="held", trials=6, held_out=[])


def let_go(held, count, then=lambda: None):
    """Once so many trials wait, each on its computer, call `then`, and let them go on."""
    try:
        wait_until(lambda: ray.is_initialized() and len(alive()) == len(list(held.parent.glob("began-*"))) == count)
        then()
    finally:
        held.unlink()


def meanwhile(work, *search, **options):
    """Search while another thread works."""
    with ThreadPoolExecutor(1) as others:
        working = others.submit(work)
        found = searched(*search, **options)
        working.result()
    return found


def in_one_process(folder, document):
    with begin_search(document, folder) as session:
        finish_here(session)
    return trials_without_host(open_run(folder))


@pytest.mark.slow
def test_a_network_is_trained_on_one_computer_of_a_cluster_and_sent_to_others(held, tmp_path, two_caches):
    cluster, caches = two_caches
    document = held_document(held)
    found = meanwhile(lambda: let_go(held, 2), tmp_path / "run", document, 2, address=cluster.address)
    assert trials_without_host(found).equals(in_one_process(tmp_path / "alone", document))
    built = [sorted(file.stem for file in cache.glob("*.lock")) for cache in caches]  # a network that is built locks it
    assert sorted(map(len, built)) == [0, 1]
    kept = [networks_in(cache) for cache in caches]
    assert kept[0] == kept[1]
    assert [*kept[0]] == [f"{name}.safetensors" for names in built for name in names]


@pytest.mark.slow
def test_a_network_whose_trainer_is_killed_is_trained_by_another_trial(tmp_path, two_caches, monkeypatch):
    cluster, caches = two_caches
    monkeypatch.setattr(sharing, "CLAIM_S", 3.0)
    student = {**factory.SPACE["experiment"]["student"], "pretrain_steps": 400}
    document = factory.document(experiment={**factory.SPACE["experiment"], "student": student}, trials=4, held_out=[])
    found = meanwhile(lambda: kill_trainer(caches), tmp_path / "run", document, 2, address=cluster.address)
    assert trials_without_host(found).equals(in_one_process(tmp_path / "alone", document))
    assert len({name for cache in caches for name in networks_in(cache)}) == 1


def networks_in(cache):
    return {file.name: file.read_bytes() for file in cache.glob("*.safetensors")}


def kill_trainer(caches):
    """Kill the trial that trains a network, which no other one trains at the same time."""
    wait_until(lambda: any([*cache.glob("*.training")] for cache in caches))
    (cache,) = (cache for cache in caches if [*cache.glob("*.training")])
    (trainer,) = (one for one in trials_here() if one.environ()["DRIFTLAB_CACHE"] == str(cache))
    trainer.kill()


def trials_here():
    """List the processes of trials on the computers that this process has started."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if matches(one, "ray::"):
                found.append(one)
    return found


@pytest.mark.slow
def test_a_search_on_a_growing_cluster_that_loses_a_computer_has_the_trials_of_one_process(growing, held, tmp_path):
    """The autoscaler adds a computer for the trial above the processors of the first one.

    `test_cluster.py` has a cluster of three.
    """
    document = held_document(held)

    def lose_one():
        let_go(held, 2, lambda: end_added(growing))

    found = meanwhile(lose_one, tmp_path / "run", document, 2, address=growing.address)
    assert trials_without_host(found).equals(in_one_process(tmp_path / "alone", document))


def started(folder, spec, *more):
    command = [sys.executable, "-m", "driftlab", "tune", str(spec), "--out", str(folder), "--workers", "1", *more]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for_trials(driver, folder, count):
    deadline = time.monotonic() + LIMIT_S
    while len(list((folder / "tables/trials").glob("*.parquet"))) < count:
        assert driver.poll() is None, driver.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["driver", "raylet", "trial"])
def test_a_search_whose_processes_are_killed_has_the_same_trials(victim, alone, document, tmp_path, no_ray):
    spec, folder = tmp_path / "space.yaml", tmp_path / "run"
    spec.write_text(yaml.safe_dump(factory.raw(searcher="evolution", trials=12)))
    driver = started(folder, spec)
    wait_for_trials(driver, folder, 2)
    if victim == "driver":
        driver.kill()
    else:
        name = "raylet" if victim == "raylet" else "ray::"
        os.kill(child_of(driver, name).pid, signal.SIGKILL)
    printed = driver.communicate(timeout=LIMIT_S)[1]
    assert driver.returncode == {"driver": -9, "raylet": 1, "trial": 0}[victim], printed
    if victim == "raylet":
        assert f"driftlab tune --resume {folder}" in printed
    with continue_search(folder) as session:
        finish_here(session)
    assert trials_without_host(open_run(folder)).equals(trials_without_host(alone))


@pytest.mark.slow
def test_equal_searches_that_are_killed_resume_with_the_same_trials(tmp_path, no_ray, monkeypatch, capsys):
    spec, folder = tmp_path / "space.yaml", tmp_path / "run"
    spec.write_text(yaml.safe_dump(factory.raw(trials=2)))
    searches = load_equal(["onda", "tent"], str(spec))
    driver = started(folder, spec, "--equal", "onda,tent")
    wait_for_trials(driver, folder / "onda", 1)
    driver.kill()
    driver.communicate(timeout=LIMIT_S)
    monkeypatch.setattr(sys, "argv", ["driftlab", "tune", "--resume", str(folder), "--workers", "1"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "onda    2 " in printed and "tent    2 " in printed
    for name, document in searches.items():
        with begin_search(document, tmp_path / name) as session:
            finish_here(session)
        assert trials_without_host(open_run(folder / name)).equals(trials_without_host(open_run(tmp_path / name)))
        assert read_tuned(folder / "tuned" / f"{name}.yaml")["budget"]["trials"] == 2


def child_of(driver, name):
    """Find a process of the search; between two trials there may be none for a moment."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and driver.poll() is None:
        for one in psutil.Process(driver.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if matches(one, name):
                    return one
    raise AssertionError(f"the search ended without a process called {name}")


def matches(process, name):
    return process.name() == name or (name == "ray::" and "Trainable" in " ".join(process.cmdline()))
