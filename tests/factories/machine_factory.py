"""Policies and jobs for tests of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import simpy

from driftlab.platform.core.records import Need, Share
from driftlab.platform.world.machine import Machine


def fair(machine: Machine, reason: str) -> Mapping[str, Share]:
    return dict.fromkeys(machine.works, 1 / len(machine.works)) if machine.works else {}


def seconds(alone_s: float, memory_bytes: int = 0) -> Need:
    return Need({"accelerator": alone_s}, memory_bytes)


class Told:
    """A policy that gives what the test says."""

    def __init__(self, **shares: Share) -> None:
        self.shares: dict[str, Share] = shares
        self.reasons: list[str] = []

    def __call__(self, machine: Machine, reason: str) -> Mapping[str, Share]:
        self.reasons.append(reason)
        return {name: share for name, share in self.shares.items() if name in machine.works}

    def changed(self, machine: Machine, **shares: Share) -> None:
        self.shares.update(shares)
        machine.share_out("window")


def told(**shares: Share) -> tuple[simpy.Environment, Machine, Told]:
    clock, policy = simpy.Environment(), Told(**shares)
    return clock, Machine(clock, policy), policy


def job(
    machine: Machine, name: str, needs: Sequence[Need], ends: dict[str, float], start_s: float = 0.0
) -> Iterator[Any]:
    """Do some needs one after another; `ends` takes the time at which the last one is done."""
    yield machine.clock.timeout(start_s)
    with machine.entered(name) as work:
        yield work.granted
        for need in needs:
            yield from machine.do(work, need)
    ends[name] = machine.clock.now
