"""The torch device of a server, and the GPU shares that its processes request from Ray."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from command_factory import run_command
from pydantic import ValidationError
from served_factory import ASKED, TOKEN

from driftlab.actors import sessions as workers
from driftlab.actors.cluster import PROCESS_BYTES
from driftlab.errors import RequestError, RunError
from driftlab.platform.field import opening, rounds
from driftlab.platform.field.messages import SampleMessage
from driftlab.platform.field.request import experiment_of, parse_session_request
from driftlab.platform.field.rounds import DEVICE, STATE, RoundReply, read_state
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack
from driftlab.serve_apps import deployment
from driftlab.serve_apps.deployment import ServerArgs, with_gpus
from driftlab.serve_apps.http_server import ServerAddress
from driftlab.serve_apps.sessions import SessionRegistry


def test_the_device_is_the_server_s_choice_and_not_the_client_s():
    asked = parse_session_request(ASKED)
    assert experiment_of(asked).compute.torch_device == "cpu"
    assert experiment_of(asked, torch_device="cuda").compute.torch_device == "cuda"
    for wish in ({"torch_device": "cuda"}, {"compute": {"torch_device": "cuda"}}):
        with pytest.raises(RequestError, match="is not known here"):
            parse_session_request({**ASKED, **wish})


@pytest.mark.slow
def test_networks_learners_and_predictions_of_a_session_are_on_it(tmp_path, monkeypatch):
    found = []

    def noted(asked, source="", torch_device="cpu"):
        found.append(torch_device)
        return experiment_of(asked, source)

    monkeypatch.setattr(opening, "experiment_of", noted)
    monkeypatch.setattr(rounds, "make_deterministic", lambda device: found.append(f"deterministic on {device}"))
    hub = SessionRegistry(tmp_path, TOKEN, torch_device="cuda")
    name, _ = hub.open(parse_session_request(ASKED))
    assert found == ["deterministic on cuda", "cuda", "cuda"]  # the builder, and the copy for predictions
    images = np.zeros((2, 32, 48, 3), dtype=np.uint8)
    sampling = Sampling((0.25, 0.5), 1.0, codec="h264")
    session = hub.sessions[name]
    session.on_work = lambda: None
    session.upload(SampleMessage(1, 1.0, sampling, pack(images, "h264").payload).encode(4.0))
    session.work()
    assert found[3:] == ["cuda"]
    assert (tmp_path / name / DEVICE).read_text() == "cuda"
    hub.close()
    for device, names in (("cuda", [name]), ("cpu", [])):
        again = SessionRegistry(tmp_path, TOKEN, torch_device=device)
        assert [*again.sessions] == names
        again.close()


def test_a_state_of_another_device_is_refused_with_a_fix(tmp_path):
    (tmp_path / STATE).write_bytes(b"")
    with pytest.raises(RunError, match=r"of the torch device cpu, and this server uses cuda\. .*--torch-device cpu"):
        read_state(tmp_path, "cuda")
    (tmp_path / DEVICE).write_text("cuda:1")
    with pytest.raises(RunError, match=r"of the torch device cuda:1, and this server uses cpu"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    ("given", "gpus", "count", "share"),
    [
        ({"torch_device": "cpu"}, (4,), 0, 0.0),
        ({"torch_device": "cuda"}, (0, 1), 1, 0.333),
        ({"torch_device": "cuda"}, (8, 4), 4, 0.5),  # of six processes two share a GPU
        ({"torch_device": "cuda", "replicas": 2}, (4,), 4, 0.5),
        ({"torch_device": "cuda", "workers": 6, "replicas": 2}, (2,), 6, 0.2),
        ({"torch_device": "cuda", "gpus_per_actor": 0.1}, (1,), 1, 0.1),
        ({"torch_device": "cuda:1"}, (4,), 1, 0.0),
    ],
)
def test_the_processes_of_a_server_share_the_gpus_of_a_computer(given, gpus, count, share, monkeypatch):
    nodes = [{"Alive": True, "Resources": {"GPU": float(number)} if number else {}} for number in gpus]
    monkeypatch.setattr(deployment.ray, "nodes", lambda: nodes)
    args = with_gpus(ServerArgs(state_dir="served", token=TOKEN, **given))
    assert (args.workers, args.gpus_per_actor) == (count, share)


def test_a_ray_without_gpus_is_refused(monkeypatch):
    monkeypatch.setattr(deployment.ray, "nodes", lambda: [{"Alive": True, "Resources": {}}])
    with pytest.raises(RequestError, match="no computer of this Ray has a GPU"):
        deployment.application({"state_dir": "served", "token": TOKEN, "torch_device": "cuda"})
    with pytest.raises(ValidationError):
        ServerArgs(state_dir="served", token=TOKEN, torch_device="gpu")


def test_the_replica_requests_its_share(monkeypatch):
    monkeypatch.setattr(deployment.ray, "nodes", lambda: [{"Alive": True, "Resources": {"GPU": 1.0}}])
    asked = []
    stub = SimpleNamespace(options=lambda **options: asked.append(options) or stub, bind=lambda args: args)
    monkeypatch.setattr(deployment, "ModelStreaming", stub)
    for device in ("cpu", "cuda"):
        deployment.application({"state_dir": "served", "token": TOKEN, "torch_device": device})
    found = [options["ray_actor_options"] for options in asked]
    assert [(one["num_cpus"], one["num_gpus"]) for one in found] == [(0.1, 0.0), (0.1, 0.333)]


def test_a_replica_requests_the_memory_of_its_processes_except_on_a_local_ray(monkeypatch):
    """An autoscaler sees it; a local Ray gets no more, so a replica would wait."""
    asked = []
    for local in (None, object()):
        cluster = SimpleNamespace(local=local, run=lambda call, *limit: limit or call(), close=lambda: None)
        monkeypatch.setattr(deployment, "connect", lambda config, cluster=cluster: cluster)
        monkeypatch.setattr(deployment, "_start", lambda args, where: asked.append(args.options))
        args = ServerArgs(state_dir="served", token=TOKEN, workers=4, replicas=2)
        with deployment.serving(args, ServerAddress("127.0.0.1", 1), "here"):
            pass
    on_cluster, here = asked
    assert on_cluster["memory"] == 4 * PROCESS_BYTES  # itself, two of the four workers, and its builder
    assert "memory" not in here
    assert ServerArgs(state_dir="served", token=TOKEN, memory=7).options["memory"] == 7


def test_the_actors_of_sessions_request_their_share_and_get_the_device(monkeypatch):
    options, started = [], []
    rack = SimpleNamespace(remote=lambda *given: started.append(given) or rack, build=SimpleNamespace(remote=print))
    monkeypatch.setattr(workers, "SessionRack", SimpleNamespace(options=lambda **given: options.append(given) or rack))
    monkeypatch.setattr(workers.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "0" * 56))
    monkeypatch.setattr(workers, "_wait", lambda reference: RoundReply())
    first, _ = workers.start_workers(2, "cuda", 0.25, 8)
    first.build("asked")
    assert set(started) == {(name, "cuda", 8) for name in ("Sessions-0", "Sessions-1", "Builder")}
    assert {given["num_gpus"] for given in options} == {0.25}


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "--torch-device 'gpu' is unknown. Use cpu, cuda or cuda:N."),
        ("cuda:x", "--torch-device 'cuda:x' is unknown"),
        ("cuda:", "--torch-device 'cuda:' is unknown"),
        ("cuda", "is 'cuda' and this machine has 0 GPUs; use cpu"),
    ],
)
def test_the_command_refuses_a_device_that_is_not_here(device, message, tmp_path, monkeypatch):
    monkeypatch.setattr("driftlab.platform.sim.host.gpus", lambda: 0)
    done = run_command(["serve", "--torch-device", device, "--state-dir", str(tmp_path / "s")])
    assert isinstance(done.exception, RequestError)
    assert message in str(done.exception)


@pytest.mark.slow
def test_the_command_gives_the_device_to_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr("driftlab.platform.sim.host.gpus", lambda: 2)
    given = []
    monkeypatch.setattr(deployment, "serving", lambda args, where, address: given.append(args) or 1 / 0)
    run_command(["serve", "--torch-device", "cuda:1", "--state-dir", str(tmp_path / "s")])
    assert given[0].torch_device == "cuda:1"
