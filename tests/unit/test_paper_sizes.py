"""The sizes of papers: they are planned, and those of archives run on small archives."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from archives_factory import write_cifar10, write_gtsrb, write_svhn
from experiments_factory import loaded
from pages_factory import invoke

from driftlab.platform.lab.cells import points_of
from driftlab.platform.lab.read import load
from driftlab.platform.lab.seal import run
from driftlab.platform.networks.architectures import MAKERS, DeepClassifier, build
from driftlab.platform.networks.pruning.surgery import cut, groups
from driftlab.platform.results.tables.read import open_run

APPS = (
    "{name: vc, workload: 'set:cifar10:data/cifar10', pretrain_seed: 0}",
    "{name: rs, workload: 'set:gtsrb:data/gtsrb', network: resnet50, pretrain_seed: 3, pretrain_steps: 1}",
)
FAMILY = {"keep_ratios": "[1.0, 0.5]", "prune_epochs": 0, "grow_epochs": 0}


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torchvision):
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path / "data/cifar10", monkeypatch, torchvision.datasets)
    write_gtsrb(tmp_path / "data/gtsrb")
    write_svhn(tmp_path / "data/svhn", monkeypatch, torchvision.datasets)


def test_table_1_of_ams_has_its_streets_systems_and_seeds():
    spec = loaded("ams-table1", "paper_full")
    assert len(points_of(spec)) == 7 * 5 * 5
    assert {part.duration_s for part in spec.workloads} == {240}
    assert [part.name for part in spec.systems] == ["no_custom", "one_time", "remote_tracking", "just_in_time", "ams"]
    assert (spec.student.network, spec.student.pretrain_steps) == ("deeplabv3_mobilenet_v2", 20_000)
    assert 2.0e6 < sum(one.numel() for one in build(spec.student.network, 8, seed=0).parameters()) < 2.2e6


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cells"), [("nestdnn-fig6", 9), ("nestdnn-fig3", 13 * 3 * 3)])
def test_a_size_of_archives_is_planned(archives, name: str, cells: int):
    assert f"{cells} cells; nothing was run." in invoke(["run", name, "--set", "size=paper", "--dry-run"])


def test_figure_3_prunes_each_of_the_thirteen_layers(archives):
    model = build("vgg16_cifar", 10, seed=0).eval()
    convolutions = [one for one in model.modules() if isinstance(one, torch.nn.Conv2d)]
    spec = load("nestdnn-fig3", ["size=paper"])
    assert len(convolutions) == len(groups(model, torch.zeros(1, 3, 32, 32)).sizes) == 13
    assert {part.scaling["only"] for part in spec.systems} == set(range(13))


def test_thirty_domains_have_the_network_sources_and_members_of_elasticdnn(archives):
    """MNIST, STL-10 and USPS are not written here: SVHN and CIFAR-10 stand for them."""
    targets = '["set:svhn:data/svhn", "set:cifar10:data/cifar10"]'
    spec = load("elasticdnn-domains", ["size=paper", f"workloads.0.params.shifts={targets}"])
    (workload,) = spec.workloads
    assert workload.name == "domains:set:cifar10+svhn:data" and spec.student.network == "resnet56"
    assert workload.duration_s / workload.params["domain_s"] == 30
    assert workload.params["adapt_s"] * workload.fps == 100
    members = {part.adaptation["name"] for part in spec.systems}
    assert members >= {"onda", "tent", "shot", "bufr", "conda", "cua", "iada", "ace", "elasticdnn"}
    model = build("resnet56", 13, seed=0).eval()
    found = [part.scaling["keep_ratios"] for part in spec.systems if part.scaling["name"] == "surrogate"]
    assert found == [(0.2,)] or found == [[0.2]]
    whole = groups(model, torch.zeros(1, 3, 8, 8))
    assert weights_of_surrogate(model, whole, 0.2) == pytest.approx(weights_of_all(model, whole, 0.44), rel=0.05)


def weights_of_surrogate(model, whole, keep: float) -> int:
    """Return the weights of a network cut to a share of its gated channels."""
    from driftlab.platform.networks.pruning.gating import find_sites, keep_count

    sites, _ = find_sites(model, whole, torch.zeros(1, 3, 8, 8))
    return _weights(model, whole, {site.group: np.arange(keep_count(site.size, keep, 2)) for site in sites})


def weights_of_all(model, whole, keep: float) -> int:
    """Return the weights of a network cut to a share of all of its channels."""
    return _weights(model, whole, {name: np.arange(max(2, int(size * keep))) for name, size in whole.sizes.items()})


def _weights(model, whole, kept) -> int:
    return sum(one.numel() for one in cut(model, whole, kept).parameters())


def short_resnet(models, *, weights: None, num_classes: int):
    """Return a ResNet-50 with two and then one narrow block a stage, not 3, 4, 6 and 3: to save time."""
    return models.ResNet(models.resnet.Bottleneck, [2, 1, 1, 1], num_classes, width_per_group=8)


@pytest.mark.slow
def test_vgg_and_resnet_build_their_families_on_the_archives(archives, tmp_path: Path, monkeypatch, torchvision):
    monkeypatch.setattr(torchvision.models, "resnet50", partial(short_resnet, torchvision.models))
    monkeypatch.setitem(MAKERS, "vgg16_cifar", partial(DeepClassifier, width=16))  # a quarter of its channels
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "cache"))
    small = ["size=paper", "seeds=[0]", "student.pretrain_steps=1", "student.pretrain_batch=16"]
    small += [f"workloads.0.apps=[{', '.join(APPS)}]"]  # one of each network, and of each archive
    small += [f"systems.1.scaling.{key}={value}" for key, value in FAMILY.items()]
    small += ["systems.2.scaling.epochs=0", "systems.2.scaling.keep_ratios=[1.0, 0.5]"]
    made = open_run(run("nestdnn-fig6", small, out=tmp_path / "run").directory)
    variants = made.frame("variants")
    assert set(variants["app"]) == {"vc", "rs"} and (made.frame("runs")["status"] == "done").all()
