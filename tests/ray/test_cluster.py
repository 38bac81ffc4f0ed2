"""Clusters that lose a computer or grow and shrink, and the clean-up after a backend is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import ray
import ray_fakes
import yaml
from cluster_fakes import FAST_DEATH, LIMIT_S, STORE_BYTES, alive, end_added, wait_until
from documents_factory import TINY
from signals_factory import DEFAULT, IGNORED, handler_of

from driftlab.actors import pool
from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import ClusterConfig, unwatched
from driftlab.actors.faults import actor_processes
from driftlab.actors.session import RaySession
from driftlab.cli import app
from driftlab.errors import RequestError, RunError
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.sim.session import NodeId

DEVICE = NodeId("device", "d")


def first_machine(cpus):
    """Start a cluster of one simulated computer, which soon notices that another one is lost."""
    from ray.cluster_utils import Cluster

    with unwatched():
        cluster = Cluster()
        options = {"num_cpus": cpus, "object_store_memory": STORE_BYTES}
        cluster.add_node(**options, include_dashboard=False, _system_config=FAST_DEATH)
    return cluster


@contextlib.contextmanager
def second_machine(one_ray, cpus):
    """Add a second one to the cluster, which stays for the next test with as many processors."""
    from ray.cluster_utils import Cluster

    cluster = one_ray.use(("machines", cpus), lambda: first_machine(cpus), Cluster.shutdown)
    with unwatched():
        cluster.add_node(num_cpus=cpus, object_store_memory=STORE_BYTES)
    yield cluster
    ray.shutdown()
    for left in [*cluster.worker_nodes]:
        cluster.remove_node(left)


@pytest.fixture
def two_machines(one_ray):
    """A cluster of two simulated computers."""
    with second_machine(one_ray, 4) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_cluster_that_loses_a_computer_gives_the_replies_of_one_process(two_machines, inline_replies, inline, capfd):
    """Actors are on both computers, so some payloads that are still needed are lost."""
    backend = RayBackend(ClusterConfig(address=two_machines.address, workers=1), ray_fakes.CLASSES)
    built = build(backend.open("artefacts"))
    assert len({ray.get(slot.ready) for slots in backend.pool._slots.values() for slot in slots}) == 2

    def lose_a_machine():
        (second,) = two_machines.worker_nodes
        two_machines.remove_node(second, allow_graceful=False)
        deadline = time.monotonic() + 60
        while sum(node["Alive"] for node in ray.nodes()) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        return True

    assert ray_fakes.program(backend.open("cell"), 3, 150, until=lose_a_machine) == inline_replies(3, 150)
    assert use(backend.open("later"), built) == use(inline, build(inline))
    backend.close()


@pytest.fixture
def two_full_machines(one_ray):
    """A cluster of two simulated computers with one processor each."""
    with second_machine(one_ray, 1) as cluster:
        yield cluster


LOST = {  # cells are still waiting when a computer is lost
    **TINY,
    "workloads": [{**TINY["workloads"][0], "duration_s": 60}],
    "seeds": [0, 1, 2, 3],
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A finished run of `LOST` in one process."""
    return run(LOST, out=tmp_path_factory.mktemp("alone") / "run").directory


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["cells", "nodes"])
def test_a_computer_that_is_lost_for_good_costs_its_running_cells_only(
    two_full_machines, alone, placement, tmp_path, monkeypatch
):
    """The actors of the other computer take its nodes, as there is no place to restart its own."""
    monkeypatch.setattr(pool, "RESTART_TIMEOUT_S", 2.0)
    again, opened, before, rewind = set[str](), set[str](), set[str](), RaySession._rewind
    monkeypatch.setattr(RaySession, "_rewind", lambda self: (again.add(self._key), rewind(self))[1])
    ended = tmp_path / "cluster/tables/runs"

    def lose_a_machine():
        until_s = time.monotonic() + LIMIT_S
        while not [*ended.glob("*")] and time.monotonic() < until_s:
            time.sleep(0.05)
        before.update(opened)
        (second,) = two_full_machines.worker_nodes
        two_full_machines.remove_node(second, allow_graceful=False)

    backend = RayBackend(ClusterConfig(address=two_full_machines.address, placement=placement))
    start = backend.open
    monkeypatch.setattr(backend, "open", lambda name: (session := start(name), opened.add(session._key))[0])
    losing = threading.Thread(target=lose_a_machine)
    losing.start()
    done = run(LOST, out=tmp_path / "cluster", open_backend=lambda: backend)
    losing.join()
    assert differences(alone, done.directory) == []
    cells = {key for key in again if not key.startswith("artefacts")}
    assert cells
    assert len(cells & before) <= backend.concurrency  # later ones may begin on a lost actor


