"""The memory format of a network's input on a CPU; no other module sets it.

`predict.to_input` returns channels-last tensors: most networks of the zoo then take .7 to .95 of the time of contiguous
tensors. The networks below take 1.1 to 1.9 times as long, so their input is made contiguous. Measured with
`benchmarks/memory_format.py` on one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

CONTIGUOUS = frozenset(
    (
        "deeplabv3_mobilenet", "resnet18", "resnet18_cbam", "resnet50", "senet18", "vgg16",
        "tiny_residual_gn",  # torch 2.13 ends the process in the backward pass of a channels-last group norm whose
    )  # input has no gradient, as where only scales and shifts learn
)  # fmt: skip


def choose_format(name: str, model: nn.Module) -> nn.Module:
    """Return the network with the faster memory format for its name, set in place."""
    if name in CONTIGUOUS:
        model.register_forward_pre_hook(_make_contiguous)
    return model


def _make_contiguous(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    images, *others = inputs
    return images.contiguous(), *others
