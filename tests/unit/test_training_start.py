"""Weights from a file: fitting entries are loaded, another head is trained, other files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from documents_factory import TINY
from safetensors.torch import save_file

from driftlab.errors import RequestError
from driftlab.platform.core.plugins import install_finder
from driftlab.platform.core.spec import AppPart
from driftlab.platform.lab.placement import sources_of
from driftlab.platform.lab.read import Experiment, parse, with_defaults
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.training.artifacts import Recipe
from driftlab.platform.networks.training.pretrain import begin_from, pretrain
from driftlab.platform.networks.training.weight_files import digest_of

RECIPE = Recipe("half", classes=8, height=16, width=24, steps=0)


def saved(path, classes: int, seed: int = 7, **change):
    weights = {name: value.clone() for name, value in build("half", classes, seed=seed).state_dict().items()}
    save_file({**weights, **change}, path)
    return str(path)


def recipe(path: str, steps: int = 0) -> Recipe:
    return Recipe("half", classes=8, height=16, width=24, steps=steps, start=path, start_digest=digest_of(path))


def test_a_network_begins_with_the_weights_of_the_file(tmp_path):
    own = build("half", 8, seed=7).state_dict()
    found = pretrain(recipe(saved(tmp_path / "w.safetensors", 8)))
    assert all(np.array_equal(found[name], value.numpy()) for name, value in own.items())
    assert recipe(saved(tmp_path / "w.safetensors", 8)).key() != RECIPE.key()


def test_a_head_for_other_classes_is_random_and_requires_training(tmp_path):
    path = saved(tmp_path / "w.safetensors", 5)
    model = build("half", 8, seed=1)
    head = model.head.weight.clone()
    begin_from(model, path, ("head",), trained=True)
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.first[0].weight, build("half", 5, seed=7).first[0].weight)
    with pytest.raises(RequestError, match=r"head\.weight.*pretrain_steps above 0"):
        pretrain(recipe(path))


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_weights_are_carried_to_computers_without_their_file(tmp_path, suffix):
    path = saved(tmp_path / f"w.{suffix}", 8)
    if suffix == "pt":
        torch.save(build("half", 8, seed=7).state_dict(), path)
    given = ["student.network=half", f"student.weights={path}"]
    sources, here = sources_of(parse({**TINY, "systems": ["no_custom"]}, given)), recipe(path)
    assert list(sources) == [path]
    weights = pretrain(here)
    Path(path).unlink()
    with pytest.raises(FileNotFoundError):
        pretrain(here)
    install_finder(sources)
    assert recipe(path) == here
    assert all(np.array_equal(value, weights[name]) for name, value in pretrain(here).items())


def test_weights_of_another_network_are_refused(tmp_path):
    path = saved(tmp_path / "w.safetensors", 8, extra=torch.zeros(1))
    with pytest.raises(RequestError, match="unknown extra"):
        pretrain(recipe(path, steps=3))
    with pytest.raises(RequestError, match="another network"):
        begin_from(build("tiny", 8, seed=0), saved(tmp_path / "h.safetensors", 8), ("head",), trained=True)


@pytest.mark.parametrize("content", [None, b"", b"not weights", b"\xff" * 64])
def test_a_file_without_weights_is_refused_with_the_fix(tmp_path, content):
    if content is not None:
        (tmp_path / "w").write_bytes(content)
    with pytest.raises(RequestError, match="save_file"):
        digest_of(str(tmp_path / "w"))


def test_a_network_of_a_paper_is_trained_as_it_usually_is():
    document = {"name": "x", "systems": ["ams"], "workloads": [{"name": "streets/dance"}]}

    def student(**given):
        return Experiment.model_validate(with_defaults({**document, "student": given}).document).student

    usual, paper = student(), student(network="resnet18")
    assert (usual.pretrain_steps, paper.pretrain_steps, paper.pretrain_batch) == (2500, 20_000, 16)
    settings = student(network="resnet18", pretrain_steps=5)
    assert (settings.pretrain_steps, settings.pretrain_learning_rate) == (5, 0.001)
    assert student(weights="w", network="resnet18").pretrain_steps == 0
    own = parse(document).student_of(AppPart(name="a", network="resnet18"), 0)
    assert (own.network, own.pretrain_steps) == ("resnet18", 20_000)


def test_weights_of_an_option_are_used_as_they_are_unless_steps_are_given(tmp_path):
    document = {"name": "x", "systems": ["ams"], "workloads": [{"name": "streets/dance"}]}
    path, taught = saved(tmp_path / "w.safetensors", 8), {**document, "student": {"pretrain_steps": 300}}
    given = ["student.network=half", f"student.weights={path}"]
    assert parse(taught).student.pretrain_steps == 300
    assert parse(taught, given).student.pretrain_steps == 0
    assert parse(taught, [*given, "student.pretrain_steps=7"]).student.pretrain_steps == 7
    assert parse(taught, ["student.weights=null"]).student.pretrain_steps == 300
    teacher = parse(document, ["teacher.kind=network", "teacher.network=half", f"teacher.weights={path}"]).teacher
    assert (teacher.pretrain_steps, teacher.weights) == (0, path)
    with pytest.raises(RequestError, match="a teacher without training needs weights"):
        parse(document, ["teacher.kind=network", "teacher.pretrain_steps=0"])


@pytest.mark.parametrize("wrap", [dict, lambda weights: {"state_dict": weights, "epoch": 3}])
def test_a_file_of_torch_holds_the_same_weights(tmp_path, wrap):
    own = build("half", 8, seed=7).state_dict()
    torch.save(wrap(own), tmp_path / "w.pt")
    found = pretrain(recipe(str(tmp_path / "w.pt")))
    assert all(np.array_equal(found[name], value.numpy()) for name, value in own.items())


def test_a_file_of_torch_that_runs_code_or_holds_no_weights_is_refused_with_the_fix(tmp_path):
    torch.save(build("half", 8, seed=7), tmp_path / "model.pt")  # a whole object
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "torn.pt").write_bytes(b"PK\x03\x04torn")
    for name in ("model", "list", "torn", "missing"):
        with pytest.raises(RequestError, match=r"torch\.save\(model\.state_dict\(\), FILE\)"):
            digest_of(str(tmp_path / f"{name}.pt"))


def test_weights_of_other_classes_are_refused_before_the_run_begins(tmp_path):
    document = {"name": "x", "systems": ["ams"], "workloads": [{"name": "streets/dance"}]}
    own = {"network": "half", "weights": saved(tmp_path / "w.safetensors", 5)}
    with pytest.raises(RequestError, match=r"half: The weights in .* another network.*head\.weight"):
        parse({**document, "student": own})
