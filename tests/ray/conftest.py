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
    """Opens the backend that tests share when the first of them asks, and closes it when one wants Ray for itself."""

    def __init__(self):
        self.shared = None

    def share(self):
        import ray_fakes

        from driftlab.actors.backend import RayBackend
        from driftlab.actors.cluster import ClusterConfig

        if self.shared is None:
            self.shared = RayBackend(ClusterConfig(workers=2, store_bytes=STORE_BYTES), ray_fakes.CLASSES)
        return self.shared

    def end(self):
        if self.shared is not None:
            self.shared.close()
        self.shared = None


@pytest.fixture(scope="session")
def one_ray():
    ray_here = OneRay()
    yield ray_here
    ray_here.end()


@pytest.fixture
def backend(one_ray):
    """Two workers on this machine with nodes that show every mistake."""
    return one_ray.share()


@pytest.fixture
def no_ray(one_ray):
    """A process in which no Ray runs."""
    one_ray.end()


@pytest.fixture
def open_ray(no_ray):
    """Opens backends that stay open from run to run until the test ends."""
    from driftlab.actors.backend import RayBackend
    from driftlab.actors.cluster import ClusterConfig

    class Lasting(RayBackend):
        def close(self):
            """Leave that to the fixture."""

    opened = []

    def open_ray(**config):
        opened.append(Lasting(ClusterConfig(**config)))
        return opened[-1]

    yield open_ray
    for backend in opened:
        RayBackend.close(backend)


@pytest.fixture
def session(backend, request):
    session = backend.open(request.node.name)
    yield session
    session.close()


@pytest.fixture
def inline(monkeypatch):
    """A session in this process."""
    import ray_fakes

    from driftlab.platform.backend import inline

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
