"""Networks from outside the zoo: the checks before a run, and the methods that apply."""

from __future__ import annotations

import re
import sys
import types

import numpy as np
import pytest
import torch
import yaml
from pages_factory import invoke
from safetensors.torch import save_file
from torch import nn

from driftlab.errors import RequestError
from driftlab.platform.core.registry import Member
from driftlab.platform.lab import own_networks
from driftlab.platform.lab.own_networks import applicability, applicability_in, examine
from driftlab.platform.lab.plan import plan_of
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import open_run as open_run_folder
from driftlab.platform.lab.seal import run
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.named import task_of
from driftlab.platform.networks.training.artifacts import Recipe, obtain
from driftlab.platform.networks.training.pretrain import begin, heads_of
from driftlab.platform.results.tables.read import open_run

SEGMENTER = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    task = "segmentation"

    def __init__(self, classes, height, width):
        super().__init__()
        self.size = height, width
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(),
                                  nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Conv2d(8, classes, 1)

    def forward(self, images):
        return F.interpolate(self.last(self.body(images)), self.size)

def bare(classes, height, width):
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(8, classes))

bare.task = "classification"
"""
BROKEN = {  # body of forward, and message
    "return [self.last(x)]": "its output is list, expected a tensor",
    "return self.last(x)": "its output has shape 4 x 8 x 16 x 24, segmentation expects 4 x 8 x 32 x 48",
    "return self.up(x) / 0": "its output is not finite",
    "return self.up(x) + torch.rand(1)": "the same frames give two outputs",
    "return self.up(x - x.mean(0))": "depends on the others of its batch",
    "return self.up(x).detach()": "its output has no gradient",
    "return self.up(x)[:2, :, :, :48] if self.training else self.up(x) @ x": "in evaluation, on 4 x 3 x 32 x 48, it ",
}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "net.py").write_text(SEGMENTER, encoding="utf-8")
    return str(tmp_path / "net.py")


def recipe(name: str, **changes) -> Recipe:
    return Recipe(name, **{"classes": 8, "height": 32, "width": 48, "steps": 0, **changes})


def document(network: str, *systems, **student):
    workload = {"name": "streets/driving_la", "duration_s": 12, "fps": 2, "height": 32, "width": 48}
    own = {"network": network, "pretrain_steps": 3, **student}
    return {"name": "own", "systems": list(systems), "workloads": [workload], "bounds": False, "student": own}


def reasons(name: str, *members: str, **changes) -> dict[str, str]:
    wanted = [Member(*member.split("/")) for member in members]
    return {one.method: one.reason for one in applicability(recipe(name, **changes), wanted)}


@pytest.mark.slow
def test_a_class_in_a_file_is_a_student_and_its_folder_is_in_no_table(file, tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "cache"))
    made = run(document(f"{file}:Net", "no_custom", "ams"), out=tmp_path / "run").directory
    runs = open_run(made).frame("runs")
    assert set(runs["student"]) == {"net.py:Net"} and runs["score"].between(0, 1).all()
    assert {path.name.partition("-")[0] for path in (tmp_path / "cache").iterdir()} == {"net.py"}


@pytest.mark.slow
def test_a_changed_file_makes_a_resumed_run_compute_its_cells_again(file, tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "cache"))
    made = run(document(f"{file}:Net", "no_custom"), out=tmp_path / "run").directory
    assert plan_of(open_run_folder(made)[0], made).todo == ()
    with open(file, "a", encoding="utf-8") as text:
        text.write("# another remark")
    plan = plan_of(open_run_folder(made)[0], made)
    assert len(plan.todo) == 1 and "net.py:Net was" in next(iter(plan.again))


@pytest.mark.slow
def test_a_dry_run_prints_the_methods_and_show_prints_the_facts(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_networks, "_all_members", lambda: [Member("adaptation", name) for name in ("t3a", "tent")])
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(document("net.py:Net", "no_custom")), encoding="utf-8")
    shown = invoke(["run", "own.yaml", "--dry-run"])
    assert re.search(r"method on net\.py:Net +\| applies \| why not", shown)
    assert re.search(r"adaptation/t3a +\| no +\| it works for classification", shown)
    assert re.search(
        r"channels +2 groups of channels\n(.*\n)*.*adaptation/tent +applies", invoke(["show", "networks/net.py:Net"])
    )


def test_its_recipe_follows_the_file_and_not_its_folder(file, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "net.py").write_text(SEGMENTER, encoding="utf-8")
    first, moved = (recipe(name, code="d") for name in (f"{file}:Net", f"{tmp_path / 'other' / 'net.py'}:Net"))
    assert first.key() == moved.key() != recipe(f"{file}:Net", code="e").key()


@pytest.mark.parametrize(("forward", "said"), BROKEN.items())
def test_a_broken_network_is_refused_before_the_run_with_the_reason(tmp_path, forward, said):
    text = f"""
import torch
from torch import nn
class Net(nn.Module):
    task = "segmentation"
    def __init__(self, classes, height, width):
        super().__init__()
        self.last = nn.Conv2d(3, classes, 3, 2, 1)
    def up(self, x):
        return nn.functional.interpolate(self.last(x), scale_factor=2)
    def forward(self, x):
        {forward}
