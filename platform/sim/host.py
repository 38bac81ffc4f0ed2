"""Settings and properties of the host that a run depends on."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from driftlab.errors import RequestError
from driftlab.platform.core.records import Rows

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
KEEP_BYTES = 2**30  # of freed memory, before any goes back to the system
HEAP_BYTES = 2**25  # the largest block that may come from the heap
GARBAGE = (20_000, 5, 2)  # new objects until a search for garbage; searches until one of older objects, and of all


def usable_cores() -> int:
    """Count the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_one_thread() -> None:
    """Use one thread: parallelism is across nodes, and the number of threads changes results."""
    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)


def keep_freed_memory() -> None:
    """Keep freed memory in the process: a training step frees and allocates the same megabytes repeatedly.

    On threads other than the first, as under Ray, glibc would return them each time; the page faults that bring them
    back were measured to take a tenth of the training time and a third of the inference time.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)
        mallopt(M_MMAP_THRESHOLD, HEAP_BYTES)


def search_garbage_rarely() -> None:
    """Search for garbage rarely, and only among objects that are created from now on.

    By default Python also searches objects that stay, such as torch's modules. This took a tenth of the time of a part
    of a fleet or more, and a third of the time of a server's prediction.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE)


@contextmanager
def rare_garbage_searches() -> Iterator[None]:
    """Search for garbage rarely until the block ends."""
    before, others = gc.get_threshold(), gc.get_freeze_count()
    if others:  # objects that the process has set aside itself: further ones would stay with them
        gc.set_threshold(*GARBAGE)
    else:
        search_garbage_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not others:
            gc.unfreeze()


@contextmanager
def in_batch() -> Iterator[None]:
    """Use Linux's batch policy, so that this thread and its children preempt no other threads.

    Under Ray there are more processes than processors, and after each switch the caches are full of another one's data.
    Longer time slices make two workers still faster, but they are not requested: the user's other programs then got
    1 % of a processor and waited for 20 s.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield  # keep a policy that was chosen explicitly
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def with_host(rows: Rows, started_s: float) -> Rows:
    """Add the time and peak memory of this process to the row of a finished cell."""
    (run,) = rows["runs"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    host = {"host_seconds": [time.perf_counter() - started_s], "host_peak_memory_bytes": [peak]}
    return {**rows, "runs": [{**run, **host}]}


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
