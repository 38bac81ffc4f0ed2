"""Published weights of WRN predict the same after conversion, from driftlab's input."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from driftlab.platform.networks.predict import to_input

SCRIPT = Path(__file__).parents[2] / "docs/examples/standard_wrn.py"
WIDTHS, CLASSES = (16, 32, 64, 128), 10  # of WRN-10-2


class PublishedBlock(nn.Module):
    """A block with the names and the order of operations of the published network."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.convShortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        x = self.bn1(x).relu()
        return self.convShortcut(x) + self.conv2(self.bn2(self.conv1(x)).relu())


class PublishedNetwork(nn.Module):
    """A small network of these blocks, which expects pixels from 0 to 1."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        for number in (1, 2, 3):
            block = nn.Module()
            block.layer = nn.Sequential(PublishedBlock(WIDTHS[number - 1], WIDTHS[number], 1 + (number > 1)))
            setattr(self, f"block{number}", block)
        self.bn1, self.fc = nn.BatchNorm2d(WIDTHS[-1]), nn.Linear(WIDTHS[-1], CLASSES)

    def forward(self, x):
        x = self.conv1(x)
        for block in (self.block1, self.block2, self.block3):
            x = block.layer(x)
        return self.fc(F.avg_pool2d(self.bn1(x).relu(), 8).flatten(1))


@pytest.mark.parametrize("wrapped", [True, False])
def test_published_weights_predict_the_same(tmp_path: Path, monkeypatch, wrapped: bool):
    script = runpy.run_path(str(SCRIPT))
    small = script["Standard"]
    monkeypatch.setattr(small, "depth", 10)
    monkeypatch.setattr(small, "width", 2)
    published = PublishedNetwork().train()
    images = np.random.default_rng(0).integers(0, 256, (8, 4, 4, 3), dtype=np.uint8).repeat(8, 1).repeat(8, 2)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    published(pixels)  # norms have statistics other than those of the start
    published.eval()
    weights = published.state_dict()
    named = {"state_dict": {f"module.{name}": one for name, one in weights.items()}} if wrapped else weights
    torch.save(named, tmp_path / "Standard.pt")
    script["main"](tmp_path / "Standard.pt", tmp_path / "standard.safetensors")
    model = small(CLASSES, 32, 32).eval()
    model.load_state_dict(load_file(tmp_path / "standard.safetensors"))
    with torch.no_grad():
        expected, found = published(pixels), model(to_input(images))
    assert torch.allclose(found, expected, atol=1e-5)
    assert expected.std(dim=0).max() > 1e-4  # frames differ
