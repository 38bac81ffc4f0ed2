"""The settings that a run makes on its host."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from driftlab.platform.sim.host import in_batch

CHILD = """
import resource, sys, threading
import numpy as np
from driftlab.platform.sim.host import keep_freed_memory

def churn():
    for _ in range(50):
        blocks = [np.ones(2**20) for _ in range(4)]  # 8 MB each
        del blocks

def count():
    churn()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    churn()
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

if sys.argv[1] == "keep":
    keep_freed_memory()
thread = threading.Thread(target=count)
thread.start()
thread.join()
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", CHILD, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the page faults of glibc's heap are counted")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    assert faults("keep") < 1000 < faults("leave")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other schedulers")
def test_only_processes_started_in_batch_have_batch_scheduling_and_their_priority() -> None:
    policy = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"

    def started() -> list[int]:
        done = subprocess.run([sys.executable, "-c", policy], capture_output=True, text=True, check=True)
        return [int(part) for part in done.stdout.split()]

    before = started()
    with in_batch():
        inside = started()
    assert inside == [os.SCHED_BATCH, before[1]]
    assert started() == before
