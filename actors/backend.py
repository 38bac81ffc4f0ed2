"""The Ray backend: runs the nodes of sessions in several processes, on one or several computers."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ray
from ray import exceptions

from driftlab.actors.cluster import ClusterConfig, connect, dashboard_notes
from driftlab.actors.metrics import RunMetrics
from driftlab.actors.pool import ActorSlot, Pool
from driftlab.actors.session import RaySession
from driftlab.errors import RunError
from driftlab.platform.sim.inline import NODE_CLASSES
from driftlab.platform.sim.session import Kind

POLL_INTERVAL_S = 0.5  # between checks of a waiting call whether Ray and the actor still exist
CELL_BYTES = 2**30  # memory of a cell: a fleet of 200 devices with applications and learners
CLASSES: Mapping[Kind, str] = {
    **NODE_CLASSES,
    "cell": "driftlab.platform.lab.parts:PartNode",  # the driver adds up
}
RECORDING: Mapping[Kind, str] = {**CLASSES, "cell": "driftlab.platform.lab.parts:RecordingNode"}
CLOSE_TIMEOUT_S = 5.0  # for the threads of cells to return from Ray


class RayBackend:
    """The connection to Ray of a run; each of its sessions may be used by one thread."""

    name = "ray"

    def __init__(self, config: ClusterConfig | None = None, classes: Mapping[Kind, str] | None = None) -> None:
        config = config or ClusterConfig()
        self._cluster = connect(config)
        # Cells on other computers cannot write to the run's folder, and the metrics of a dashboard count rows.
        recording = self._cluster.local and not config.dashboard
        self.pool = Pool(config, self._cluster, classes or (RECORDING if recording else CLASSES))
        self.run, self.watched = config.run, config.dashboard
        self.metrics = RunMetrics(config.run) if config.dashboard else None
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
        """Return two cells per worker, within the free memory; one computes while the other waits."""
        return max(2, min(2 * self.pool.workers, self._cluster.memory_bytes // CELL_BYTES))

    @property
    def whole_cells(self) -> int:
        """Return the number of cells that actors compute at once, within the free memory; 0: nodes only."""
        return min(self.pool.whole_cells, self.concurrency)

    @property
    def dashboard_notes(self) -> tuple[str, ...]:
        """Describe where the dashboard is, how to reach it from another computer, and where its metrics are."""
        return dashboard_notes(self._cluster)

    def open(self, session: str) -> RaySession:
        return RaySession(self, f"{session}#{next(self._numbers)}")

    def close(self) -> None:
        """End all sessions and Ray; a thread that still waits for a result gets a RunError."""
        with self._gate:
            self._closed = True
            self._gate.wait_for(lambda: self._users == 0, timeout=CLOSE_TIMEOUT_S)
        self._cluster.close()

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Keep Ray running during a call: a call after its shutdown would start another Ray."""
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

    def get(self, reference: Any, actors: Callable[[], Iterable[ActorSlot]] = tuple, until_s: float = math.inf) -> Any:
        """Wait for a value that needs some actors, and check them meanwhile.

        Raise RunError if the run has ended or an actor lacks resources to start, NodeDiedError if one has lost its
        computer, and GetTimeoutError after `until_s` on the monotonic clock.
        """
        while True:
            with self.using():
                try:
                    return ray.get(reference, timeout=POLL_INTERVAL_S)
                except exceptions.GetTimeoutError:
                    if time.monotonic() > until_s:
                        raise
                    for slot in actors():
                        self.pool.check(slot)
                except exceptions.RayError:
                    self._cluster.check()  # if Ray itself is lost, repeating calls cannot help
                    raise
