"""The actors of a run: shared by all cells, started on demand, within the free memory."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from driftlab.actors.actors import ACTORS
from driftlab.actors.cluster import PROCESS_BYTES, Cluster, ClusterConfig, gpu_share
from driftlab.errors import RequestError, RunError
from driftlab.platform.core.plugins import SUFFIX
from driftlab.platform.sim.session import Kind, NodeId

GIB = 2**30
CPUS_PER_ACTOR = 0.001  # of an actor that mostly waits; with 0, Ray would not spread them over computers
START_TIMEOUT_S = 60.0  # for one actor to start on a busy computer
GROW_TIMEOUT_S = 600.0  # for one actor to start on a cluster, which may have to add a computer
RESTART_TIMEOUT_S = 60.0  # for one actor to restart, before another one takes its nodes
NODES_INTERVAL_S = 5.0  # between questions which computers live
CELL_BYTES = 3 * PROCESS_BYTES  # of a process that computes whole cells; measured: 500 MiB
RACKED: frozenset[Kind] = frozenset({"device", "application"})
ON_GPU: frozenset[Kind] = frozenset({"application", "teacher", "learner", "builder", "cell"})
WARM: tuple[Kind, ...] = ("learner", "application", "device", "teacher")  # used by every cell; slowest to start first
BUILDERS_HOST: Mapping[str, Kind] = {"nodes": "learner", "cells": "cell"}  # by placement


@dataclass(eq=False)
class ActorSlot:
    """An actor and the nodes that it hosts, by kind."""

    name: str
    kind: Kind
    actor: Any
    ready: Any  # reference of the id of its computer, available when the actor has started
    resources: Mapping[str, float] = field(default_factory=dict)  # that it requested from Ray
    born: float = field(default_factory=time.monotonic)
    nodes: Counter[Kind] = field(default_factory=Counter)


class Pool:
    """Assigns each node to an actor; the assignment never affects results."""

    def __init__(self, config: ClusterConfig, cluster: Cluster, classes: Mapping[Kind, str]) -> None:
        self._config, self._cluster, self._classes = config, cluster, classes
        self.placement = config.placement
        self.workers = config.workers or cluster.cpus
        self._slots: dict[str, list[ActorSlot]] = {}  # by the actor's class
        self._numbers: dict[str, itertools.count[int]] = {}
        self._lock = threading.Lock()
        self._newest = threading.local()  # slot of each thread's newest cell
        self._living, self._living_until_s = frozenset[str](), 0.0  # ids of computers
        self._away: dict[ActorSlot, Any] = {}  # actors without a computer, and references that exist when they restart

    @property
    def whole_cells(self) -> int:
        """Return the number of actors that compute whole cells; 0 if the nodes of a cell are separate."""
        return self._limit("cell") if self.placement == "cells" else 0

    def warm(self) -> None:
        """Start the actors of whole cells, or one of each kind of node, so that they import in parallel."""
        whole: list[Kind] = ["cell"]
        with self._lock:
            for kind in whole * self.whole_cells or WARM:
                self._start(kind)

    def take(self, kind: Kind) -> ActorSlot:
        """Return the actor of a new node: the one with the fewest of its kind, or a new one within the limits.

        The cells of a thread go to the same actor, which has kept the frames of their stream.
        """
        newest = getattr(self._newest, "slot", None) if kind == "cell" else None
        with self._lock:
            self._return()
            slots = self._slots.get(self._label(kind), [])
            best = min(slots, key=lambda slot: (slot.nodes[kind], slot is not newest), default=None)
            slot = best if best is not None and self._suffices(kind, best, len(slots)) else self._start(kind)
            slot.nodes[kind] += 1
        if kind == "cell":
            self._newest.slot = slot
        return slot

    def give(self, slot: ActorSlot, kind: Kind) -> None:
        """Remove a node from those of an actor."""
        with self._lock:
            slot.nodes[kind] -= 1

    def twin(self, slot: ActorSlot) -> ActorSlot:
        """Start an actor that no other session uses, with the nodes of a shared one."""
        with self._lock:
            twin = self._start(slot.kind, shared=False)
            twin.nodes = slot.nodes.copy()
            return twin

    def retire(self, slot: ActorSlot) -> None:
        """Kill an actor that `twin` started."""
        self._cluster.run(lambda: ray.kill(slot.actor))

    def replace(self, slot: ActorSlot, nodes: Sequence[NodeId]) -> ActorSlot | None:
        """Return another actor of the class that takes over the nodes of this one; None if there is none.

        This one gets no new nodes before it has restarted.
        """
        with self._lock:
            slots = self._slots.get(self._label(slot.kind), [])
            others = [one for one in slots if one is not slot]
            if not others:
                return None
            if slot in slots:
                slots.remove(slot)
                self._away[slot] = slot.actor.ready.remote()
            moved, other = Counter(node.kind for node in nodes), min(others, key=lambda one: one.nodes.total())
            slot.nodes -= moved
            other.nodes += moved
            return other

    def _return(self) -> None:
        """Use the actors again that have found a computer."""
        for slot in [one for one, ready in self._away.items() if ray.wait([ready], timeout=0)[0]]:
            slot.ready = self._away.pop(slot)
            if self.lives(ray.get(slot.ready)):
                self._slots[self._label(slot.kind)].append(slot)
            else:
                self._away[slot] = slot.actor.ready.remote()

    def check(self, slot: ActorSlot) -> None:
        """Raise RunError if an actor has not started in time and the cluster lacks resources for it.

        Raise NodeDiedError if its computer is lost: Ray would hold its calls until there is another one.
        """
        if ray.wait([slot.ready], timeout=0)[0]:
            if not self.lives(ray.get(slot.ready)):
                raise exceptions.NodeDiedError(f"The computer of {slot.name} is lost.")
            return
        if time.monotonic() - slot.born < self.start_timeout_s:
            return
        if lacking := self.lacking(slot):
            raise RunError(
                f"Actor {slot.name} cannot start: the cluster lacks {lacking}. Reduce --workers or "
                "compute.gpus_per_actor, or wait."
            )

    def lives(self, computer: str) -> bool:
        """Return whether a computer lives, or lived a few seconds ago.

        Its processes do not show it: they may outlive its Ray by seconds.
        """
        if self._cluster.local is not None:
            return True
        if computer not in self._living or time.monotonic() > self._living_until_s:  # it may be new
            self._living = frozenset(node["NodeID"] for node in self._cluster.run(ray.nodes) if node["Alive"])
            self._living_until_s = time.monotonic() + NODES_INTERVAL_S
        return computer in self._living

    @property
    def start_timeout_s(self) -> float:
        return START_TIMEOUT_S if self._cluster.local else GROW_TIMEOUT_S

    def lacking(self, slot: ActorSlot) -> str:
        """Return the resources that the cluster lacks for an actor; empty if it lacks none."""
        free = self._cluster.run(ray.available_resources)
        return ", ".join(
            f"{name} ({free.get(name, 0):g} free, {amount:g} required)"
            for name, amount in slot.resources.items()
            if free.get(name, 0) < amount
        )

    def _suffices(self, kind: Kind, best: ActorSlot, count: int) -> bool:
        if kind in RACKED and (most := self._config.devices_per_actor) is not None:
            return best.nodes[kind] < most
        return best.nodes[kind] == 0 or count >= self._limit(kind)

    def _limit(self, kind: Kind) -> int:
        if kind == "recorder":
            return 1
        share, most = self._gpus(kind), self.workers
        if share:
            most = min(most, int(self._cluster.gpus / share / self._kinds_on_gpu))
        return max(1, most - sum(self._label(one.kind) == self._label(kind) for one in self._away))

    @property
    def _kinds_on_gpu(self) -> int:
        return 1 if self.placement == "cells" else 3

    def _gpus(self, kind: Kind) -> float:
        """Return the GPUs that an actor requests; Ray sets the GPUs that its process sees."""
        if kind not in ON_GPU:
            return 0.0
        if self._config.on_gpu and not self._config.gpus_per_actor:
            return gpu_share(self._cluster.gpus, self._kinds_on_gpu * self.workers)
        return self._config.gpus_per_actor

    def _device_of(self, kind: Kind) -> str:
        """Return the torch device of an actor's networks."""
        return self._config.torch_device if kind in ON_GPU else "cpu"

    def _cpus(self, kind: Kind, *, shared: bool) -> float:
        """Return the CPUs that an actor requests: all actors of a worker share one CPU.

        A local Ray with more workers than CPUs divides those that it has; a cluster may add computers.
        """
        if kind == "recorder":
            return 0.0
        if not shared or (kind in RACKED and self._config.devices_per_actor is not None):
            return CPUS_PER_ACTOR  # their number has no limit
        whole = min(1.0, self._cluster.cpus / self.workers) if self._cluster.local else 1.0
        share = whole / (1 if kind == "cell" else len(WARM))
        return math.floor(share * 1000) / 1000

    def _resources(self, kind: Kind, *, shared: bool) -> dict[str, float]:
        """Return the resources that an actor requests; on one computer `_check_memory` limits the memory."""
        memory = {} if self._cluster.local or kind == "recorder" else {"memory": float(_bytes_of(kind))}
        gpus = self._gpus(kind)
        return {"CPU": self._cpus(kind, shared=shared), **memory, **({"GPU": gpus} if gpus else {})}

    def _start(self, kind: Kind, *, shared: bool = True) -> ActorSlot:
        self._check_memory()
        kind = BUILDERS_HOST[self.placement] if kind == "builder" else kind
        label = self._label(kind)
        number = next(self._numbers.setdefault(label, itertools.count()))
        slot = self._create(kind, f"{label}-{number}", self._resources(kind, shared=shared))
        if shared:
            self._slots.setdefault(label, []).append(slot)
        return slot

    def _create(self, kind: Kind, name: str, resources: Mapping[str, float]) -> ActorSlot:
        """Start an actor without waiting for it."""
        options = {
            "name": f"{self._config.run}/{name}",  # the dashboard shows it
            "num_cpus": resources["CPU"],
            "num_gpus": resources.get("GPU", 0.0),
            "memory": int(resources.get("memory", 0)) or None,
            "max_restarts": -1,
            "max_task_retries": 0,  # the session repeats calls in order; Ray would not
            "scheduling_strategy": "SPREAD",
        }
        if kind == "recorder":  # it writes to the run's folder, which is on the driver's computer
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            options["scheduling_strategy"] = here
        given = (name, self._classes_of(kind), self._sources_of(kind), self._device_of(kind))
        actor = self._cluster.run(lambda: ACTORS[kind].options(**options).remote(*given))
        return ActorSlot(name, kind, actor, actor.ready.remote(), resources)

    def _classes_of(self, kind: Kind) -> dict[Kind, str]:
        """Return the classes that an actor imports at its start: of its nodes, and of those of a whole cell."""
        if kind == "cell":
            return {one: path for one, path in self._classes.items() if one != "recorder"}
        return {one: path for one, path in self._classes.items() if self._label(one) == self._label(kind)}

    def _sources_of(self, kind: Kind) -> Mapping[str, bytes]:
        """Return the users' files for an actor; weights go only to those that build networks."""
        files = self._config.sources
        if kind == BUILDERS_HOST[self.placement]:
            return files
        return {file: content for file, content in files.items() if file.endswith(SUFFIX)}

    def _label(self, kind: Kind) -> str:
        """Return the class name of a kind's actors in the dashboard."""
        host = BUILDERS_HOST[self.placement] if kind == "builder" else kind
        return str(ACTORS[host].__ray_metadata__.class_name)

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


def _bytes_of(kind: Kind) -> int:
    return CELL_BYTES if kind == "cell" else PROCESS_BYTES
