"""The Ray backend: the same sessions as in one process, on several processes and machines."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray import exceptions

from driftlab.actors.cluster import ClusterConfig, connect
from driftlab.actors.pool import ActorSlot, Pool
from driftlab.actors.session import RaySession
from driftlab.errors import RunError
from driftlab.platform.sim.inline import NODE_CLASSES
from driftlab.platform.sim.session import Kind

LOOK_S = 0.5  # interval at which a wait checks whether it still makes sense
CELL_BYTES = 2**30  # a fleet of 200 devices with applications and learners
LEAVE_S = 5.0  # for the cells' threads to notice the end of the run


class RayBackend:
    """Owns Ray during a run; each of its sessions may be used from one thread."""

    name = "ray"

    def __init__(self, config: ClusterConfig | None = None, classes: Mapping[Kind, str] = NODE_CLASSES) -> None:
        config = config or ClusterConfig()
        self._cluster = connect(config)
        self.pool = Pool(config, self._cluster, classes)
        self.run, self.watched = config.run, config.dashboard
        self._numbers = itertools.count()
        self._gate = threading.Condition()
        self._users = 0
        self._closed = False
        try:
            self.pool.warm()
        except BaseException:
            self._cluster.close()
            raise

    @property
    def concurrency(self) -> int:
        """Return two cells per worker, while memory lasts: while the nodes of one wait, those of the other work."""
        return max(2, min(2 * self.pool.workers, self._cluster.memory_bytes // CELL_BYTES))

    @property
    def dashboard_url(self) -> str | None:
        """Return the dashboard's address, if the dashboard was requested."""
        return self._cluster.dashboard_url

    def open(self, session: str) -> RaySession:
        return RaySession(self, f"{session}#{next(self._numbers)}")

    def close(self) -> None:
        """End all sessions and Ray; threads that still wait for an answer get an error instead."""
        with self._gate:
            self._closed = True
            self._gate.wait_for(lambda: self._users == 0, timeout=LEAVE_S)
        self._cluster.close()

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Hold Ray during a call: a call after the end of Ray would start another one."""
        self._cluster.check()
        with self._gate:
            if self._closed:
                raise RunError("The run was stopped.")
            self._users += 1
        try:
            yield
        finally:
            with self._gate:
                self._users -= 1
                self._gate.notify_all()

    def get(self, reference: Any, slot: ActorSlot | None) -> Any:
        """Wait for a value while the run lasts and its actor can be expected to start."""
        while True:
            with self.using():
                try:
                    return ray.get(reference, timeout=LOOK_S)
                except exceptions.GetTimeoutError:
                    if slot is not None:
                        self.pool.check(slot)
                except exceptions.RayError:
                    self._cluster.check()  # the loss of Ray itself cannot be repaired by repeating calls
                    raise
