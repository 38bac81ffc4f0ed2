"""The actors of a run: shared by all cells, started on demand, within the free memory."""

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
CPUS_PER_ACTOR = 0.001  # actors mostly wait, so reserve little; with 0, Ray would not spread them over computers
START_TIMEOUT_S = 60.0  # for one actor to start on a busy computer
RACKED: frozenset[Kind] = frozenset({"device", "application"})
ON_GPU: frozenset[Kind] = frozenset({"application", "teacher", "learner", "builder"})
WARM: tuple[Kind, ...] = ("learner", "application", "device", "teacher")  # used by every cell; slowest to start first


@dataclass(eq=False)
class ActorSlot:
    """An actor and the number of nodes that it hosts."""

    name: str
    kind: Kind
    actor: Any
    ready: Any  # reference that is available when the actor has started
    born: float = field(default_factory=time.monotonic)
    nodes: int = 0


class Pool:
    """Assigns each node to an actor; the assignment never affects results."""

    def __init__(self, config: ClusterConfig, cluster: Cluster, classes: Mapping[Kind, str]) -> None:
        self._config, self._cluster, self._classes = config, cluster, classes
        self.workers = config.workers or cluster.cpus
        self._slots: dict[str, list[ActorSlot]] = {}  # by the actor's class
        self._numbers: dict[str, itertools.count[int]] = {}
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start the first actor of each kind, so that they import in parallel."""
        with self._lock:
            for kind in WARM:
                self._start(kind)

    def take(self, kind: Kind) -> ActorSlot:
        """Return the actor of a new node: the least loaded one, or a new one within the limits."""
        with self._lock:
            slots = self._slots.get(_label(kind), [])
            best = min(slots, key=lambda slot: slot.nodes, default=None)
            slot = best if best is not None and self._suffices(kind, best, len(slots)) else self._start(kind)
            slot.nodes += 1
            return slot

    def give(self, slot: ActorSlot) -> None:
        """Remove one node from an actor's count."""
        with self._lock:
            slot.nodes -= 1

    def twin(self, slot: ActorSlot) -> ActorSlot:
        """Start an actor that no other session uses, with the nodes of a shared one."""
        with self._lock:
            twin = self._start(slot.kind, shared=False)
            twin.nodes = slot.nodes
            return twin

    def retire(self, slot: ActorSlot) -> None:
        """Kill an actor that `twin` started."""
        self._cluster.run(lambda: ray.kill(slot.actor))

    def check(self, slot: ActorSlot) -> None:
        """Raise RunError if an actor has not started in time and the cluster lacks resources for it."""
        if time.monotonic() - slot.born < START_TIMEOUT_S or ray.wait([slot.ready], timeout=0)[0]:
            return
        required = {"CPU": CPUS_PER_ACTOR} | ({"GPU": self._gpus(slot.kind)} if self._gpus(slot.kind) else {})
        free = self._cluster.run(ray.available_resources)
        lacking = [
            f"{name} ({free.get(name, 0):g} free, {amount:g} required)"
            for name, amount in required.items()
            if free.get(name, 0) < amount
        ]
        if lacking:
            raise RunError(
                f"Actor {slot.name} cannot start: the cluster lacks {', '.join(lacking)}. Reduce --workers or "
                "compute.gpus_per_actor, or wait."
            )

    def _suffices(self, kind: Kind, best: ActorSlot, count: int) -> bool:
        if kind in RACKED and (most := self._config.devices_per_actor) is not None:
            return best.nodes < most
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
        """Start an actor without waiting for it."""
        classes = {one: path for one, path in self._classes.items() if _label(one) == _label(kind)}
        options = {
            "name": f"{self._config.run}/{name}",  # the dashboard shows it
            "num_cpus": CPUS_PER_ACTOR,
            "num_gpus": self._gpus(kind),
            "max_restarts": -1,
            "max_task_retries": 0,  # the session repeats calls in order; Ray would not
            "scheduling_strategy": "SPREAD",
        }
        if kind == "recorder":  # it writes to the run's folder, which is on the driver's computer
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            options |= {"num_cpus": 0, "scheduling_strategy": here}
        actor = self._cluster.run(lambda: ACTORS[kind].options(**options).remote(name, classes))
        return ActorSlot(name, kind, actor, actor.ready.remote())

    def _check_memory(self) -> None:
        """Raise RequestError for an actor that exceeds the free memory."""
        running = sum(map(len, self._slots.values()))
        limit = max(8, self._cluster.memory_bytes // PROCESS_BYTES)
        if running >= limit:
            raise RequestError(
                f"{running + 1} actors need about {(running + 1) * PROCESS_BYTES / GIB:.1f} GiB, and "
                f"{self._cluster.memory_bytes / GIB:.1f} GiB are free. Give more devices to each actor with a larger "
                "--devices-per-actor, or leave it out."
            )


def _label(kind: Kind) -> str:
    """Return the class name of a kind's actors in the dashboard; learners and builders share one class."""
    return str(ACTORS[kind].__ray_metadata__.class_name)
