"""The pool assigns nodes to actors; requests for which Ray would wait without a message are refused."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from driftlab.actors import cluster
from driftlab.actors.cluster import PROCESS_BYTES, Cluster, ClusterConfig
from driftlab.actors.pool import CPUS_PER_ACTOR, WARM, ActorSlot, Pool
from driftlab.errors import RequestError

BIG = Cluster("ns", cpus=4, gpus=0.0, memory_bytes=1000 * PROCESS_BYTES, dashboard_url=None)


@pytest.fixture(autouse=True)
def no_actors(monkeypatch):
    monkeypatch.setattr(Pool, "_create", lambda self, kind, name, asked: ActorSlot(name, kind, None, None, asked))


def names(pool, kind, count):
    return [pool.take(kind).name for _ in range(count)]


def test_a_pool_assigns_nodes_to_the_least_loaded_worker():
    pool = Pool(ClusterConfig(workers=2), BIG, {})
    assert names(pool, "device", 5) == ["EdgeDevice-0", "EdgeDevice-1", "EdgeDevice-0", "EdgeDevice-1", "EdgeDevice-0"]
    assert names(pool, "learner", 1) == ["Learner-0"]


def test_a_pool_has_one_worker_per_cpu_by_default():
    assert Pool(ClusterConfig(), BIG, {}).workers == 4


def test_a_released_actor_is_used_again():
    pool = Pool(ClusterConfig(workers=2), BIG, {})
    first, second = pool.take("device"), pool.take("device")
    pool.take("device")
    pool.give(first, "device")
    pool.give(first, "device")
    assert pool.take("device") is first
    assert second.nodes["device"] == 1


def test_learners_and_builders_share_actors_and_one_recorder_writes():
    pool = Pool(ClusterConfig(workers=2), BIG, {})
    assert names(pool, "builder", 1) + names(pool, "learner", 3) == ["Learner-0", "Learner-0", "Learner-1", "Learner-0"]
    assert set(names(pool, "recorder", 5)) == {"Recorder-0"}


def test_an_actor_hosts_at_most_rack_devices():
    pool = Pool(ClusterConfig(workers=1, devices_per_actor=3), BIG, {})
    assert [slot.split("-")[1] for slot in names(pool, "device", 7)] == list("0001112")
    assert set(names(pool, "learner", 7)) == {"Learner-0"}


def test_actors_above_the_free_memory_are_refused_with_a_fix():
    small = Cluster("ns", cpus=2, gpus=0.0, memory_bytes=10 * PROCESS_BYTES, dashboard_url=None)
    pool = Pool(ClusterConfig(workers=1, devices_per_actor=1), small, {})
    with pytest.raises(
        RequestError, match=r"11 actors need about 2\.1 GiB, and 2\.0 GiB are free\. .*--devices-per-actor"
    ):
        names(pool, "device", 11)


@pytest.mark.parametrize(("placement", "builder"), [("nodes", "learner"), ("cells", "cell")])
def test_files_of_weights_are_sent_only_to_actors_that_build_networks(placement, builder):
    pool = Pool(ClusterConfig(placement=placement, sources={"/a/own.py": b"1", "/a/w.pt": b"2"}), BIG, {})
    assert list(pool._sources_of(builder)) == ["/a/own.py", "/a/w.pt"]
    assert list(pool._sources_of("device")) == ["/a/own.py"]


def test_gpus_limit_the_number_of_actors():
    large = Cluster("ns", cpus=8, gpus=2.0, memory_bytes=2**40, dashboard_url=None)
    pool = Pool(ClusterConfig(gpus_per_actor=0.25), large, {})
    assert len(set(names(pool, "learner", 20))) == 2  # applications, teachers and learners get a third each
    assert len(set(names(pool, "device", 20))) == 8


def test_whole_cells_have_an_actor_per_worker_which_builds_their_networks_too():
    pool = Pool(ClusterConfig(workers=2, placement="cells"), BIG, {})
    assert Pool(ClusterConfig(workers=2), BIG, {}).whole_cells == 0
    assert pool.whole_cells == 2
    pool.warm()
    assert names(pool, "builder", 3) == ["Cell-0", "Cell-1", "Cell-0"]
    for end in (0, 1, 1, 0):  # builders stay, and a cell that follows another one gets the idle actor
        cells = [pool.take("cell"), pool.take("cell")]
        assert {cell.name for cell in cells} == {"Cell-0", "Cell-1"}
        pool.give(cells[end], "cell")
        assert pool.take("cell") is cells[end]
        for cell in cells:
            pool.give(cell, "cell")
    assert names(pool, "recorder", 1) == ["Recorder-0"]


def test_the_cells_of_a_thread_have_the_same_actor_when_both_are_idle():
    pool = Pool(ClusterConfig(workers=2, placement="cells"), BIG, {})
    pool.warm()
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for threads in ((first, second), (second, first), (second, first), (first, second)):
            cells = {thread: thread.submit(pool.take, "cell").result() for thread in threads}
            assert [cells[thread].name for thread in (first, second)] == ["Cell-0", "Cell-1"]
            for cell in cells.values():
                pool.give(cell, "cell")


def test_gpus_limit_the_number_of_whole_cells():
    large = Cluster("ns", cpus=8, gpus=2.0, memory_bytes=2**40, dashboard_url=None)
    assert Pool(ClusterConfig(gpus_per_actor=0.5, placement="cells"), large, {}).whole_cells == 4


def cpus(pool, kinds):
    """Return the CPUs that the actors of these nodes request together."""
    slots = {slot.name: slot for kind in kinds for slot in [pool.take(kind) for _ in range(99)]}
    return round(sum(slot.resources["CPU"] for slot in slots.values()), 6)


@pytest.mark.parametrize(("placement", "kinds"), [("cells", ["cell"]), ("nodes", WARM)])
def test_the_actors_of_a_worker_request_one_cpu_and_memory_so_that_a_cluster_grows(placement, kinds):
    pool = Pool(ClusterConfig(workers=6, placement=placement), BIG, {})  # four CPUs exist
    assert cpus(pool, (*kinds, "recorder")) == pytest.approx(6)
    assert pool.take(kinds[0]).resources["memory"] >= PROCESS_BYTES
    assert "memory" not in pool.take("recorder").resources


@pytest.mark.parametrize(("placement", "kinds"), [("cells", ["cell"]), ("nodes", WARM)])
@pytest.mark.parametrize("workers", [1, 3, 40])
def test_a_local_ray_has_the_cpus_that_its_actors_request(placement, kinds, workers):
    """It gets no more computers, so actors that request more would wait without end."""
    here = replace(BIG, cpus=min(workers, 4), local=object())
    pool = Pool(ClusterConfig(workers=workers, placement=placement), here, {})
    assert min(workers, 4) * 0.9 < cpus(pool, kinds) <= min(workers, 4)


def test_single_devices_and_replacements_request_little():
    """Their number has no limit."""
    pool = Pool(ClusterConfig(workers=2, devices_per_actor=1), BIG, {})
    assert pool.take("device").resources["CPU"] == CPUS_PER_ACTOR
    assert pool.take("learner").resources["CPU"] == 0.25
    assert pool.twin(pool.take("learner")).resources["CPU"] == CPUS_PER_ACTOR


@pytest.mark.parametrize(
    ("share", "gpus", "message"),
    [
        (0.5, 0.0, r"need 1\.5 GPUs, and there are 0\. Leave it at 0"),
        (0.5, 1.0, r"need 1\.5 GPUs, and there are 1\. Set it to 0\.33 or less"),
        (1.5, 8.0, "must be a whole number"),
    ],
)
def test_missing_gpus_are_refused(share, gpus, message):
    with pytest.raises(RequestError, match=message):
        cluster.check_gpus(ClusterConfig(gpus_per_actor=share), gpus)


def test_a_whole_cell_needs_one_share():
    cluster.check_gpus(ClusterConfig(gpus_per_actor=0.5, placement="cells"), 0.5)
    with pytest.raises(RequestError, match=r"a cell needs 0\.5 GPUs, and there are 0\. Leave it at 0"):
        cluster.check_gpus(ClusterConfig(gpus_per_actor=0.5, placement="cells"), 0.0)


@pytest.mark.parametrize("address", ["here", "host:", ":1", "host:port", "ray://host:10001", "http://host:80", ""])
def test_an_invalid_address_is_refused(address):
    with pytest.raises(RequestError, match=r"is not an address\. Give HOST:PORT"):
        cluster.check_reachable(address)


def test_an_address_without_a_server_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RequestError, match=rf"No Ray cluster responds at '127\.0\.0\.1:{port}' .*refused"):
        cluster.check_reachable(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("reply", "message"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not a Ray cluster"), (b"", "is not a Ray cluster"), (None, "timed out")],
    ids=["a web server", "a closed connection", "no reply"],
)
def test_a_foreign_server_is_refused(reply, message, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 0.2 if reply is None else 60)
    with socket.create_server(("127.0.0.1", 0)) as server:
        clients = []

        def serve():
            client, _ = server.accept()
            clients.append(client)  # or it would be closed
            if reply is not None:
                client.recv(100)
                client.sendall(reply)
                client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RequestError, match=message):
            cluster.check_reachable(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
