"""The settings that a run makes on its host."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from driftlab.actors.cluster import ONE_HEAP
from driftlab.platform.sim.host import GARBAGE, in_batch

CHILD = """
import resource, sys, threading
import numpy as np
from driftlab.platform.sim.host import keep_freed_memory

def churn():
    for _ in range(50):
        blocks = [np.ones(int(sys.argv[2]) * 2**17) for _ in range(4)]
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


GARBAGE_CHILD = """
import gc, weakref
from driftlab.platform.sim.host import rare_garbage_searches

class Node:
    pass

def is_searched(one):
    return any(found is one for found in gc.get_objects())

def cycle():
    node = Node()
    node.own = node
    return weakref.ref(node)

before = [Node()]
usual = gc.get_threshold()
with rare_garbage_searches():
    print(gc.get_threshold(), is_searched(before))
    gone, many = cycle(), [[number] for number in range(2 * gc.get_threshold()[0])]
    print(is_searched(many[-1]), gone() is None)
print(gc.get_threshold() == usual, is_searched(before), gc.get_freeze_count())
gc.freeze()
frozen = gc.get_freeze_count()
others = [Node() for _ in range(1000)]
with rare_garbage_searches():
    print(gc.get_threshold(), is_searched(others[-1]))
print(gc.get_threshold() == usual, gc.get_freeze_count() <= frozen)
"""


def faults(how: str, mebibytes: int = 8, **environment: str) -> int:
    command, given = [sys.executable, "-c", CHILD, how, str(mebibytes)], {**os.environ, **environment}
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=given).stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the page faults of glibc's heap are counted")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    assert faults("keep") < 1000 < faults("leave")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the page faults of glibc's heap are counted")
def test_threads_with_one_heap_use_large_blocks_again() -> None:
    """The heap of a single thread has parts of at most 64 MiB; an empty part goes back to the system."""
    assert faults("keep", 16, **ONE_HEAP) < 1000 < faults("keep", 16, MALLOC_ARENA_MAX="8")


def test_a_run_searches_for_garbage_rarely_and_restores_the_settings_of_its_process() -> None:
    """A process that has set objects aside itself keeps them, and the run adds none to them."""
    done = subprocess.run([sys.executable, "-c", GARBAGE_CHILD], capture_output=True, text=True, check=True)
    first, found, after, others, last = done.stdout.splitlines()
    assert first == f"{GARBAGE} False"
    assert found == "True True"
    assert after == "True True 0"
    assert others == f"{GARBAGE} True"
    assert last == "True True"


@pytest.mark.slow
def test_an_actor_searches_for_garbage_rarely_and_not_among_modules() -> None:
    command = (
        "import gc; from driftlab.actors.actors import NodeHostActor; "
        "NodeHostActor('one', {'cell': 'driftlab.platform.lab.parts:PartNode'}, {}); "
        "print(gc.get_threshold(), gc.get_freeze_count() > 10 * len(gc.get_objects()))"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{GARBAGE} True"


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
