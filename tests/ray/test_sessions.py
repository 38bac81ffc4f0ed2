"""Sessions on Ray give the replies of one process, and their payloads never pass through the driver."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import ray
import ray_fakes
from sockets_factory import listening, on_network

from driftlab.actors import watchdog
from driftlab.actors.cluster import UNWATCHED
from driftlab.errors import RequestError, RunError
from driftlab.platform.sim.session import NodeId

DEVICE, LEARNER, RECORDER = NodeId("device", "d"), NodeId("learner", "t"), NodeId("recorder", "r")


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one worker runs all tests")
def test_all_tests_that_start_ray_run_on_one_worker(request):
    assert request.node.nodeid.endswith("@ray")


def test_a_random_program_gives_the_replies_of_one_process(session, inline_replies):
    assert ray_fakes.program(session, 1, 300) == inline_replies(1, 300)


def test_parallel_sessions_have_separate_nodes(backend, inline_replies):
    def run(seed):
        session = backend.open("twin")
        replies = ray_fakes.program(session, seed, 100)
        session.close()
        return replies

    with ThreadPoolExecutor(backend.concurrency) as pool:
        assert list(pool.map(run, range(4))) == [inline_replies(seed, 100) for seed in range(4)]


def test_replies_have_facts_and_rows_without_payload(session):
    session.place(DEVICE, "d")
    reply = session.result(session.call(DEVICE, "big", 1))
    assert reply.payload is None
    assert reply.rows == {"frames": [{"digest": [reply.facts]}]}


def test_a_job_of_another_session_is_an_argument(backend, session):
    session.place(DEVICE, "d")
    job = session.call(DEVICE, "big", 1)
    other = backend.open("other")
    other.place(LEARNER, "t", job)
    first = other.result(other.call(LEARNER, "work", 1, job)).facts
    other.close()
    again = backend.open("again")
    again.place(LEARNER, "t", job)
    assert again.result(again.call(LEARNER, "work", 1, job)).facts == first
    again.close()


def test_an_error_of_a_node_has_node_and_verb_and_is_not_repeated(session):
    session.place(DEVICE, "d")
    session.place(LEARNER, "t")
    failing = session.call(DEVICE, "fail")
    consumer = session.call(LEARNER, "work", 1, failing)
    for job in (consumer, failing):
        with pytest.raises(RunError, match="device d cannot fail: ValueError: the node's own mistake"):
            session.result(job)


@pytest.mark.parametrize("how", ["sys.exit", "GeneratorExit", "recursion", "overflow", "value"])
def test_any_exception_of_a_node_gives_the_same_error_on_both_backends(session, inline, how):
    messages = []
    for one in (inline, session):
        one.place(DEVICE, "d")
        with pytest.raises(RunError, match="device d cannot leave: ") as caught:
            one.result(one.call(DEVICE, "leave", how))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    session.place(LEARNER, "t")
    assert session.result(session.call(LEARNER, "work", 1)).facts  # the process still runs


def test_a_request_error_keeps_its_class(session):
    session.place(DEVICE, "d")
    with pytest.raises(RequestError, match="asked for too much"):
        session.result(session.call(DEVICE, "refuse"))


def test_a_reply_that_cannot_be_pickled_is_an_error(session):
    session.place(DEVICE, "d")
    with pytest.raises(RunError, match=r"device d cannot odd: .*not picklable"):
        session.result(session.call(DEVICE, "odd"))


def test_actors_have_readable_names(backend, session):
    session.place(DEVICE, "d")
    session.place(RECORDER, "r")
    session.result(session.call(DEVICE, "work", 1))
    names = set(ray.util.list_named_actors())
    kinds = ("EdgeDevice", "Application", "Teacher", "Learner", "Recorder")
    assert {f"run/{kind}-0" for kind in kinds} <= names  # "run" is the name of the run


def test_ray_counts_the_cpus_that_actors_request(backend, session):
    """An autoscaler adds computers for requests that do not fit, and a worker's four actors fill one CPU."""
    session.place(DEVICE, "d")
    session.result(session.call(DEVICE, "work", 1))
    requested = sum(slot.resources["CPU"] for slots in backend.pool._slots.values() for slot in slots)
    assert requested >= 1
    deadline = time.monotonic() + 30
    while (used := used_cpus()) != pytest.approx(requested, abs=0.1) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert used == pytest.approx(requested, abs=0.1)  # separate actors after a loss request a thousandth


def used_cpus():
    return ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0.0)


def test_every_kind_computes_with_one_thread(session):
    for kind in ray_fakes.KINDS:
        node = NodeId(kind, "n")
        session.place(node, "n")
        facts = session.result(session.call(node, "surroundings")).facts
        assert (facts["torch"], facts["cv2"]) == (1, 1), kind


def test_payloads_are_released_with_their_jobs(session):
    """Payloads larger than the object store in total pass through it, and none is written to disk."""
    from ray._private.internal_api import memory_summary

    session.place(DEVICE, "d")
    session.place(LEARNER, "t")
    for number in range(50):  # 300 MB in total, in a store of 210 MB; 20 MB at a time would fit
        job = session.call(DEVICE, "work", number)
        job = session.call(DEVICE, "huge", number, job)
        session.result(session.call(LEARNER, "work", number, job))
    assert "Spilled" not in memory_summary(ray.get_runtime_context().gcs_address, stats_only=True)


def test_every_socket_is_on_the_loopback_interface(backend, session):
    """Other computers cannot connect to Ray's control store, schedulers, actors, exporters or driver."""
    session.place(DEVICE, "d")
    session.result(session.call(DEVICE, "work", 1))
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    rays = watchdog.processes_of(str(backend._cluster.folder))
    names = {each.name() for each in rays}
    assert {"gcs_server", "raylet", "ray::RuntimeEnvAgent"} <= names
    assert "ray::DashboardAgent" not in names  # a stand-in replaces it
    programs = {Path(word).name for each in rays for word in each.cmdline()[:4]}
    assert not {"monitor.py", "log_monitor.py", "dashboard.py"} & programs  # not started, as driftlab does not use them
    assert not UNWATCHED.keys() & os.environ.keys()  # they would hide the tasks of a later Ray that has a dashboard
    sockets = listening(processes)
    assert len(sockets) >= 8
    assert on_network(sockets) == []
