"""Channel surgery on random networks, the zoo and torchvision: equal outputs in float64."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from driftlab._torchvision import import_torchvision
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import DeepClassifier, build
from driftlab.platform.networks.pruning.surgery import (
    Groups,
    coordinates,
    cut,
    expand,
    groups,
    lift,
    mask,
    permute,
    restrict,
)
from driftlab.platform.networks.published import detection, library, residual
from driftlab.platform.networks.zoo import ZOO

SAME = 1e-9  # relative; the error of float64 is about 1e-15
SEEDS = range(20)
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "channel-surgery.md"

Keep = dict[str, torch.Tensor]


class Block(nn.Module):
    """A random block with equal resolution of input and output."""

    def __init__(self, inputs: int, pick: Callable[[int], int]) -> None:
        super().__init__()
        self.kind = KINDS[pick(len(KINDS))]
        width, outputs = 4 * (1 + pick(3)), 4 * (1 + pick(4))
        self.outputs = {
            "conv": outputs, "grouped": 2 * inputs, "up": outputs, "join": inputs + outputs, "shuffle": 2 * width
        }.get(self.kind, inputs)  # fmt: skip
        layers: dict[str, Callable[[], list[nn.Module]]] = {
            "conv": lambda: [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.PReLU(outputs)],
            "residual": lambda: [nn.Conv2d(inputs, width, 1), nn.BatchNorm2d(width), nn.Conv2d(width, inputs, 1)],
            "deep": lambda: [
                nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs),
                nn.InstanceNorm2d(inputs, affine=True),
            ],
            "grouped": lambda: [
                nn.Conv2d(inputs, 2 * inputs, 3, padding=1, groups=inputs // 2, padding_mode="reflect")
            ],
            "gate": lambda: [nn.Conv2d(inputs, width, 1), nn.Conv2d(width, inputs, 1)],
            "join": lambda: [
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs, affine=False),
            ],
            "up": lambda: [nn.ConvTranspose2d(inputs, outputs, 2, 2), nn.AvgPool2d(2)],
            "attend": lambda: [nn.Conv2d(2, 1, 3, padding=1)],
            "shuffle": lambda: [nn.Conv2d(inputs, 2 * width, 1)],
            "group_norm": lambda: [nn.GroupNorm(2, inputs), nn.Conv2d(inputs, inputs, 1)],
        }
        self.layers = nn.ModuleList(layers[self.kind]())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "gate":
            first, second = self.layers
            seen = F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1)
            return x * sum(second(first(each).relu()) for each in seen).sigmoid()
        if self.kind == "attend":
            return x * self.layers[0](torch.stack([x.mean(1), x.amax(1)], dim=1)).sigmoid()
        y = nn.Sequential(*self.layers)(x)
        if self.kind == "residual":
            return F.hardswish(x + y)
        if self.kind == "shuffle":
            halves = y.chunk(2, dim=1)
            return torch.stack(halves, dim=2).flatten(1, 2)
        return torch.cat([F.silu(y), x], dim=1) if self.kind == "join" else y.relu()


KINDS = ("conv", "residual", "deep", "grouped", "gate", "join", "up", "attend", "shuffle", "group_norm")


class Random(nn.Module):
    """A few random blocks, and a classifier on the flattened features."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        blocks, channels = [nn.Conv2d(3, 8, 3, stride=2, padding=1)], 8
        for _ in range(6):
            block = Block(channels, rng.randrange)
            blocks.append(block)
            channels = block.outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 12), nn.ReLU())
        self.last = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.head(self.blocks(x)))


TORCHVISION = {  # with the number of groups
    "vgg16": 15,
    "resnet18": 12,
    "resnet50": 37,
    "mobilenet_v2": 25,
    "squeezenet1_1": 25,
    "shufflenet_v2_x1_0": 18,
    "deeplabv3_mobilenet_v3_large": 36,
}


VGG_16_QUARTER = [16, 16, "M", 32, 32, "M", 64, 64, 64, "M", 128, 128, 128, "M", 128, 128, 128, "M"]


