"""Actors of a server for real devices: each hosts the teachers and learners of several sessions."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from driftlab.actors.actors import ONE_THREAD
from driftlab.actors.pool import CPUS_PER_ACTOR
from driftlab.errors import RunError
from driftlab.platform.field.request import SessionRequest
from driftlab.platform.field.rounds import RoundReply, RoundRequest, RoundsWorker, rounds_at_once
from driftlab.platform.sim.host import search_garbage_rarely

MAX_RETRIES = 3  # of a round whose process was lost


@ray.remote
class SessionRack:
    """A worker in a process of Ray; Ray may repeat its calls."""

    def __init__(self, name: str, torch_device: str, networks: int) -> None:
        os.environ.update(ONE_THREAD)  # before torch and OpenCV: sessions run in parallel, operators on one thread
        self._name, self._worker = name, RoundsWorker(torch_device, networks=networks)
        search_garbage_rarely()

    def __repr__(self) -> str:
        return self._name

    def build(self, asked: SessionRequest) -> None:
        self._worker.build(asked)

    def work(self, request: RoundRequest) -> RoundReply:
        return self._worker.work(request)

    def drop(self, folder: Path) -> None:
        self._worker.drop(folder)


class ActorWorker:
    """Runs the rounds of several sessions in one actor, and trains new networks in another one."""

    def __init__(self, rack: Any, builder: Callable[[], Any], at_once: int) -> None:
        self._rack, self._builder, self.at_once = rack, builder, at_once

    def build(self, asked: SessionRequest) -> None:
        _wait(self._builder().build.remote(asked))

    def work(self, request: RoundRequest) -> RoundReply:
        reply: RoundReply = _wait(self._rack.work.remote(request))
        return reply

    def drop(self, folder: Path) -> None:
        _wait(self._rack.drop.remote(folder))


def start_workers(count: int, torch_device: str, gpus: float, networks: int) -> list[ActorWorker]:
    """Start actors on this computer, whose disk holds the sessions; they end with this process.

    Each requests this share of a GPU, and keeps the networks of so many sessions in memory.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {
        "num_cpus": CPUS_PER_ACTOR,
        "num_gpus": gpus,
        "max_restarts": -1,
        "max_task_retries": MAX_RETRIES,
        "scheduling_strategy": here,
    }
    rack: Any = SessionRack.options(**options)  # type: ignore[attr-defined]
    builder = cache(lambda: rack.remote("Builder", torch_device, networks))  # started when the first session is opened
    at_once = rounds_at_once(torch_device)
    sessions: Any = SessionRack.options(**options, max_concurrency=at_once)  # type: ignore[attr-defined]
    names = [f"Sessions-{number}" for number in range(count)]
    return [ActorWorker(sessions.remote(name, torch_device, networks), builder, at_once) for name in names]


def _wait(reference: Any) -> Any:
    """Return a result, or raise the error that the code in the actor raised."""
    try:
        return ray.get(reference)
    except exceptions.RayTaskError as error:
        raise error.cause from error
    except exceptions.RayActorError as error:
        raise RunError(f"the process of a session was lost {MAX_RETRIES + 1} times") from error
