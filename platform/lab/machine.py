"""What this machine has, as far as a run depends on it."""

from __future__ import annotations

from driftlab.errors import RequestError


def use_one_thread() -> None:
    """Compute with one thread here: parallelism is across nodes, and the number of threads changes results."""
    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)


def gpus() -> int:
    """Count this machine's NVIDIA GPUs; a machine without their driver has none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def check_torch_device(torch_device: str) -> None:
    """Refuse a GPU that this machine does not have."""
    kind, _, index = torch_device.partition(":")
    found = gpus() if kind == "cuda" else 0
    if kind == "cuda" and int(index or 0) >= found:
        raise RequestError(
            f"compute.torch_device is '{torch_device}' and this machine has {found} GPUs; "
            "use cpu, or --address of a cluster that has one."
        )
