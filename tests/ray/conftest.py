"""One Ray at a time, shared by most tests: its start takes longer than a test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])  # for Ray's workers
os.environ["RAY_AUTH_MODE"] = "disabled"  # these clusters live for a minute
# A call to a killed actor fails at the next heartbeat of the caller, for which tests would wait a second each time.
os.environ["RAY_core_worker_internal_heartbeat_ms"] = "200"  # noqa: SIM112

STORE_BYTES = 200 * 2**20


class SharedRay:
    """Opens a shared backend, runner of searches, or simulated cluster, at the first test that uses it.

    It is closed at a test with another one.
    """

    def __init__(self):
        self.shared, self.asked, self.close = None, None, None

    def share(self, classes=None, **config):
        from driftlab.actors.backend import RayBackend
        from driftlab.actors.cluster import ClusterConfig

        class LastingBackend(RayBackend):
            """A backend that stays open between runs."""

            def close(self):
                """Keep the backend open: the fixture closes it."""

        own = {} if classes is None else {"classes": classes}
        return self.use(
            (classes, config),
            lambda: LastingBackend(ClusterConfig(store_bytes=STORE_BYTES, **config), **own),
            RayBackend.close,
        )

    def share_runner(self, **config):
        from driftlab.actors.cluster import ClusterConfig
        from driftlab.tune_spaces.run import SearchRunner

        return self.use(("runner", config), lambda: SearchRunner(ClusterConfig(**config)), SearchRunner.__exit__)

    def use(self, asked, start, close):
        if self.asked != asked:
            self.end()
            self.shared, self.asked, self.close = start(), asked, close
        return self.shared

    def end(self):
        if self.shared is not None:
            self.close(self.shared)
        self.shared, self.asked, self.close = None, None, None


@pytest.fixture(scope="session")
def one_ray():
    ray_here = SharedRay()
    yield ray_here
    ray_here.end()


@pytest.fixture
def backend(one_ray):
    """Two local workers with nodes whose replies depend on all calls before."""
    import ray_fakes

    return one_ray.share(ray_fakes.CLASSES, workers=2)


@pytest.fixture
def packed(one_ray):
    """One worker for whole runs, which hosts all devices."""
    return one_ray.share(workers=1, devices_per_actor=8)


@pytest.fixture
def spread(one_ray):
    """Two workers for whole runs, and a process per device."""
    return one_ray.share(workers=2, devices_per_actor=1)


@pytest.fixture
def whole(spread, monkeypatch):
    """The same Ray, on which two actors compute whole cells; the other actors hold some of its CPUs."""
    from driftlab.actors.pool import CPUS_PER_ACTOR, Pool

    monkeypatch.setattr(Pool, "_cpus", lambda self, kind, shared: 0.0 if kind == "recorder" else CPUS_PER_ACTOR)
    spread.pool.placement = "cells"
    yield spread
    spread.pool.placement = "nodes"


@pytest.fixture
def one_worker(one_ray):
    """A runner of searches, with one trial at a time."""
    return one_ray.share_runner(workers=1)


@pytest.fixture
def no_ray(one_ray):
    """A process without Ray."""
    one_ray.end()


@pytest.fixture
def session(backend, request):
    session = backend.open(request.node.name)
    yield session
    session.close()


@pytest.fixture
def inline(monkeypatch):
    """A session in this process."""
    import ray_fakes

    from driftlab.platform.sim import inline

    monkeypatch.setattr(inline, "NODE_CLASSES", ray_fakes.CLASSES)
    return inline.InlineSession()


@pytest.fixture
def inline_replies(inline):
    """The replies to a program in one process."""
    import ray_fakes

    def run(*args, **kwargs):
        inline.close()
        return ray_fakes.program(inline, *args, **kwargs)

    return run


@pytest.fixture
def growing(no_ray, tmp_path, monkeypatch):
    """A cluster of one computer, whose autoscaler adds up to three."""
    from cluster_fakes import growing_cluster

    with growing_cluster(tmp_path, monkeypatch) as cluster:
        yield cluster
