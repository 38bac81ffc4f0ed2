"""The WRN-28-10 of the papers on CIFAR-10-C: RobustBench's *Standard*, whose input is from 0 to 1.

python docs/examples/standard_wrn.py Standard.pt standard.safetensors
driftlab run cifar10c.yaml --set student.weights=standard.safetensors
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from driftlab.platform.networks.published.residual import wide_residual

BLOCK = re.compile(r"block(\d)\.layer\.(\d+)\.(\w+)")
IN_BLOCK = {"bn1": "norm", "conv1": "conv", "bn2": "norm2", "conv2": "conv2", "convShortcut": "project"}
OUTSIDE = {"conv1": "stem", "bn1": "last.0", "fc": "head"}


class Standard(torch.nn.Module):
    """A wide residual network with the input of the published weights."""

    task = "classification"
    depth, width = 28, 10

    def __init__(self, classes: int, height: int, width: int) -> None:
        super().__init__()
        self.network = wide_residual(classes, self.depth, self.width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(0.5 + 0.25 * images)  # from -2 .. 2 to 0 .. 1
        return logits


def converted(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the published weights under the names of `Standard`."""
    found = {}
    for name, value in weights.items():
        module, _, field = name.removeprefix("module.").rpartition(".")
        if inside := BLOCK.fullmatch(module):
            module = f"stages.{int(inside[1]) - 1}.{inside[2]}.{IN_BLOCK[inside[3]]}"
        else:
            module = OUTSIDE[module]
        found[f"network.{module}.{field}"] = value
    return found


def main(source: Path, target: Path) -> None:
    """Write the published weights as a file for `student.weights`; a missing or odd one is an error."""
    loaded = torch.load(source, map_location="cpu", weights_only=True)
    model = Standard(10, 32, 32)
    model.load_state_dict(converted(loaded.get("state_dict", loaded)))
    save_file(model.state_dict(), target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
