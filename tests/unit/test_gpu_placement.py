"""Computation on a GPU, on torch's `meta` device: to read a value from it is an error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from driftlab.actors.cluster import Cluster, ClusterConfig, gpu_share
from driftlab.actors.pool import CELL_BYTES, Pool
from driftlab.errors import RequestError
from driftlab.platform.adaptation import distill
from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.batches import read_losses
from driftlab.platform.adaptation.distill import Distill
from driftlab.platform.core.registry import Member
from driftlab.platform.lab.read import load
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import state_of
from driftlab.platform.networks.training import artifacts, pretrain
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe, SourceSummaryRecipe
from driftlab.platform.networks.training.descent import Descent
from driftlab.platform.scaling.nested import Nested
from driftlab.platform.sim.nodes import networks
from driftlab.tune_spaces.run import trial_resources

FOUR = Cluster("ns", cpus=8, gpus=4.0, memory_bytes=2**40, dashboard_url=None)


def batch():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 16, 24, 3), dtype=np.uint8)
    return Batch(images, rng.integers(0, 4, (5, 16, 24), dtype=np.uint8), rng)


@pytest.mark.slow
def test_the_steps_of_a_phase_read_nothing_from_the_device(monkeypatch):
    """Its losses are read once, after the last step."""
    model, member, read = build("half", 4, seed=0), Distill(iterations=3, batch=2), []
    state = member.prepare(model)
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(torch.zeros(1, device="meta"))
    monkeypatch.setattr(distill, "read_losses", lambda losses: read.append(len(losses)) or [1.0] * len(losses))
    for name in ("is_finite", "moments", "update"):  # of the whole phase, at its end
        monkeypatch.setattr(Descent, name, lambda self: True)
    adapted = member.adapt(model.to("meta"), state, batch(), Phase())
    assert (read, adapted.iterations) == ([3], 3)


def test_losses_after_one_that_is_not_finite_are_left_out():
    values = [1.0, 2.0, float("inf"), 3.0]
    assert read_losses([torch.tensor(value) for value in values]) == values[:3]
    assert read_losses([torch.tensor(value) for value in values[:2]]) == values[:2]
    assert read_losses([]) == []


def test_families_are_built_on_the_device_and_kept_at_the_usual_place(monkeypatch, tmp_path):
    found, stored = [], {"a": np.zeros(1, np.float32)}
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(Nested, "build", lambda self, model, data: found.append(next(model.parameters()).device.type))
    monkeypatch.setattr(Nested, "store", lambda self, family: stored)
    monkeypatch.setattr(pretrain, "draw_data", lambda recipe: None)
    monkeypatch.setattr(artifacts, "obtain", lambda recipe: state_of(build("half", 4, seed=0)))
    monkeypatch.setattr(networks, "built_from", lambda recipe, arrays, limit_s: arrays)
    for device in ("meta", "cpu"):
        recipe = FamilyRecipe(
            Recipe("half", 4, 16, 24, "streets", 1, 1, 0.1, 0, device=device), Member("scaling", "nested")
        )
        assert list(networks.Builder().build(recipe)) == ["a"]
        assert artifacts.is_kept(recipe)
    assert found == ["meta", "cpu"]


def test_the_source_of_an_adaptation_is_summarised_on_the_device(monkeypatch):
    found = []
    recipe = FamilyRecipe(Recipe("half", 4, 16, 24, "streets", 1, 1, 0.1, 0, device="meta"), _Member())
    monkeypatch.setattr(pretrain, "draw_data", lambda recipe: None)
    monkeypatch.setattr(pretrain, "limited", lambda member, seconds: _Member(found))
    pretrain.build_pack(SourceSummaryRecipe(recipe, _Member()), {})
    assert found == ["meta"]


class _Member:
    def __init__(self, found=None):
        self.found = found

    def restore(self, model, stored, size):
        return model

    def summarise_source_family(self, scaling, family, data):
        self.found.append(next(family.parameters()).device.type)
        return {}


@pytest.mark.parametrize(("placement", "kind", "share"), [("cells", "cell", 0.5), ("nodes", "learner", 0.166)])
def test_all_gpus_are_shared_out_unless_the_request_states_a_share(placement, kind, share):
    """Ray then sets the GPUs that a process sees; without a share, all processes would use the first one."""
    pool = Pool(ClusterConfig(on_gpu=True, placement=placement), FOUR, {})
    assert pool._resources(kind, shared=True)["GPU"] == share
    assert pool._limit(kind) == 8
    stated = Pool(ClusterConfig(on_gpu=True, gpus_per_actor=1, placement=placement), FOUR, {})
    assert stated._resources(kind, shared=True)["GPU"] == 1
    assert "GPU" not in Pool(ClusterConfig(placement=placement), FOUR, {})._resources(kind, shared=True)


def test_a_trial_of_a_search_requests_its_share():
    here = replace(FOUR, local=object())
    assert trial_resources({}, here, 8) == {"cpu": 1.0}
    assert trial_resources({"compute": {"torch_device": "cuda"}}, here, 8) == {"cpu": 1.0, "gpu": 0.5}
    stated = {"compute": {"torch_device": "cuda", "gpus_per_actor": 0.25}}
    assert trial_resources(stated, here, 8) == {"cpu": 1.0, "gpu": 0.25}
    assert trial_resources(stated, FOUR, 8) == {"cpu": 1.0, "gpu": 0.25, "memory": CELL_BYTES}
    assert [gpu_share(*given) for given in ((4.0, 2), (1.0, 3), (0.0, 4))] == [1.0, 0.333, 0.0]


def test_a_numbered_gpu_with_a_share_is_refused():
    with pytest.raises(RequestError, match=r"'cuda:1' and Ray assigns the GPUs of gpus_per_actor; write cuda"):
        load("quick", ["compute.torch_device=cuda:1", "compute.gpus_per_actor=0.25"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this computer")
def test_a_phase_on_a_gpu_trains_as_on_the_cpu():
    member, moved = Distill(iterations=3, batch=2, fraction=1.0), []
    for device in ("cpu", "cuda"):
        model = build("half", 4, seed=0)
        state = member.prepare(model)
        member.adapt(model.to(device), state, batch(), Phase())
        moved.append(torch.cat([value.detach().cpu().reshape(-1) for value in model.parameters()]))
    assert torch.allclose(*moved, atol=1e-3)
