"""A child process that predicts for a server under load: predictions, faults, and its use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import numpy as np
import psutil
import pytest
from served_factory import ASKED, TOKEN, upload

from driftlab.errors import WireError
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.field.request import parse_session_request
from driftlab.platform.field.state_file import dump_objects
from driftlab.serve_apps import batching, deployment, predicting_process
from driftlab.serve_apps.batching import ImageBatches
from driftlab.serve_apps.deployment import ServerArgs
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.predicting_process import PredictingProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not predicting_process.IS_SUPPORTED, reason="the child process needs Linux"),
]
START_S = 60.0


def images_of(count, number=0):
    return rng_for(0, "images", number).integers(0, 255, (count, 32, 48, 3)).astype(np.uint8)


def hosted(folder, **asked):
    return HostedSession(folder, parse_session_request({**ASKED, **asked}))


@pytest.fixture
def session(tmp_path):
    return hosted(tmp_path / "one")


async def _ready(process):
    while not process.is_ready:
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def started(networks=64):
    process = PredictingProcess(networks)
    try:
        await asyncio.wait_for(_ready(process), START_S)
        yield process
    finally:
        process.close()


async def predicted(process, session, *contents):
    """Return the child's predictions of a batch; None if it was not taken, or was given back."""
    await process.free()
    future = asyncio.get_running_loop().create_future()
    if not await process.begin(session, contents, future.set_result):
        return None
    return await asyncio.wait_for(future, START_S)


def equal(found, session, images):
    version, predictions = session.predict(images)
    return found.version == version and found.predictions.tolist() == predictions.tolist()


def test_predictions_are_those_of_the_session(session, tmp_path):
    """Of several requests, sessions and forward passes, and after an update, with one place after another."""
    other = hosted(tmp_path / "two", seed=1)

    async def ask():
        async with started() as process:
            for one in (session, other, session):
                found = await predicted(process, one, images_of(3), images_of(2, 1))
                assert equal(found, one, np.concatenate([images_of(3), images_of(2, 1)]))
                assert found.cpu_s > 0
            large = images_of(100)  # four forward passes
            assert equal(await predicted(process, session, large), session, large)
            before = (await predicted(process, session, large)).predictions
            session.upload(upload(1))
            session.work()
            after = await predicted(process, session, large)
            assert equal(after, session, large)
            assert (after.version, session.fault) == (1, "")
            assert (after.predictions != before).any()
            together = [asyncio.create_task(predicted(process, session, images_of(4, number))) for number in range(2)]
            found = await asyncio.gather(*together)
            assert all(equal(one, session, images_of(4, number)) for number, one in enumerate(found))

    asyncio.run(ask())


def test_an_unloaded_network_is_predicted_with_its_updates(session):
    async def ask():
        async with started() as process:
            await predicted(process, session, images_of(1))
            assert session.unload()
            assert (await predicted(process, session, images_of(1))).version == 0
            assert not session.is_loaded  # the child has it
            session.upload(upload(1))
            session.work()
            assert not session.is_loaded
            found = await predicted(process, session, images_of(8))
            assert session.is_loaded
            assert equal(found, session, images_of(8))
            assert found.version == 1

    asyncio.run(ask())


def test_the_second_batch_has_its_time_after_the_first(session):
    async def ask():
        async with started() as process:
            await predicted(process, session, images_of(1))
            replies = []
            for _ in range(2):
                await process.begin(session, [images_of(1)], replies.append)
            first = process._timer
            while len(replies) < 1:
                await asyncio.sleep(0)
            second = process._timer
            assert first.cancelled()
            assert second.when() > first.when()
            while len(replies) < 2:
                await asyncio.sleep(0)
            assert second.cancelled()  # no batch is waiting

    asyncio.run(ask())


