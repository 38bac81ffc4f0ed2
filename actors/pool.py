"""The actors of a run: shared by all cells, started when first needed, refused when they do not fit."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from driftlab.actors.actors import ACTORS
from driftlab.actors.cluster import PROCESS_BYTES, Cluster, ClusterConfig
from driftlab.errors import RequestError, RunError
from driftlab.platform.sim.session import Kind

GIB = 2**30
CPUS_PER_ACTOR = 0.001  # waiting actors reserve almost nothing; above zero, or Ray would not spread them
START_S = 60.0  # to start one actor on a busy machine
RACKED: frozenset[Kind] = frozenset({"device", "application"})
ON_GPU: frozenset[Kind] = frozenset({"application", "teacher", "learner", "builder"})
WARM: tuple[Kind, ...] = ("learner", "application", "device", "teacher")  # needed by every cell, slowest first


@dataclass(eq=False)
class ActorSlot:
    """An actor and how many nodes it hosts."""

    name: str
    kind: Kind
    actor: Any
    ready: Any  # answers when the actor has started
    born: float = field(default_factory=time.monotonic)
    nodes: int = 0


class Pool:
    """Assigns every node to an actor; the assignment never affects results."""

    def __init__(self, config: ClusterConfig, cluster: Cluster, classes: Mapping[Kind, str]) -> None:
        self._config, self._cluster, self._classes = config, cluster, classes
        self.workers = config.workers or cluster.cpus
        self._slots: dict[str, list[ActorSlot]] = {}  # by the actor's class
        self._numbers: dict[str, itertools.count[int]] = {}
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start the first actor of each kind, so that their imports run at the same time."""
        with self._lock:
            for kind in WARM:
                self._start(kind)

    def take(self, kind: Kind) -> ActorSlot:
        """Return the least loaded actor for one more node, or start another."""
        with self._lock:
            slots = self._slots.get(_label(kind), [])
            best = min(slots, key=lambda slot: slot.nodes, default=None)
            slot = best if best is not None and self._suffices(kind, best, len(slots)) else self._start(kind)
            slot.nodes += 1
            return slot

    def give(self, slot: ActorSlot) -> None:
        """Release the place of a node."""
        with self._lock:
            slot.nodes -= 1

    def twin(self, slot: ActorSlot) -> ActorSlot:
        """Start an actor for one session only, apart from the shared ones."""
        with self._lock:
            twin = self._start(slot.kind, shared=False)
            twin.nodes = slot.nodes
            return twin

    def retire(self, slot: ActorSlot) -> None:
        """End the actor of one session."""
        self._cluster.run(lambda: ray.kill(slot.actor))

    def check(self, slot: ActorSlot) -> None:
        """Raise if an actor cannot start."""
        if time.monotonic() - slot.born < START_S or ray.wait([slot.ready], timeout=0)[0]:
            return
        wanted = {"CPU": CPUS_PER_ACTOR} | ({"GPU": self._gpus(slot.kind)} if self._gpus(slot.kind) else {})
        free = self._cluster.run(ray.available_resources)
        lacking = [
            f"{name} ({free.get(name, 0):g} free, {need:g} asked)"
            for name, need in wanted.items()
            if free.get(name, 0) < need
        ]
        if lacking:
            raise RunError(
                f"Actor {slot.name} cannot start: the cluster lacks {', '.join(lacking)}. Ask for less, or wait."
            )

    def _suffices(self, kind: Kind, best: ActorSlot, count: int) -> bool:
        if kind in RACKED and self._config.rack is not None:
            return best.nodes < self._config.rack
        return best.nodes == 0 or count >= self._limit(kind)

    def _limit(self, kind: Kind) -> int:
        if kind == "recorder":
            return 1
        share = self._gpus(kind)
        return self.workers if not share else max(1, min(self.workers, int(self._cluster.gpus / share / 3)))

    def _gpus(self, kind: Kind) -> float:
        return self._config.gpus_per_actor if kind in ON_GPU else 0.0

    def _start(self, kind: Kind, *, shared: bool = True) -> ActorSlot:
        self._check_memory()
        label = _label(kind)
        number = next(self._numbers.setdefault(label, itertools.count()))
        slot = self._create(kind, f"{label}-{number}")
        if shared:
            self._slots.setdefault(label, []).append(slot)
        return slot

    def _create(self, kind: Kind, name: str) -> ActorSlot:
        """Let Ray start an actor; the actor reports later that it is ready."""
        classes = {one: path for one, path in self._classes.items() if _label(one) == _label(kind)}
        options = {
            "name": name,
            "num_cpus": CPUS_PER_ACTOR,
            "num_gpus": self._gpus(kind),
            "max_restarts": -1,
            "max_task_retries": 0,  # the session repeats calls: Ray would do it out of order
            "scheduling_strategy": "SPREAD",
        }
        if kind == "recorder":  # it writes into the run's folder on the driver's machine
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            options |= {"num_cpus": 0, "scheduling_strategy": here}
        actor = self._cluster.run(lambda: ACTORS[kind].options(**options).remote(name, classes))
        return ActorSlot(name, kind, actor, actor.ready.remote())

    def _check_memory(self) -> None:
        """Refuse an actor that would make the machine swap."""
        running = sum(map(len, self._slots.values()))
        most = max(8, self._cluster.memory_bytes // PROCESS_BYTES)
        if running >= most:
            raise RequestError(
                f"{running + 1} actors need about {(running + 1) * PROCESS_BYTES / GIB:.1f} GiB, and "
                f"{self._cluster.memory_bytes / GIB:.1f} GiB are free: put more devices on each actor (a larger "
                "--rack), or leave --rack out."
            )


def _label(kind: Kind) -> str:
    """Return the dashboard's name for the actors of a kind; learners and builders share theirs."""
    return str(ACTORS[kind].__ray_metadata__.class_name)
