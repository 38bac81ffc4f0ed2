"""Which actor a node lives on, and what is refused before Ray would wait for it in silence."""

from __future__ import annotations

import socket
import threading

import pytest

from driftlab.actors import cluster
from driftlab.actors.cluster import PROCESS_BYTES, Cluster, ClusterConfig
from driftlab.actors.pool import ActorSlot, Pool
from driftlab.errors import RequestError

BIG = Cluster("ns", cpus=4, gpus=0.0, memory_bytes=1000 * PROCESS_BYTES, dashboard_url=None)


@pytest.fixture(autouse=True)
def no_actors(monkeypatch):
    monkeypatch.setattr(Pool, "_create", lambda self, kind, name: ActorSlot(name, kind, None, None))


def names(pool, kind, count):
    return [pool.take(kind).name for _ in range(count)]


def test_nodes_go_to_the_least_loaded_of_so_many_actors_as_there_are_workers():
    pool = Pool(ClusterConfig(workers=2), BIG, {})
    assert names(pool, "device", 5) == ["EdgeDevice-0", "EdgeDevice-1", "EdgeDevice-0", "EdgeDevice-1", "EdgeDevice-0"]
    assert names(pool, "learner", 1) == ["Learner-0"]


def test_without_a_number_there_are_as_many_workers_as_processors():
    assert Pool(ClusterConfig(), BIG, {}).workers == 4


def test_what_a_session_gives_back_is_used_again():
    pool = Pool(ClusterConfig(workers=2), BIG, {})
    first, second = pool.take("device"), pool.take("device")
    pool.take("device")
    pool.give(first)
    pool.give(first)
    assert pool.take("device") is first
    assert second.nodes == 1


def test_trainers_and_builders_share_actors_and_one_recorder_writes():
    pool = Pool(ClusterConfig(workers=2), BIG, {})
    assert names(pool, "builder", 1) + names(pool, "learner", 2) == ["Learner-0", "Learner-1", "Learner-0"]
    assert set(names(pool, "recorder", 5)) == {"Recorder-0"}


def test_a_rack_takes_so_many_devices_and_no_more():
    pool = Pool(ClusterConfig(workers=1, rack=3), BIG, {})
    assert [slot.split("-")[1] for slot in names(pool, "device", 7)] == list("0001112")
    assert set(names(pool, "learner", 7)) == {"Learner-0"}


def test_actors_that_do_not_fit_into_the_memory_are_refused_with_the_way_out():
    small = Cluster("ns", cpus=2, gpus=0.0, memory_bytes=10 * PROCESS_BYTES, dashboard_url=None)
    pool = Pool(ClusterConfig(workers=1, rack=1), small, {})
    with pytest.raises(RequestError, match=r"11 actors need about 2\.1 GiB, and 2\.0 GiB are free: .*--rack"):
        names(pool, "device", 11)


def test_actors_on_gpus_are_as_many_as_the_gpus_can_hold():
    machine = Cluster("ns", cpus=8, gpus=2.0, memory_bytes=2**40, dashboard_url=None)
    pool = Pool(ClusterConfig(gpus_per_actor=0.25), machine, {})
    assert len(set(names(pool, "learner", 20))) == 2  # applications, teachers and learners each have a third
    assert len(set(names(pool, "device", 20))) == 8


@pytest.mark.parametrize(
    ("share", "gpus", "message"),
    [
        (0.5, 0.0, r"need 1\.5 GPUs, and there are 0; leave it at 0"),
        (0.5, 1.0, r"need 1\.5 GPUs, and there are 1; set it to 0\.33 or less"),
        (1.5, 8.0, "only whole GPUs"),
    ],
)
def test_gpus_that_are_not_there_are_refused(share, gpus, message):
    with pytest.raises(RequestError, match=message):
        cluster.check_gpus(ClusterConfig(gpus_per_actor=share), gpus)


@pytest.mark.parametrize("address", ["here", "host:", ":1", "host:port", "ray://host:10001", "http://host:80", ""])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(RequestError, match=r"is not an address\. Give HOST:PORT"):
        cluster.check_reachable(address)


def test_an_address_where_nobody_listens_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RequestError, match=rf"No Ray cluster answers at '127\.0\.0\.1:{port}' .*refused"):
        cluster.check_reachable(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("says", "message"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not a Ray cluster"), (b"", "is not a Ray cluster"), (None, "timed out")],
    ids=["a web server", "one that hangs up", "one that is silent"],
)
def test_a_server_of_another_kind_is_refused(says, message, monkeypatch):
    monkeypatch.setattr(cluster, "REACH_S", 0.2 if says is None else 60)
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve():
            client, _ = server.accept()
            held.append(client)
            if says is not None:
                client.recv(100)
                client.sendall(says)
                client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RequestError, match=message):
            cluster.check_reachable(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
