"""What this machine has, as far as a run depends on it."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from driftlab.errors import RequestError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
KEEP_BYTES = 2**30  # of freed memory, before any goes back to the system
HEAP_BYTES = 2**25  # the largest block that may come from the heap
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # Linux's numbers of the call, for which glibc has no name before 2.41
SLICE_S = 0.04  # the usual one is 3 ms


def use_one_thread() -> None:
    """Compute with one thread here: parallelism is across nodes, and the number of threads changes results."""
    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)


def keep_freed_memory() -> None:
    """Have freed memory wait for its next use: a training step frees and wants the same megabytes over and over.

    On a thread that is not the first, as under Ray, glibc would return them each time; the page faults that bring them
    back were measured to take a tenth of the training time and a third of the inference time.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)
        mallopt(M_MMAP_THRESHOLD, HEAP_BYTES)


@contextmanager
def long_slices() -> Iterator[None]:
    """Have this thread and all that it starts compute for long at a time, and wake up without pushing others aside.

    Under Ray there are more processes than processors, and after each switch the caches are full of another one's data.
    Two workers were measured to be 5 % faster for it. Systems that do not know the call go on as they are.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield  # whoever chose another policy has reasons
        return
    _schedule(os.SCHED_BATCH, SLICE_S)
    try:
        yield
    finally:
        _schedule(os.SCHED_OTHER, 0.0)


def _schedule(policy: int, slice_s: float) -> None:
    """Ask for a policy and the length of a slice (0: the usual one); kernels before 6.12 take the policy alone."""
    number = SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)  # it would be set as well
    wish = struct.pack("IIQiIQQQ", 48, policy, 0, nice, 0, round(slice_s * 1e9), 0, 0)  # struct sched_attr
    ctypes.CDLL(None).syscall(number, 0, wish, 0)


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
