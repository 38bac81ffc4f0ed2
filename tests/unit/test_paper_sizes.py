"""The sizes of papers: they are planned, and those of archives run on small archives."""

from __future__ import annotations

from pathlib import Path

import pytest
from archives_factory import write_cifar10, write_gtsrb
from experiments_factory import loaded
from pages_factory import invoke

from driftlab.platform.lab.cells import points_of
from driftlab.platform.lab.read import load
from driftlab.platform.lab.seal import run
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.pruning.surgery import groups
from driftlab.platform.results.tables.read import open_run

FAMILY = {"keep_ratios": "[1.0, 0.5]", "prune_epochs": 0, "grow_epochs": 0}


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torchvision):
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path / "data/cifar10", monkeypatch, torchvision.datasets)
    write_gtsrb(tmp_path / "data/gtsrb")


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
    import torch

    model = build("vgg16_cifar", 10, seed=0).eval()
    convolutions = [one for one in model.modules() if isinstance(one, torch.nn.Conv2d)]
    spec = load("nestdnn-fig3", ["size=paper"])
    assert len(convolutions) == len(groups(model, torch.zeros(1, 3, 32, 32)).sizes) == 13
    assert {part.scaling["only"] for part in spec.systems} == set(range(13))


@pytest.mark.slow
def test_vgg_and_resnet_build_their_families_on_the_archives(archives, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "cache"))
    small = ["size=paper", "seeds=[0]", "student.pretrain_steps=1", "student.pretrain_batch=16"]
    small += [f"workloads.0.apps.{number}.pretrain_steps=1" for number in (2, 3)]
    small += [f"systems.1.scaling.{key}={value}" for key, value in FAMILY.items()]
    small += ["systems.2.scaling.epochs=0", "systems.2.scaling.keep_ratios=[1.0, 0.5]"]
    made = open_run(run("nestdnn-fig6", small, out=tmp_path / "run").directory)
    variants = made.frame("variants")
    assert set(variants["app"]) == {"vc", "vs", "rc", "rs"} and (made.frame("runs")["status"] == "done").all()
