"""The memory format in which a network computes on a CPU; this is the one place where it is chosen.

`predict.to_input` makes channels-last tensors: with them most networks of the zoo take .7 to .95 of the time that they
take with contiguous ones. Those below take 1.1 to 1.9 times as long, so their input is made contiguous. Both were
measured with `benchmarks/memory_format.py` on one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

CONTIGUOUS = frozenset(("deeplabv3_mobilenet", "resnet18", "resnet18_cbam", "resnet50", "senet18", "vgg16"))


def choose_format(name: str, model: nn.Module) -> nn.Module:
    """Make a network compute in the memory format that was measured to be faster for its name."""
    if name in CONTIGUOUS:
        model.register_forward_pre_hook(_make_contiguous)
    return model


def _make_contiguous(model: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    images, *others = given
    return images.contiguous(), *others
