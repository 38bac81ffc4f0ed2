"""Policies and jobs for tests of the processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import simpy

from driftlab.platform.core.records import Share, TaskCost
from driftlab.platform.world.processor import Processor


def fair(processor: Processor, reason: str) -> Mapping[str, Share]:
    return dict.fromkeys(processor.tasks, 1 / len(processor.tasks)) if processor.tasks else {}


def seconds(alone_s: float, memory_bytes: int = 0) -> TaskCost:
    return TaskCost({"accelerator": alone_s}, memory_bytes)


class FixedPolicy:
    """A policy with the shares that a test sets."""

    def __init__(self, **shares: Share) -> None:
        self.shares: dict[str, Share] = shares
        self.reasons: list[str] = []

    def __call__(self, processor: Processor, reason: str) -> Mapping[str, Share]:
        self.reasons.append(reason)
        return {name: share for name, share in self.shares.items() if name in processor.tasks}

    def changed(self, processor: Processor, **shares: Share) -> None:
        self.shares.update(shares)
        processor.share_out("window")


def make_processor(**shares: Share) -> tuple[simpy.Environment, Processor, FixedPolicy]:
    clock, policy = simpy.Environment(), FixedPolicy(**shares)
    return clock, Processor(clock, policy), policy


def job(
    processor: Processor, name: str, needs: Sequence[TaskCost], ends: dict[str, float], start_s: float = 0.0
) -> Iterator[Any]:
    """Run jobs in sequence; `ends` receives the end of the last one."""
    yield processor.clock.timeout(start_s)
    with processor.entered(name) as work:
        yield work.granted
        for need in needs:
            yield from processor.run_job(work, need)
    ends[name] = processor.clock.now
