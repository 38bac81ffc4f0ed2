"""Run a network on frames, and convert its weights to arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from driftlab.errors import RequestError, RunError
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.digest import digest as digest
from driftlab.platform.networks.tasks.tasks import SEGMENTATION, Task, TaskLabels


def to_input(images: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Convert frames [n, height, width, 3] to normalised input [n, 3, height, width].

    Channels stay last in memory; `memory_format.py` states the reason and the exceptions.
    """
    pixels = (images.astype(np.float32) - np.float32(127.5)) / np.float32(63.75)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def inputs_for(model: nn.Module, images: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Return frames as input on the device of a model."""
    return to_input(images).to(device_of(model))


class FramesThere:
    """Frames as inputs of networks on a device; a GPU gets them all at once, and chooses among them."""

    def __init__(self, images: npt.NDArray[np.uint8], device: str) -> None:
        self._images, self._device = images, device
        self._pixels: torch.Tensor | None = None

    def rows(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return some of the frames as input."""
        if self._device == "cpu":
            return to_input(self._images[rows]).to(self._device)
        if self._pixels is None:
            self._pixels = torch.tensor(self._images, device=self._device)
        chosen = self._pixels[torch.from_numpy(rows).to(self._device)]
        return ((chosen.float() - 127.5) / 63.75).permute(0, 3, 1, 2)  # as `to_input`


def predict(
    model: nn.Module,
    images: npt.NDArray[np.uint8],
    *,
    task: Task = SEGMENTATION,
    batch: int = 32,
    device: str | None = "cpu",
) -> TaskLabels:
    """Return the predictions of all frames, at most `batch` at a time.

    The model moves to the device; None: it stays where it is.
    """
    there = device_of(model)
    if device is not None and device != there:  # to move nothing takes a fifth of the time of a small network
        model.to(torch_device(device))
        there = device
    count, height, width = images.shape[:3]
    predictions = task.blank(count, height, width)
    with evaluating(model), torch.inference_mode():
        for start in range(0, count, batch):
            part = to_input(images[start : start + batch]).to(there)
            predictions[start : start + batch] = task.predictions(model(part), height, width)
    return predictions


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode within this context, then restore the mode of each module.

    Some modules are frozen on purpose.
    """
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def torch_device(name: str) -> torch.device:
    """Return a torch device; refuse one that this computer does not have."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RequestError(f"Unknown torch device '{name}'. Allowed: cpu, cuda, cuda:0, cuda:1, ...") from None
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise RequestError(f"Torch device '{name}' is not available; torch finds {gpus} GPUs. Use 'cpu'.")
    return device


def device_of(model: nn.Module) -> str:
    """Return the device of a model."""
    return str(next((parameter.device for parameter in model.parameters()), torch.device("cpu")))


def state_of(model: nn.Module) -> Weights:
    """Return a copy of the state dict as arrays."""
    return {name: np.array(value.detach().cpu().numpy(), order="C") for name, value in model.state_dict().items()}


def load(model: nn.Module, weights: Weights) -> None:
    """Copy weights into the model; names and shapes must match."""
    try:
        model.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    except RuntimeError as error:
        raise RunError(f"Weights do not belong to this {type(model).__name__}: {error}") from error
