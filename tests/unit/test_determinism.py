"""Processes that compute on a GPU do so deterministically, and say plainly which operator cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import driftlab
from driftlab import determinism
from driftlab.actors import actors, pool
from driftlab.actors.actors import NodeHostActor
from driftlab.actors.cluster import Cluster, ClusterConfig
from driftlab.actors.node_host import Failure, NodeHost
from driftlab.actors.pool import Pool
from driftlab.cli import run as command
from driftlab.determinism import FIX, SWITCH, WORKSPACE, in_plain_words, make_deterministic, ordered_loss
from driftlab.errors import RequestError, RunError
from driftlab.one_process import OneProcess
from driftlab.platform.core.records import Reply
from driftlab.platform.lab import seal
from driftlab.platform.lab.read import load
from driftlab.platform.sim import inline
from driftlab.platform.sim.session import NodeId
from driftlab.platform.tune import trial
from driftlab.tune_spaces import run as search

PUTS = "put_ has no deterministic form on this device"
LEARNER = NodeId("learner", "l")


class Putting:
    """A node with an operator that has no deterministic form, also on a CPU."""

    def train(self):
        torch.zeros(4).put_(torch.tensor([1]), torch.ones(1))
        return Reply()


class PuttingAtOnce(Putting):
    def __init__(self):
        self.train()


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Leave this process as other tests need it."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setenv(WORKSPACE, "")
    monkeypatch.delenv(WORKSPACE)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = torch.backends.cudnn.benchmark = False


def settings():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        os.environ.get(WORKSPACE),
    )


OFF, ON = (False, False, True, None), (True, True, False, ":4096:8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "switch", "expected"),
    [("cuda", None, ON), ("cuda:1", "1", ON), ("cuda", "0", OFF), ("cpu", None, OFF), ("cpu", "1", OFF)],
)
def test_a_process_on_a_gpu_is_deterministic_unless_it_is_switched_off(device, switch, expected, monkeypatch):
    torch.backends.cudnn.benchmark = True
    if switch is not None:
        monkeypatch.setenv(SWITCH, switch)
    undo = make_deterministic(device)
    assert settings() == expected
    undo()
    assert settings()[:3] == OFF[:3]


def test_variables_that_prevent_it_are_refused(monkeypatch):
    monkeypatch.setenv(SWITCH, "no")
    with pytest.raises(RequestError, match=r"DRIFTLAB_DETERMINISTIC is 'no'; set it to 0 or 1"):
        make_deterministic("cuda")
    make_deterministic("cpu")
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv(WORKSPACE, ":0:0")
    for refuse in (make_deterministic, determinism.check):
        with pytest.raises(RequestError, match=r"CUBLAS_WORKSPACE_CONFIG is ':0:0'.*Unset it or set it to :4096:8"):
            refuse("cuda")
        refuse("cpu")
    monkeypatch.delenv(WORKSPACE)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RequestError, match=r"has used a GPU without CUBLAS_WORKSPACE_CONFIG.*Start Python with"):
        make_deterministic("cuda")
    monkeypatch.setenv(WORKSPACE, ":16:8")
    make_deterministic("cuda")


def test_one_process_is_deterministic_until_its_backend_is_closed(monkeypatch):
    monkeypatch.setitem(inline.NODE_CLASSES, "learner", f"{__name__}:Putting")
    monkeypatch.setattr(inline, "import_class", lambda path: globals()[path.partition(":")[2]])
    backend = OneProcess("cuda")
    session = backend.open("one")
    session.place(LEARNER)
    with pytest.raises(RunError, match=f"^learner l cannot train: {PUTS}") as caught:
        session.call(LEARNER, "train")
    assert str(caught.value).endswith(FIX)
    monkeypatch.setitem(inline.NODE_CLASSES, "learner", f"{__name__}:PuttingAtOnce")
    with pytest.raises(RunError, match=f"^learner l cannot start: {PUTS}"):
        session.place(LEARNER)
    backend.close()
    assert settings()[:3] == (False, False, False)
    session.call(LEARNER, "train")


def test_an_actor_gives_the_same_error(monkeypatch):
    monkeypatch.setattr("driftlab.actors.node_host.import_class", lambda path: Putting)
    make_deterministic("cuda")
    host = NodeHost({"learner": "Putting"})
    host.place("s", 0, LEARNER)
    failure, _ = host.call("s", 0, 0, LEARNER, "train")
    assert isinstance(failure, Failure)
    assert str(failure.error) == f"learner l cannot train: {PUTS}. {FIX}"


def test_other_errors_keep_their_words():
    for text in ("RuntimeError: out of memory", "", "device d cannot fail: ValueError: no deterministic form"):
        assert in_plain_words(text) == text
    error = RequestError("too much")
    assert determinism.plain_error(error) is error


def test_a_reason_that_was_cut_off_is_replaced_as_well():
    whole = "kthvalue CUDA does not have a deterministic implementation, but you set 'torch.use_determinis"
    text = in_plain_words(f"ams: 3 of 3 training phases failed: RuntimeError: {whole}…")
    assert text == f"ams: 3 of 3 training phases failed: kthvalue CUDA has no deterministic form on this device. {FIX}"


@pytest.mark.parametrize(("device", "expected"), [("cuda", True), ("cpu", False)])
def test_actors_begin_so(device, expected, monkeypatch):
    for name in actors.ONE_THREAD:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(actors.plugins, "install_finder", lambda sources: None)
    NodeHostActor("Learner-0", {}, {}, device)
    assert settings()[0] is expected


def test_actors_that_run_networks_get_the_device(monkeypatch):
    given = {}

    class Actor:
        @classmethod
        def options(cls, **options):
            return cls()

        def remote(self, *arguments):
            if arguments:  # of its start, not of `ready`
                given[arguments[0]] = arguments[3]
            return self

        @property
        def ready(self):
            return self

    here = Cluster("ns", cpus=2, gpus=1.0, memory_bytes=2**40, dashboard_url=None)
    monkeypatch.setattr(Cluster, "run", lambda self, call: call())
    names = {kind: kind.title() for kind in pool.ACTORS}
    monkeypatch.setattr(pool, "ACTORS", dict.fromkeys(pool.ACTORS, Actor))
    monkeypatch.setattr(Pool, "_label", lambda self, kind: names[kind])
    workers = Pool(ClusterConfig(on_gpu=True, torch_device="cuda"), here, {})
    for kind in ("device", "application", "teacher", "learner"):
        workers._start(kind)
    assert given == {"Device-0": "cpu", "Application-0": "cuda", "Teacher-0": "cuda", "Learner-0": "cuda"}


def test_the_command_gives_the_device_to_its_backend(monkeypatch, tmp_path):
    monkeypatch.setattr("driftlab.platform.sim.host.check_torch_device", lambda device: None)
    spec = load("quick", ["compute.torch_device=cuda"])
    opener = command.BackendChoice("inline", None, None, None, False).opener(spec, tmp_path)
    opener().close()
    assert settings()[3] == ":4096:8"


def test_the_public_function_opens_a_backend_for_the_device(monkeypatch):
    opened = []
    monkeypatch.setattr(seal, "run", lambda *given, open_backend, **named: opened.append(open_backend()))
    driftlab.run("quick", ["compute.torch_device=cuda"])
    assert settings()[:3] == (True, True, False)
    opened[0].close()
    driftlab.run("quick")
    assert settings()[0] is False


@pytest.mark.parametrize(("compute", "expected"), [({"torch_device": "cuda"}, True), (None, False)])
def test_the_processes_of_trials_begin_so(compute, expected, monkeypatch):
    monkeypatch.setattr(search.TrialTrainable, "_begin", lambda self, config: None)
    trainable = search.TrialTrainable.__new__(search.TrialTrainable)
    trainable.setup({}, experiment={"compute": compute}, sources={}, shelf=None)
    assert settings()[0] is expected


def test_a_trial_that_fails_says_so_plainly(monkeypatch):
    make_deterministic("cuda")
    monkeypatch.setattr(trial, "experiment_of", lambda *given: Putting().train())
    (outcome,) = trial.outcomes({}, trial.Assignment("search", 0, {}, (0,)), None, every_window=False)
    assert (outcome.status, outcome.reason) == ("failed", f"{PUTS}. {FIX}")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_the_loss_of_label_maps_is_that_of_torch(weighted, reduction):
    scores, target = torch.randn(2, 5, 6, 7).log_softmax(1), torch.randint(5, (2, 6, 7))
    target[0, :3] = -100
    weight = torch.rand(5) if weighted else None
    given = (scores, target, weight, reduction, -100)
    ours, theirs = ordered_loss(*given), torch.ops.aten.nll_loss2d_forward(*given)
    assert torch.allclose(ours[0], theirs[0])
    assert ours[0].shape == theirs[0].shape
    assert reduction == 0 or torch.allclose(ours[1], theirs[1])


TWICE = """
import json, torch
from driftlab.determinism import make_deterministic
make_deterministic("cuda")
import numpy as np
from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.distill import Distill
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
found = []
for _ in range(2):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 64, 96, 3), dtype=np.uint8)
    model, member = build("tiny", 8, seed=0).to("cuda"), Distill(iterations=20)
    batch = Batch(images, rng.integers(0, 8, (5, 64, 96), dtype=np.uint8), rng)
    member.adapt(model, member.prepare(model), batch, Phase())
    found.append(vector.read(model).tobytes().hex())
print(json.dumps(found[0] == found[1]))
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this computer")
def test_two_phases_on_a_gpu_give_the_same_bytes():
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is True
