"""One Ray for most tests: starting it takes longer than they do."""

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


@pytest.fixture(scope="module")
def backend():
    """Ray on this machine with two workers and nodes that show every mistake."""
    import ray_fakes

    from driftlab.actors.backend import RayBackend
    from driftlab.actors.cluster import ClusterConfig

    backend = RayBackend(ClusterConfig(workers=2, store_bytes=STORE_BYTES), ray_fakes.CLASSES)
    yield backend
    backend.close()


@pytest.fixture
def session(backend, request):
    session = backend.open(request.node.name)
    yield session
    session.close()


@pytest.fixture(scope="session")
def answers():
    """What a program answers in one process."""
    import ray_fakes

    from driftlab.platform.lab import inline

    def run(*args, **kwargs):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inline, "NODE_CLASSES", ray_fakes.CLASSES)
            return ray_fakes.program(inline.InlineSession(), *args, **kwargs)

    return run