HELD = """
import os
import time
from dataclasses import dataclass
from pathlib import Path

from driftlab.platform.streaming.ams import Ams


@dataclass(frozen=True)
class Held(Ams):
    while_there: str = ""

    def plan_uplink(self, state, session, now_s, seen):
        held = Path(self.while_there)
        if held.exists():
            held.with_name(f"began-{os.getpid()}").touch()
        while held.exists():
            time.sleep(0.01)
        return super().plan_uplink(state, session, now_s, seen)
"""


def lose_one(cluster, held):
    """Once three cells wait on three computers, end one of those that were added, and let the cells go on."""
    try:
        wait_until(lambda: ray.is_initialized() and len(alive()) == 3 and len(list(held.parent.glob("began-*"))) == 3)
        end_added(cluster)
    finally:
        held.unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims", "few_figures")
def test_a_run_on_a_growing_cluster_that_loses_a_computer_has_the_same_tables(growing, tmp_path, monkeypatch):
    """The autoscaler adds computers for the actors, replaces a lost one, and removes them after the run."""
    held = tmp_path / "held" / "held"
    held.parent.mkdir()
    member = held.with_suffix(".py")
    member.write_text(HELD)
    streaming = {"name": f"{member}:Held", "while_there": str(held), "interval_s": 2}
    system = {"name": "held", "streaming": streaming, "adaptation": {"name": "distill", "iterations": 3}}
    experiment = {**TINY, "systems": [system], "seeds": [0, 1, 2, 3], "compute": {"placement": "cells"}}
    reference = run(experiment, out=tmp_path / "inline").directory
    held.touch()
    file, out = tmp_path / "growing.yaml", tmp_path / "cluster"
    file.write_text(yaml.safe_dump(experiment))
    words = ["run", str(file), "--address", growing.address, "--workers", "3", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["driftlab", *words])
    losing = ThreadPoolExecutor(1).submit(lose_one, growing, held)
    try:
        with pytest.raises(SystemExit) as ended:
            app.main()
    finally:
        held.unlink(missing_ok=True)
    losing.result()
    assert ended.value.code == 0
    assert differences(reference, out) == []
    ray.init(growing.address, log_to_driver=False)
    wait_until(lambda: len(alive()) == 1)


def build(session):
    """Create a large payload on an actor of each kind."""
    nodes = [NodeId(kind, "b") for kind in ("builder", "application", "device", "teacher")]
    for node in nodes:
        session.place(node, "b")
    built = [session.call(node, "big", 1) for node in nodes]
    for job in built:
        session.result(job)
    return built


def use(session, built):
    session.place(DEVICE, "d", *built)
    return session.result(session.call(DEVICE, "work", 1)).facts