"""
    (tmp_path / "net.py").write_text(text, encoding="utf-8")
    with pytest.raises(RequestError) as caught:
        parse(document(f"{tmp_path / 'net.py'}:Net", "no_custom"))
    assert said in str(caught.value) and "net.py:Net: " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def make(classes, height, width): ...", "its task is None; set the attribute task"),
        ("def make(classes): ...\nmake.task = 'detection'", r"make\(8, 32, 48\) raises TypeError"),
        ("def make(classes, height, width): return 3\nmake.task = 'detection'", "it returns int, expected a torch"),
        ("def mak(): ...", "Unknown function 'make'. Did you mean 'mak'"),
    ],
)
def test_a_broken_factory_is_refused(tmp_path, text, said):
    (tmp_path / "net.py").write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match=said):
        parse(document(f"{tmp_path / 'net.py'}:make", "no_custom"))


@pytest.mark.slow
def test_methods_that_do_not_apply_are_listed_with_the_reason(file):
    found = reasons(f"{file}:bare", "adaptation/tent", "adaptation/distill", "scaling/surrogate", "scaling/nested")
    assert found["adaptation/tent"] == "the network has no norm with a scale or shift that learns"
    assert "no batch norm to gate" in found["scaling/surrogate"]
    assert found["adaptation/distill"] == found["scaling/nested"] == ""
    assert reasons(f"{file}:Net", "adaptation/t3a") == {"adaptation/t3a": "it works for classification"}
    table = applicability_in(parse(document(f"{file}:Net", "no_custom")))
    assert {one.row for one in table["net.py:Net"]} >= {
        ("adaptation/tent", "yes", ""),
        ("adaptation/shot", "no", "it works for classification"),
    }


def test_a_method_of_the_experiment_that_does_not_apply_is_refused(file):
    own = document(f"{file}:bare", "tent")
    own["workloads"][0]["name"] = "signs/town"
    with pytest.raises(RequestError, match=r"net\.py:bare: adaptation/tent does not apply: .* no norm with a scale"):
        parse(own)


def test_facts_name_channels_and_weights_without_a_gradient(file, tmp_path):
    facts = dict(examine(recipe(f"{file}:Net")))
    assert (facts["task"], facts["output"], facts["channels"]) == (
        "segmentation",
        "4 x 8 x 32 x 48",
        "2 groups of channels",
    )
    assert facts["weights without a gradient"] == "none" and facts["training on one frame"] == "works"
    (tmp_path / "b.py").write_text(SEGMENTER.replace("self.last =", "self.idle = nn.Linear(1, 1)\n        self.last ="))
    assert dict(examine(recipe(f"{tmp_path / 'b.py'}:Net")))["weights without a gradient"] == "idle.weight, idle.bias"


def test_a_head_for_other_classes_is_found_by_its_shape(file, tmp_path):
    assert heads_of(recipe(f"{file}:Net")) == ("last",)
    trained = build(f"{file}:Net", 5, seed=3, size=(32, 48))
    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    own = recipe(f"{file}:Net", start=str(tmp_path / "w.safetensors"), steps=9)
    assert torch.equal(begin(own).body[0].weight, trained.body[0].weight)


def test_a_network_of_torchvision_by_name_takes_a_file_of_its_weights(tmp_path, torchvision, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "cache"))
    own = torchvision.models.get_model("squeezenet1_0", weights=None, num_classes=8).state_dict()
    torch.save(own, tmp_path / "w.pth")
    found = obtain(recipe("torchvision:squeezenet1_0", start=str(tmp_path / "w.pth"), start_digest="x"))
    assert all(np.array_equal(found[f"network.{name}"], value) for name, value in own.items())
    assert task_of("torchvision:lraspp_mobilenet_v3_large").name == "segmentation"
    with pytest.raises(RequestError, match=r"Unknown network of torchvision 'resnet34x'\. Did you mean 'resnet34'"):
        task_of("torchvision:resnet34x")


def test_a_segmenter_of_torchvision_returns_a_tensor(torchvision):
    facts = dict(examine(recipe("torchvision:lraspp_mobilenet_v3_large", height=64, width=64)))
    assert facts["output"] == "4 x 8 x 64 x 64"


def test_a_network_of_timm_gets_the_input_that_timm_states(monkeypatch):
    def create_model(name, *, pretrained, num_classes):
        assert not pretrained
        made = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))
        made.pretrained_cfg = {
            "input_size": (3, 20, 20),
            "mean": (0.5,) * 3,
            "std": (0.25,) * 3,
            "fixed_input_size": True,
        }
        return made

    fake = types.SimpleNamespace(
        is_model=lambda name: name == "vit", list_models=lambda: ["vit"], create_model=create_model
    )
    monkeypatch.setitem(sys.modules, "timm", fake)
    made = build("timm:vit", 4, seed=0)
    assert made(torch.zeros(2, 3, 32, 48)).shape == (2, 4) and made.expects.size == (20, 20)
    with pytest.raises(RequestError, match=r"Unknown network of timm 'vot'\. Did you mean 'vit'"):
        build("timm:vot", 4, seed=0)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(RequestError, match=r"pip install 'driftlab\[timm\]'"):
        build("timm:vit", 4, seed=0)


def test_networks_of_the_zoo_are_not_tried(monkeypatch):
    monkeypatch.setattr(own_networks, "examine", None)
    parse(document("half", "no_custom"))
    assert own_networks.recipes_in(parse(document("half", "no_custom"))) == []
