"""Settings for every test: one thread, a separate cache, and no Ray outside the tests of Ray."""

from __future__ import annotations

import functools
import gc
import os
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray would start its processes with 15, which is 3 % of a core while other tests run.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
# Half of the processes that Ray starts ahead have no work before the cluster of a test ends.
os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112
os.environ.pop("RAY_ADDRESS", None)  # tests start the clusters that they use and connect to no other

TESTS = Path(__file__).resolve().parent
STUBS = TESTS / "stubs"
runpy.run_path(str(STUBS / "sitecustomize.py"))
WITHOUT_RAY = ("unit", "contract")
FAST = ("arch", "unit")
SHARED = ("backend", "packed")  # backends that several tests use, one after another
FIRST = ("ray", "serve", "waits", "e2e", "arch", "contract", "unit")  # long ones, and those that wait
LATE_S = 0.5  # of processor time: more than the limit of the mark, since two measurements never agree
FEW_CLAIMS = ("ONCE-1", "AMS-5", "AS-3")  # a usual run measures the first one, lacks a system for the second
REAL_TIME = "real-time"  # see parallel_factory
FEW_FIGURES = 2  # to draw all of them takes half of the time of a small run's report
WITHOUT_RAY_NICE = 5  # tests of Ray take longest and run on one worker, so the others make way
_CACHE, _MADE_WAY = pytest.StashKey[str](), pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Give the session one cache of built artefacts; all its processes inherit it, and the stubs."""
    if not hasattr(config, "workerinput"):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STUBS), os.environ.get("PYTHONPATH")]))
        config.stash[_CACHE] = os.environ["DRIFTLAB_CACHE"] = tempfile.mkdtemp(prefix="driftlab-cache-")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without searches for garbage, which take a quarter of the time.

    Later searches leave out imported modules and collected tests, which stay until the end.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the cache that this session made."""
    cache = config.stash.get(_CACHE, None)
    if cache is not None:
        shutil.rmtree(cache, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of Ray, on one worker; keep all others that start Ray on another one.

    Both workers often wait, so others run at the same time, first the tests that wait too. The last worker of Ray
    goes on with the tests in real time. Long files come before short ones: workers end together.
    """
    for item in items:
        if _folder(item) in ("ray", "serve"):
            item.add_marker(pytest.mark.ray)
        if item.get_closest_marker("ray") is not None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
        if item.get_closest_marker("real_time") is not None:
            item.add_marker(pytest.mark.xdist_group(REAL_TIME))
    order = {folder: place for place, folder in enumerate(FIRST)}

    def place(item: pytest.Item) -> tuple[int, int]:
        used = [number for number, name in enumerate(SHARED) if name in getattr(item, "fixturenames", ())]
        kind = "waits" if item.get_closest_marker("waits") is not None else _folder(item)
        kind = kind if item.get_closest_marker("ray") is None else _group(item)
        return order.get(kind, len(order)), min(used, default=len(SHARED))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the tests of a file to one worker, so that runs and networks which they share are made once."""
    if config.getoption("dist") != "loadgroup":
        return None
    from parallel_factory import FileScheduling

    return FileScheduling(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lower the priority of a parallel worker unless its tests start Ray or run in real time."""
    if (
        hasattr(item.config, "workerinput")
        and not (item.get_closest_marker("ray") or item.get_closest_marker("real_time"))
        and _MADE_WAY not in item.config.stash
    ):
        item.config.stash[_MADE_WAY] = True
        os.nice(WITHOUT_RAY_NICE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note the processor time of tests that are not marked as slow."""
    began_s = time.process_time()
    yield
    if _folder(item) in FAST and item.get_closest_marker("slow") is None:
        item.user_properties.append(("processor_s", time.process_time() - began_s))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that `make test-fast` runs and should not."""
    took = [(dict(report.user_properties), report.nodeid) for report in terminalreporter.getreports("passed")]
    late = sorted(
        ((own["processor_s"], name) for own, name in took if own.get("processor_s", 0) > LATE_S), reverse=True
    )
    if late:
        terminalreporter.section("slow tests without the mark")
    for seconds, name in late:
        terminalreporter.write_line(f"{seconds:5.1f} s  {name}")


@pytest.fixture(scope="session")
def torchvision() -> ModuleType:
    """Return torchvision, with its missing operators replaced; skip the test if it is not installed."""
    from driftlab._torchvision import import_torchvision

    try:
        return import_torchvision()
    except Exception as error:
        pytest.skip(f"torchvision cannot be imported: {error}")


@pytest.fixture
def few_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restrict reports to one claim of each kind; all take half of the time of a small run's report."""
    from driftlab.platform.results.claims import base as claims
    from driftlab.platform.results.claims import carried, cells, pages  # noqa: F401  would keep the few for all tests

    defined = claims.every_claim()
    monkeypatch.setattr(claims, "every_claim", lambda: {name: defined[name] for name in FEW_CLAIMS})


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restrict reports to their first figures, in tests that read other things."""
    from driftlab.platform.results.report import page

    monkeypatch.setattr(page, "FIGURES", page.FIGURES[:FEW_FIGURES])


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Begin every test with the same random numbers of torch, whichever tests ran before it on its worker."""
    if "torch" in sys.modules:
        _seed_later()
        sys.modules["torch"].default_generator.manual_seed(0)
        if sys.modules["torch"].cuda.is_initialized():
            sys.modules["torch"].cuda.manual_seed_all(0)


@functools.cache
def _seed_later() -> None:
    """Seed a GPU that is used later; torch formats the stack for that, which takes a millisecond."""
    sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _no_ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse ray.init in unit and contract tests."""
    if _folder(request.node) in WITHOUT_RAY:
        import ray

        def refuse(*args: object, **kwargs: object) -> None:
            pytest.fail("a unit or contract test called ray.init")

        monkeypatch.setattr(ray, "init", refuse)
    yield


def _group(item: pytest.Item) -> str:
    return "ray" if _folder(item) == "ray" else "serve"  # see RAY_GROUPS of parallel_factory


def _folder(item: pytest.Item) -> str:
    return _folder_of(item.path)


@functools.cache
def _folder_of(file: Path) -> str:
    return file.relative_to(TESTS).parts[0] if file.is_relative_to(TESTS) else ""