def torchvision_model(name: str) -> nn.Module:
    """Build a network with its layers; those that can be narrower have fewer channels, to save time."""
    models = import_torchvision().models
    if name == "vgg16":
        model = models.VGG(models.vgg.make_layers(VGG_16_QUARTER), 9)
        model.classifier[0], model.classifier[3] = nn.Linear(128 * 49, 64), nn.Linear(64, 64)
        model.classifier[6] = nn.Linear(64, 9)
        return model
    if name == "deeplabv3_mobilenet_v3_large":
        backbone = models.mobilenet_v3_large(dilated=True, width_mult=0.25)
        return models.segmentation.deeplabv3._deeplabv3_mobilenetv3(backbone, 9, None)
    options = {"resnet50": {"width_per_group": 8}, "mobilenet_v2": {"width_mult": 0.5}}.get(name, {})
    return models.get_model(name, weights=None, **options)


def filled(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a network in float64 with random values, without its slow initialisation."""
    with torch.device("meta"):
        model = make()
    model = model.to_empty(device="cpu").double().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            fan_in = max(1, tensor[0].numel()) if tensor.dim() > 1 else 4
            tensor.normal_(0, fan_in**-0.5, generator=generator)
            if "var" in name or (tensor.dim() == 1 and name.endswith("weight")):
                tensor.abs_().add_(0.5)
    return model


def outputs_of(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        made = model(images)
    return made["out"] if isinstance(made, dict) else made[0] if isinstance(made, tuple) else made


def off(some: torch.Tensor, others: torch.Tensor) -> float:
    return float((some - others).abs().max() / others.abs().max())


def some_channels(found: Groups, seed: int) -> Keep:
    """Return a random part of every group, at least one channel of each."""
    generator = torch.Generator().manual_seed(seed)
    counts = {name: int(torch.randint(1, size + 1, (), generator=generator)) for name, size in found.sizes.items()}
    return {name: torch.randperm(found.sizes[name], generator=generator)[:count] for name, count in counts.items()}


def deaf(model: nn.Module, found: Groups, keep: Keep) -> Iterator[torch.utils.hooks.RemovableHandle]:
    """Zero the removed channels in the input of every dense layer."""
    alive = torch.ones(sum(found.sizes.values()) + 1, dtype=torch.double)
    for name, group in found.members.items():
        alive[group.span] = 0
        alive[group.first + keep[name]] = 1
    for name, layer in model.named_modules():
        dim = 0 if isinstance(layer, nn.ConvTranspose2d) else 1
        heard = found.axes.get((f"{name}.weight", dim))
        if heard is not None and isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            gain = (
                alive[heard]
                .prod(0)
                .repeat(getattr(layer, "groups", 1))
                .view(1, -1, *(1,) * (0 if isinstance(layer, nn.Linear) else 2))
            )
            yield layer.register_forward_pre_hook(lambda _, given, gain=gain: (given[0] * gain,))


def check(model: nn.Module, images: torch.Tensor, seed: int) -> Groups:
    """Check all edits on a model, and return its groups."""
    found = groups(model, images)
    expected = outputs_of(model, images)
    generator = torch.Generator().manual_seed(seed)
    order = {name: torch.randperm(size, generator=generator) for name, size in found.sizes.items()}
    assert off(outputs_of(permute(model, found, order), images), expected) <= SAME
    if not found.sizes:  # every layer has a reason for which its channels are fixed
        assert found.fixed
        return found
    keep = some_channels(found, seed)
    cut_outputs = outputs_of(cut(model, found, keep), images)
    assert off(cut_outputs, expected) > 1e-6, "a cut that changes nothing tests nothing"
    assert off(outputs_of(mask(model, found, keep), images), cut_outputs) <= SAME
    handles = list(deaf(model, found, keep))
    assert off(outputs_of(model, images), cut_outputs) <= SAME
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_random_networks_compute_the_same(seed: int):
    images = torch.randn(2, 3, 12, 12, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    check(filled(lambda: Random(seed), seed), images, seed)


class Grouped(nn.Module):
    """Grouped convolutions of different numbers of blocks, with a sum, a gate and a depthwise one between."""

    def __init__(self, blocks: tuple[int, int]) -> None:
        super().__init__()
        some, others = blocks
        self.a, self.b = nn.Conv2d(3, 24, 3), nn.Conv2d(24, 24, 3, padding=1, groups=some)
        self.deep, self.c = nn.Conv2d(24, 24, 3, groups=24), nn.Conv2d(24, 48, 1, groups=others)
        self.norm, self.gate = nn.BatchNorm2d(24), nn.Linear(24, 24)
        self.head = nn.Linear(48, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = self.deep(x + self.norm(self.b(x)).relu())
        x = x * self.gate(x.mean((2, 3))).sigmoid()[:, :, None, None]
        return self.head(self.c(x).relu().mean((2, 3)))


@pytest.mark.parametrize(
    ("blocks", "sizes"),
    [((2, 2), [2, 12, 24]), ((4, 2), [2, 6, 24]), ((4, 12), [2, 4, 4]), ((6, 24), [2, 6])],
)
def test_grouped_convolutions_lose_blocks_and_places(blocks: tuple[int, int], sizes: list[int]):
    model = filled(lambda: Grouped(blocks), 0)
    images = torch.randn(2, 3, 12, 12, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    assert sorted(check(model, images, 0).sizes.values()) == sizes


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_an_expanded_network_has_the_outputs_of_the_small_one(seed: int):
    images = torch.randn(2, 3, 12, 12, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    small_of, big = filled(lambda: Random(seed), seed), filled(lambda: Random(seed), seed + 1)
    found = groups(big, images)
    keep = some_channels(found, seed)
    small = cut(small_of, found, keep)
    grown = expand(small, mask(big, found, keep), found, keep)
    assert off(outputs_of(grown, images), outputs_of(small, images)) <= SAME


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_lifting_is_the_adjoint_of_cutting(seed: int):
    """<restrict(x), y> = <x, lift(y)> for any x of the big model's shapes and y of the small one's."""
    model = filled(lambda: Random(seed), seed)
    found = groups(model, torch.randn(1, 3, 12, 12, dtype=torch.double))
    keep = some_channels(found, seed)
    small = cut(model, found, keep)
    big = {name: torch.randn_like(tensor) for name, tensor in model.named_parameters()}
    little = {name: torch.randn_like(tensor) for name, tensor in small.named_parameters()}
    restricted, lifted = restrict(big, found, keep), lift(little, found, keep)
    ours = sum(float((restricted[name] * little[name]).sum()) for name in little)
    theirs = sum(float((big[name] * lifted[name]).sum()) for name in big)
    assert ours == pytest.approx(theirs, rel=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(restrict(lifted, found, keep).values(), little.values(), strict=True))
    where = coordinates(vector.layout_of(model), found, keep)
    assert vector.read(model)[where].tobytes() == vector.read(small).tobytes()


def narrow_resnext(groups: int = 8) -> nn.Module:
    stages = residual.stages_of(partial(residual.AggregatedBlock, groups=groups, group_width=64), 16, [32, 64], 2)
    return residual.StagedClassifier(residual.conv_norm(3, 16, 3), stages, nn.Identity(), 64, 5)


def narrow_residual(attention: residual.Attention) -> nn.Module:
    stem = nn.Sequential(residual.conv_norm(3, 16, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
    stages = residual.stages_of(partial(residual.BasicBlock, attention=attention), 16, [16, 32, 64, 128], 2)
    return residual.StagedClassifier(stem, stages, nn.Identity(), 128, 5)


def short_transformer() -> nn.Module:
    network = library.models().VisionTransformer(
        image_size=224, patch_size=16, num_layers=2, num_heads=6, hidden_dim=96, mlp_dim=384, num_classes=5
    )
    return library.Published(network, ZOO["vit_small"].input)


def narrow_mobilenet(name: str) -> nn.Module:
    network = getattr(library.models(), name)(width_mult=0.5, num_classes=5)
    return library.Published(network, ZOO[name].input)


# Networks whose weights take long to build or to edit, with fewer blocks and channels.
NARROW = {
    "wrn_28_10": lambda: residual.wide_residual(5, depth=10, width=2),
    "resnext29": narrow_resnext,
    "resnext29_2x64d": partial(narrow_resnext, groups=2),
    "vit_small": short_transformer,
    "yolov3": lambda: detection.Yolo(5, width=4),
    "vgg16_cifar": lambda: DeepClassifier(5, width=16),
    "senet18": partial(narrow_residual, residual.SqueezeExcite),
    "resnet18_cbam": partial(narrow_residual, residual.Cbam),
    "mobilenet_v3_large": partial(narrow_mobilenet, "mobilenet_v3_large"),
}
OF_TORCHVISION = {*TORCHVISION, "deeplabv3_mobilenet"}  # covered by the next test


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ZOO if name not in OF_TORCHVISION])
def test_the_zoo_computes_the_same(name: str):
    make = NARROW.get(name, lambda: build(name, 5, seed=0))
    found = check(filled(make, 0), torch.randn(1, 3, 32, 32, dtype=torch.double), 0)
    assert bool(set(found.sizes.values()) - {1}) == (name != "tiny_residual_gn")  # its group norms fix all channels


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISION)
def test_networks_of_torchvision_compute_the_same(name: str):
    images = torch.randn(1, 3, 48, 48, dtype=torch.double)
    found = check(filled(lambda: torchvision_model(name), 0), images, 0)
    assert len(found.sizes) == TORCHVISION[name]


@pytest.mark.slow
def test_shuffled_channels_are_fixed():
    found = groups(torchvision_model("shufflenet_v2_x0_5"), torch.randn(1, 3, 32, 32))
    assert found.fixed["stage2.0.branch1.2"] == "layer 'stage2.0' divides its channels by position (view)"
    assert {"stage2.1.branch2.0", "conv1.0"} <= found.sizes.keys()


@pytest.mark.slow
def test_a_residual_stage_is_one_group():
    found = groups(torchvision_model("resnet18"), torch.randn(1, 3, 32, 32))
    assert found.members["conv1"].layers == ("conv1", "layer1.0.conv2", "layer1.1.conv2")
    assert found.members["layer2.0.conv2"].layers == ("layer2.0.conv2", "layer2.0.downsample.0", "layer2.1.conv2")


def test_the_page_runs_as_it_is_written(capsys: pytest.CaptureFixture):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    sizes, fixed = capsys.readouterr().out.splitlines()
    assert sizes.startswith("{'first.0': 16, 'deep.0.0': 32, ")
    assert fixed == "{'head': 'they are outputs of the model'}"


def load_coverage() -> ModuleType:
    """Return the benchmark that writes the table of the page."""
    file = ROOT / "benchmarks" / "surgery_coverage.py"
    spec = importlib.util.spec_from_file_location("surgery_coverage", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # required by dataclasses
    spec.loader.exec_module(module)
    return module


def page_rows() -> dict[str, list[str]]:
    (block,) = re.findall(r"<!-- surgery coverage -->\n(.*?)<!-- end of", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.strip().splitlines()[2:]]
    return {network: cells for network, *cells in rows}


def test_on_the_page_every_cut_is_exact_and_trains_and_no_group_is_missing():
    rows = page_rows()
    assert {"googlenet", "inception_v3", "resnet50", "swin_t", "vit_b_16"} <= rows.keys()
    for network, (groups_, theirs, off, their_off, trains, _, note) in rows.items():
        assert float(off) < 1e-4 and trains == "yes", network
        fewer = theirs.isdigit() and int(theirs) > int(groups_)
        exact = fewer and their_off != "nan" and float(their_off) < 1e-3
        assert not exact, f"{network}: never fewer groups"
        assert note == ("theirs is another network" if fewer else ""), network


@pytest.mark.slow
@pytest.mark.parametrize("name", ["googlenet", "squeezenet1_1"])
def test_the_page_holds_the_measurements_of_the_benchmark(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # scripts import modules of their folder
    coverage = load_coverage()
    row = coverage.measure(name, compare=False)
    now = [cell for pair in zip(coverage.cells(row.ours), ("–",) * 3, strict=True) for cell in pair]
    page = page_rows()[name]
    assert (now[0], now[4]) == (page[0], page[4])
    assert row.ours.difference < 1e-5
    assert coverage.table([row]).count("\n") == 3
