"""One Ray at a time, and one for most tests: starting it takes longer than they do."""

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

STORE_BYTES = 200 * 2**20


class OneRay:
    """Opens a backend that tests share when the first of them asks, and closes it when one wants another."""

    def __init__(self):
        self.shared, self.asked = None, None

    def share(self, classes=None, **config):
        from driftlab.actors.backend import RayBackend
        from driftlab.actors.cluster import ClusterConfig

        class Lasting(RayBackend):
            """Stays open from run to run."""

            def close(self):
                """Leave that to the fixture."""

        if self.asked != (classes, config):
            self.end()
            own = {} if classes is None else {"classes": classes}
            self.shared, self.asked = (
                Lasting(ClusterConfig(store_bytes=STORE_BYTES, **config), **own),
                (classes, config),
            )
        return self.shared

    def end(self):
        from driftlab.actors.backend import RayBackend

        if self.shared is not None:
            RayBackend.close(self.shared)
        self.shared, self.asked = None, None


@pytest.fixture(scope="session")
def one_ray():
    ray_here = OneRay()
    yield ray_here
    ray_here.end()


@pytest.fixture
def backend(one_ray):
    """Two workers on this machine with nodes that show every mistake."""
    import ray_fakes

    return one_ray.share(ray_fakes.CLASSES, workers=2)


@pytest.fixture
def packed(one_ray):
    """One worker for whole runs, which holds all devices."""
    return one_ray.share(workers=1, rack=8)


@pytest.fixture
def spread(one_ray):
    """Two workers for whole runs, and a process for each device."""
    return one_ray.share(workers=2, rack=1)


@pytest.fixture
def no_ray(one_ray):
    """A process in which no Ray runs."""
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
def answers(inline):
    """What a program answers in one process."""
    import ray_fakes

    def run(*args, **kwargs):
        inline.close()
        return ray_fakes.program(inline, *args, **kwargs)

    return run
