"""Members on networks with different norms: facts of the zoo, notes of a plan, and runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from adaptation_factory import CLASSES, prepared, state_of
from tta_factory import STREAM

from driftlab.cli.kinds import kind_of
from driftlab.cli.plan import plan_of
from driftlab.platform.adaptation.base import UNFIT, Batch
from driftlab.platform.core.registry import Member
from driftlab.platform.lab import fitting
from driftlab.platform.lab.read import load
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.heads import linear_head
from driftlab.platform.networks.module_utils import all_norms
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION
from driftlab.platform.networks.zoo import ZOO

PAGE = Path(__file__).resolve().parents[2] / "docs/methods/label-free.md"
KINDS = {"BatchNorm2d": "batch", "LayerNorm": "layer", "GroupNorm": "group"}
WITHOUT_STATISTICS = ("tiny_vit", "tiny_residual_gn")
SETTINGS = {
    "sar": {"entropy_margin": 1.0},
    "eata": {"entropy_margin": 1.0, "redundancy_margin": 1.0},
    "asr": {"member": "tent", "start": 0.26},
    "rdumb": {"member": "tent"},
    "sparse": {"member": "tent", "every_batches": 1},
    "snap": {"member": "tent", "every_batches": 1, "confidence": 0.0},
}


def network_of(name: str) -> torch.nn.Module:
    """Build a network whose outputs differ: the head of a transformer begins at zero."""
    model = build(name, CLASSES, seed=0).eval()
    with torch.no_grad():
        head = model.get_submodule(linear_head(model))
        head.weight.copy_(torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(0)))
    return model


def batch(count: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), None, rng, CLASSIFICATION)


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_states_the_norms_and_the_head_of_each_network(name):
    with torch.device("meta"):
        model = build(name, 8, seed=0)
    kinds = {KINDS[type(norm).__name__] for norm in all_norms(model).values()} or {"none"}
    assert kinds == {ZOO[name].norms}
    assert ZOO[name].task is not CLASSIFICATION or bool(linear_head(model)) == ZOO[name].linear_head


@pytest.mark.parametrize("network", WITHOUT_STATISTICS)
@pytest.mark.parametrize(
    "name", ["tent", "eata", "sar", "asr", "rdumb", "snap", "sparse", "adabn", "onda", "rotta", "note"]
)
def test_members_learn_on_layer_and_group_norms_or_give_the_stated_reason(name, network):
    member, model = Member("adaptation", name, tuple(SETTINGS.get(name, {}).items())).make(), network_of(network)
    state, before = prepared(member, model), state_of(model)
    done = member.adapt(model, state, batch(6), STREAM)
    why = member.unfit_reason(network)
    assert why == (UNFIT["batch norms"] if name in ("adabn", "onda", "rotta", "note") else "")
    assert done.skipped == why
    assert bool(done.iterations) == (not why)
    moved = {key for key, value in state_of(model).items() if value != before[key]}
    norms = {f"{norm}.{own}" for norm in all_norms(model) for own in ("weight", "bias")}
    assert moved <= norms
    assert bool(moved) == (not why)


@pytest.mark.parametrize("network", WITHOUT_STATISTICS)
def test_without_statistics_outputs_are_equal_in_any_batch(network):
    model, many = network_of(network), batch(64)
    with torch.no_grad():
        whole, alone = (torch.cat([model(to_input(part)) for part in np.split(many.images, n)]) for n in (1, 64))
    assert float((whole - alone).abs().max()) < 1e-5
    member = Member("adaptation", "tent").make()
    assert member.adapt(model, member.prepare(model), batch(1), STREAM).iterations == 1


def test_sar_leaves_the_last_quarter_of_a_transformer_as_it_is():
    model = build("tiny_vit", CLASSES, seed=0)
    trained = {
        name.rpartition(".")[0].removeprefix("network.encoder.")
        for name in Member("adaptation", "sar").make().scope(model)
    }
    assert trained == {f"layers.encoder_layer_{layer}.ln_{part}" for layer in range(3) for part in (1, 2)}


def test_lists_and_plans_name_the_needs_of_a_member():
    lines = kind_of("adaptation").summaries()
    assert lines["tent"].endswith("Needs a network with norms.")
    assert kind_of("adaptation").describe("adabn").summary.endswith("Needs a network with batch norms.")
    assert "Needs" not in lines["cotta"]
    asked = load("on-device", ["student.network=tiny_vit", "systems=[onda]", "bounds=false"])
    assert plan_of(asked)["learns_nothing"] == ["onda on tiny_vit: the network has no batch norm"]


def test_the_page_has_the_table():
    assert fitting.table() in PAGE.read_text(encoding="utf-8")


def test_a_plan_notes_systems_that_learn_nothing():
    asked = load("on-device", ["student.network=tiny_vit", "systems=[tent, adabn, t3a]", "bounds=false"])
    assert list(fitting.unfit_notes(asked)) == ["adabn on tiny_vit: the network has no batch norm"]