PROTECTED = """
import os, secrets, sys
import ray
from driftlab.actors.cluster import unwatched
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
with unwatched():
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
print(ray.get_runtime_context().gcs_address, flush=True)
input()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def protected(one_ray, tmp_path_factory):
    """The address of another process's cluster with a token, and an environment without it."""
    one_ray.end()
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    plain |= {"HOME": str(tmp_path_factory.mktemp("home"))}
    folder = tempfile.TemporaryDirectory(prefix="rt", dir="/tmp", ignore_cleanup_errors=True)  # with a short path
    theirs, pipe = [sys.executable, "-c", PROTECTED, folder.name], subprocess.PIPE
    with folder, subprocess.Popen(theirs, stdin=pipe, stdout=pipe, env=plain, text=True) as other:
        try:
            yield other.stdout.readline().strip(), plain
            other.communicate("\n")
        finally:
            other.kill()


@pytest.mark.slow
@pytest.mark.parametrize("token", [{}, {"RAY_AUTH_TOKEN": "0" * 64}], ids=["no token", "wrong token"])
def test_a_protected_cluster_refuses_a_run_without_its_token(no_ray, protected, tmp_path, token):
    """`auto` finds the cluster; without it Ray would try to connect twenty times."""
    address, plain = protected
    rays = [process for process in psutil.process_iter(["name"]) if process.info["name"] == "gcs_server"]
    named = "auto" if len(rays) == 1 else address
    ours = ["run", "quick", "--address", named, "--out", str(tmp_path / "run")]
    refused = subprocess.run(
        [sys.executable, "-m", "driftlab", *ours], env=plain | token, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert f"The Ray cluster at '{named}' refuses the token, or lacks one." in refused.stderr
    assert not (tmp_path / "run").exists()


@pytest.fixture
def on_demand(monkeypatch):
    """A backend starts no actor before a node needs it."""
    monkeypatch.setattr(pool.Pool, "warm", lambda self: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x" * 100, "ünï x"], ids=["long", "beyond ASCII"])
def test_ray_accepts_any_name_of_the_temporary_folder(no_ray, on_demand, tmp_path, monkeypatch, inline_replies, name):
    place = tmp_path / name
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    backend = RayBackend(ClusterConfig(workers=1, store_bytes=STORE_BYTES), ray_fakes.CLASSES)
    folder = backend._cluster.folder
    try:
        assert folder.parent.parent == Path("/tmp")
        assert str(folder) in os.readlink(folder / "session_latest")
        assert ray_fakes.program(backend.open("cell"), 3, 150, nodes=1) == inline_replies(3, 150, nodes=1)
    finally:
        backend.close()
    assert not folder.exists()
    assert list(place.iterdir()) == []


def test_closing_ends_all_processes_and_deletes_the_folder(no_ray, on_demand):
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    backend = RayBackend(ClusterConfig(workers=1, store_bytes=STORE_BYTES), ray_fakes.CLASSES)
    folder = backend._cluster.folder
    session = backend.open("cell")
    session.place(DEVICE, "d")
    waiting = session.call(DEVICE, "slow", 1, 60)
    raised = []

    def wait():
        try:
            session.result(waiting)
        except RunError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 60
    while not actor_processes(["EdgeDevice"]):
        assert time.monotonic() < deadline, "no device came up"
        time.sleep(0.1)
    with pytest.raises(RequestError, match="uses Ray already"):
        RayBackend(ClusterConfig())
    backend.close()
    thread.join(10)
    assert raised == ["The run was stopped."]
    with pytest.raises(RunError, match="stopped"):
        session.call(DEVICE, "work", 1)
    assert not ray.is_initialized()
    assert not folder.exists()
    left = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not alive


def test_signal_handlers_are_those_of_before_ray(backend):
    """Ray's own handler of SIGTERM aborts a process that takes more than 3 s to end."""
    usual = signal.signal(signal.SIGUSR1, print)
    try:
        own = handler_of(signal.SIGUSR1)
        assert handler_of(signal.SIGINT) in (IGNORED, own)  # a background job of a shell ignores it
        assert handler_of(signal.SIGTERM) in (DEFAULT, own)  # the system's, or Python's if an earlier test set one
    finally:
        signal.signal(signal.SIGUSR1, usual)