def test_the_child_has_the_arithmetic_of_the_server(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("DRIFTLAB_TOKEN", TOKEN)
    given = predicting_process._environment()
    assert given["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert "DRIFTLAB_TOKEN" not in given


def test_boxes_are_predicted_in_the_server(tmp_path):
    session = hosted(tmp_path, student={"network": "tiny_detector", "pretrain_steps": 2})

    async def ask():
        async with started() as process:
            assert not process.fits(session)

    asyncio.run(ask())


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_a_lost_child_gives_its_batches_back(session, fault, monkeypatch, caplog):
    monkeypatch.setattr(predicting_process, "BATCH_S", 300.0)

    async def ask():
        async with started() as process:
            await predicted(process, session, images_of(1))
            if fault == "hung":
                monkeypatch.setattr(predicting_process, "BATCH_S", 0.5)
            os.kill(process._process.pid, signal.SIGSTOP)
            both = [asyncio.create_task(predicted(process, session, images_of(4))) for _ in range(2)]
            while not process.is_full:
                await asyncio.sleep(0)
            if fault == "killed":
                os.kill(process._process.pid, signal.SIGKILL)
            assert await asyncio.gather(*both) == [None, None]
            assert (process.has_ended, process.is_ready, process.is_full) == (True, False, False)
            await asyncio.wait_for(process.free(), 1.0)
            assert await predicted(process, session, images_of(1)) is None
            assert not psutil.pid_exists(process._process.pid)

    asyncio.run(ask())
    assert {"killed": "ended", "hung": "needs too long"}[fault] in caplog.text


def test_a_child_without_a_parent_ends(session):
    async def ask():
        async with started() as process:
            process._loop.remove_reader(process._socket.fileno())
            process._socket.close()
            process.has_ended = True
            assert process._process.wait(START_S) == 0

    asyncio.run(ask())


def test_networks_that_cannot_be_sent_stay_in_the_server(session, tmp_path, monkeypatch):
    """Members from users' files are in no state file; predictions may be of any type."""
    own, objects, other = session, hosted(tmp_path / "two"), hosted(tmp_path / "three")
    refused = WireError("a member from a user's file")
    monkeypatch.setattr(own, "dump_network", lambda: (_ for _ in ()).throw(refused))
    monkeypatch.setattr(objects, "dump_network", lambda: (objects.generation, dump_objects(["no network"])))

    async def ask():
        async with started() as process:
            for one in (own, objects):
                assert process.fits(one)
                assert await predicted(process, one, images_of(1)) is None
                assert not process.fits(one)
            assert equal(await predicted(process, other, images_of(1)), other, images_of(1))

    asyncio.run(ask())


def test_the_child_keeps_so_many_networks(session, tmp_path, monkeypatch):
    """One that was used a moment ago is not dropped, since the next batch may need it."""
    other = hosted(tmp_path / "two", seed=1)

    async def ask():
        async with started(networks=1) as process:
            for one, dropped in ((session, False), (other, False), (session, False), (other, True), (session, True)):
                monkeypatch.setattr(predicting_process, "REUSE_S", 0.0 if dropped else 300.0)
                found = await predicted(process, one, images_of(2))
                assert (found is None) == (one is other and not dropped)
                assert found is None or equal(found, one, images_of(2))
                assert process.fits(one)
                assert len(process._known) == 1

    asyncio.run(ask())


# When it is used ------------------------------------------------------------------------------------------------------


@pytest.fixture
def eager(monkeypatch):
    """Start a child at once, and use it for requests of any size."""
    monkeypatch.setattr(batching, "CROWDED_S", 0.0)
    monkeypatch.setattr(batching, "REQUEST_S", 0.0)
    monkeypatch.setattr(batching, "CALM_S", 300.0)
    monkeypatch.setattr(batching, "LONG_S", float("inf"))


async def _crowd(batches, session, count=40):
    """Predict requests of eight images that wait for each other."""
    return await asyncio.gather(*(batches.predict(session, images_of(8, number)) for number in range(count)))


async def _with_child(batches, session):
    """Predict until there is a child."""
    chooser = batches._lanes[0]._child
    while chooser._process is None:
        await _crowd(batches, session, 8)
    await asyncio.wait_for(_ready(chooser._process), START_S)
    return chooser._process


def _taken(process):
    """Return the list of the numbers of images that a child takes from now on."""
    taken, begin = [], process.begin

    async def counted(session, contents, settle):
        done = await begin(session, contents, settle)
        taken.append(sum(map(len, contents)) if done else None)
        return done

    process.begin = counted
    return taken


def test_under_load_a_child_predicts(session, eager):
    charged = []

    async def ask():
        with contextlib.closing(
            ImageBatches(lambda session, cpu_s: charged.append(cpu_s), child_networks=64)
        ) as batches:
            process = await _with_child(batches, session)
            taken = _taken(process)
            charged.clear()
            found = await _crowd(batches, session)
            assert sum(taken) == 40 * 8
            assert len(charged) == len(taken)
            assert min(charged) > 0
            return found

    for number, one in enumerate(asyncio.run(ask())):
        assert equal(one, session, images_of(8, number))
        assert one.task == "segmentation"


def test_without_load_the_event_loop_predicts(session, eager, monkeypatch):
    async def ask():
        with contextlib.closing(ImageBatches(child_networks=64)) as batches:
            process = await _with_child(batches, session)
            taken = _taken(process)
            monkeypatch.setattr(batching, "REQUEST_S", 10.0)  # requests take longer than predictions
            await _crowd(batches, session)
            monkeypatch.setattr(batching, "REQUEST_S", 0.0)
            monkeypatch.setattr(batching, "CALM_S", 0.0)
            for number in range(4):
                await batches.predict(session, images_of(8, number))
            assert not taken
            monkeypatch.setattr(batching, "CALM_S", 300.0)
            await batches.predict(session, images_of(8))
            assert taken == [8]

    asyncio.run(ask())


def test_a_batch_of_the_child_takes_so_long_at_most(session, eager, monkeypatch):
    async def ask():
        with contextlib.closing(ImageBatches(child_networks=64)) as batches:
            process = await _with_child(batches, session)
            taken = _taken(process)
            for seconds, most in ((0.0, 32), (1e6, 128)):
                monkeypatch.setattr(batching, "CHILD_S", seconds)
                taken.clear()
                await _crowd(batches, session)
                assert max(taken) == most

    asyncio.run(ask())


def test_requests_of_a_lost_child_have_replies(session, eager, monkeypatch):
    """The next child needs a longer load than the last one."""
    monkeypatch.setattr(batching, "CROWDED_S", 1e-6)

    async def ask():
        with contextlib.closing(ImageBatches(child_networks=64)) as batches:
            process = await _with_child(batches, session)
            os.kill(process._process.pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(0.2, os.kill, process._process.pid, signal.SIGKILL)
            found = await asyncio.wait_for(_crowd(batches, session), START_S)
            assert process.has_ended
            assert batches._lanes[0]._child._needed_s > 1e-6
            return found

    found = asyncio.run(ask())
    assert all(equal(one, session, images_of(8, number)) for number, one in enumerate(found))


def test_a_network_that_cannot_be_sent_disturbs_no_other(session, tmp_path, eager, monkeypatch):
    other = hosted(tmp_path / "two", seed=1)
    monkeypatch.setattr(other, "dump_network", lambda: dump_objects(lambda: None))

    async def ask():
        with contextlib.closing(ImageBatches(child_networks=64)) as batches:
            process = await _with_child(batches, session)
            taken = _taken(process)
            found = await asyncio.gather(_crowd(batches, session), _crowd(batches, other))
            assert not process.has_ended
            assert sum(count for count in taken if count) == 40 * 8
            return found

    for one, replies in zip((session, other), asyncio.run(ask()), strict=True):
        assert all(equal(reply, one, images_of(8, number)) for number, reply in enumerate(replies))


def test_a_load_with_pauses_starts_no_child(session, eager, monkeypatch):
    monkeypatch.setattr(batching, "CROWDED_S", 1.0)
    chooser = batching._Child(64)
    monkeypatch.setattr(chooser, "_start", lambda: started.append(True))
    started = []

    async def ask(pause_s):
        monkeypatch.setattr(batching, "CALM_S", pause_s)
        for _ in range(40):
            chooser.note_crowd(0.1)
        await asyncio.sleep(0)

    asyncio.run(ask(0.0))
    assert not started
    asyncio.run(ask(300.0))
    assert started == [True, True]  # after 1 s and after 2 s


def test_a_server_without_a_child_replies(session, eager, monkeypatch, caplog):
    def fail(networks):
        raise OSError("too many open files")

    monkeypatch.setattr(batching, "PredictingProcess", fail)

    async def ask():
        with contextlib.closing(ImageBatches(child_networks=64)) as batches:
            return await _crowd(batches, session)

    found = asyncio.run(ask())
    assert all(equal(one, session, images_of(8, number)) for number, one in enumerate(found))
    assert "no process that predicts can start: too many open files" in caplog.text


def test_a_server_with_one_core_has_no_child(monkeypatch):
    given = {"state_dir": "unused", "token": TOKEN}
    for cores, replicas, port, device, has_child in (
        (2, 1, 8000, "cpu", True),
        (1, 1, 8000, "cpu", False),
        (2, 2, 8000, "cpu", False),
        (4, 2, 8000, "cpu", True),
        (2, 1, 0, "cpu", False),  # Ray Serve's proxies read the requests
        (2, 1, 8000, "cuda", False),
    ):
        monkeypatch.setattr(deployment, "processors", lambda cores=cores: cores)
        args = ServerArgs(**given, replicas=replicas, port=port, torch_device=device)
        assert args.has_child is has_child
        processes = args.options["memory"] / deployment.PROCESS_BYTES
        assert processes == args.racks + 2 + has_child


def test_a_lane_without_a_second_core_starts_no_child(session, eager):
    async def ask():
        with contextlib.closing(ImageBatches()) as batches:
            await _crowd(batches, session)
            return [lane._child for lane in batches._lanes]

    assert asyncio.run(ask()) == [None, None]
