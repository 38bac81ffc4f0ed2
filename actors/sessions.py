"""The actors of a server with real devices: each hosts the teachers and learners of some sessions."""

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
from driftlab.platform.field.request import SessionAsked
from driftlab.platform.field.rounds import RoundReply, RoundRequest, RoundsWorker

MOST_TRIES = 3  # of a round that its process did not survive


@ray.remote
class SessionRack:
    """Passes every call on to its worker; a call may be repeated."""

    def __init__(self, name: str) -> None:
        os.environ.update(ONE_THREAD)  # before torch or OpenCV: parallelism is across sessions
        self._name, self._worker = name, RoundsWorker()

    def __repr__(self) -> str:
        return self._name

    def build(self, asked: SessionAsked) -> None:
        self._worker.build(asked)

    def work(self, request: RoundRequest) -> RoundReply:
        return self._worker.work(request)

    def drop(self, folder: Path) -> None:
        self._worker.drop(folder)


class RackWorker:
    """Runs the rounds of some sessions in an actor, and builds networks in another one meanwhile."""

    def __init__(self, rack: Any, builder: Callable[[], Any]) -> None:
        self._rack, self._builder = rack, builder

    def build(self, asked: SessionAsked) -> None:
        _wait(self._builder().build.remote(asked))

    def work(self, request: RoundRequest) -> RoundReply:
        reply: RoundReply = _wait(self._rack.work.remote(request))
        return reply

    def drop(self, folder: Path) -> None:
        _wait(self._rack.drop.remote(folder))


def start_workers(count: int) -> list[RackWorker]:
    """Start actors on this node, on whose disk the sessions are; they end with this process."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {
        "num_cpus": CPUS_PER_ACTOR,
        "max_restarts": -1,
        "max_task_retries": MOST_TRIES,
        "scheduling_strategy": here,
    }
    rack: Any = SessionRack.options(**options)  # type: ignore[attr-defined]
    builder = cache(lambda: rack.remote("Builder"))  # started when a session is opened first
    return [RackWorker(rack.remote(f"Sessions-{number}"), builder) for number in range(count)]


def _wait(reference: Any) -> Any:
    """Return a result; an error of the code in the actor is raised as it was there."""
    try:
        return ray.get(reference)
    except exceptions.RayTaskError as error:
        raise error.cause from error
    except exceptions.RayActorError as error:
        raise RunError(f"the process of a session was lost {MOST_TRIES + 1} times") from error
