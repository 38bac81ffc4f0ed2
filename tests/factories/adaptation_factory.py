"""Networks and labels for the contract of the adaptation family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from driftlab.platform.adaptation.base import Batch
from driftlab.platform.core.registry import FAMILIES
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.module_utils import batch_norms
from driftlab.platform.networks.predict import device_of, to_input
from driftlab.platform.networks.tasks import boxes
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION, Task, TaskLabels
from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames

CLASSES, HEIGHT, WIDTH = 4, 16, 24
BRIEF: dict[str, dict[str, Any]] = {
    "iada": {"source_steps": 10},  # 400 by default, for every network that is prepared
    "cotta": {"augmentations": 2},  # 4 by default, for every step
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, BRIEF.get(name, {})) for name in sorted(FAMILIES["adaptation"])),
    ("adabn", {"variant": "batch"}),
    ("adabn", {"variant": "batch", "predict_on": "batch"}),
    ("adabn", {"variant": "alpha", "predict_on": "batch"}),
    ("adabn", {"variant": "full", "stream_batch": 2}),
    ("onda", {"predict_on": "batch", "stream_batch": 3}),
    ("tent", {"variant": "run"}),
    ("tent", {"predict_on": "frame", "optimiser": "sgd"}),
    ("shot", {"relabel": 1, "batch": 3}),
    ("elasticdnn", {"objective": "entropy", "select": "topfrac", "share": 0.2}),
    ("eata", {"entropy_margin": 1.0, "redundancy_margin": 1.0}),
    ("sar", {"entropy_margin": 1.0, "reset_threshold": 1.0}),
    ("cotta", {"variant": "edgebench", "views": "mirrored", **BRIEF["cotta"]}),
    ("rotta", {"capacity": 4, "every_frames": 3}),
    ("note", {"capacity": 4, "every_frames": 3}),
    ("note", {"capacity": 4, "every_frames": 3, "variant": "lite"}),
    ("t3a", {"predict_on": "frame", "features_per_class": 2}),
    ("neo", {"predict_on": "frame", "decay": 0.5}),
    ("lame", {"affinity": "rbf"}),
    ("rdumb", {"member": "tent", "member_params": (), "reset_steps": 1}),
    ("asr", {"member": "tent", "start": 1.0}),
    ("snap", {"member": "tent", "every_batches": 2, "confidence": 0.0, "capacity": 5}),
    ("sparse", {"member": "adabn", "every_batches": 2, "budget": 2}),
]


class DropoutNet(nn.Module):
    """A network as in torchvision: blocks, average, dropout before the head, and one unused part."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout2d(0.3)
        )
        self.auxiliary = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5))
        self.blocks[0].weight.requires_grad_(False)  # as where the first layers are frozen
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.pool(self.blocks(x)).flatten(1))
        return logits


def dropping() -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        return DropoutNet()


def without_norms() -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
        )


NETWORKS: Mapping[str, tuple[Task, Callable[[], nn.Module]]] = {
    "tiny": (SEGMENTATION, lambda: build("tiny", CLASSES, seed=0)),
    "tiny_classifier": (CLASSIFICATION, lambda: build("tiny_classifier", CLASSES, seed=0)),
    "tiny_detector": (DETECTION, lambda: build("tiny_detector", CLASSES, seed=0)),
    "dropping": (CLASSIFICATION, dropping),
    "without_norms": (CLASSIFICATION, without_norms),
}


def labels_of(task: Task, frames: int, rng: np.random.Generator) -> TaskLabels:
    if task is SEGMENTATION:
        return rng.integers(0, CLASSES, (frames, HEIGHT, WIDTH), dtype=np.uint8)
    if task is CLASSIFICATION:
        return rng.integers(0, CLASSES, frames, dtype=np.uint8)
    box = np.array([[0, 2, 2, 14, 12]], dtype=np.float32)
    return boxes.stack([np.add(box, [[n % CLASSES, 0, 0, 4, 2]]) for n in range(frames)])


def batch_of(task: Task, seed: int = 0, frames: int = 4, *, labelled: bool) -> Batch:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (frames, HEIGHT, WIDTH, 3), dtype=np.uint8)
    return Batch(images, labels_of(task, frames, rng) if labelled else None, rng, task)


def state_of(model: nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


def content(value: Any) -> Any:
    """Split a state into values that can be compared."""
    if is_dataclass(value):
        return [(field.name, content(getattr(value, field.name))) for field in fields(value)]
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return [(key, content(each)) for key, each in value.items()]
    return [content(each) for each in value] if isinstance(value, tuple | list) else value


def settings_of(model: nn.Module) -> list[Any]:
    """All that a member may turn while it works and must turn back."""
    norms = [(norm.momentum, norm.track_running_stats) for norm in batch_norms(model).values()]
    learning = [parameter.requires_grad for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    return [norms, learning, modes, hooks]


def prepared(member: Any, model: nn.Module, *, go_on: Any = None) -> Any:
    """Prepare a member with its summary of a small source, where it makes one."""
    return member.prepare(model, pack_of(member, model), go_on=go_on)


def pack_of(member: Any, model: nn.Module) -> Any:
    if not member.has_source_summary:
        return {}
    rng = np.random.default_rng(9)
    images = rng.integers(0, 256, (12, HEIGHT, WIDTH, 3), dtype=np.uint8)
    with torch.no_grad():
        outputs = model(to_input(images[:1]).to(device_of(model)))
    task = CLASSIFICATION if outputs.dim() == 2 else SEGMENTATION if outputs.shape[1] == CLASSES else DETECTION
    labelled = LabelledFrames(images, labels_of(task, 12, rng))
    return member.summarise_source(model, DataSplits(task, CLASSES, labelled, labelled, labelled))
