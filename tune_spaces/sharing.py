"""Trained networks of a search on a cluster: built once, then taken from Ray's object store.

Each computer keeps built networks in the cache on its own disk. A trial takes the files that its computer lacks. The
process that builds a network first reports that it lives; the others wait for it, or take its place if it is killed.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from driftlab.platform.core.files import make_folder, write_atomically
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe, SourceSummaryRecipe

CLAIM_S = 20.0  # after which a process that has not reported counts as killed
REPORT_S = 2.0  # between reports of a process that builds
POLL_S = 0.1  # between questions of the processes that wait
SUFFIXES = (".json", ".safetensors")  # the recipe for readers, then the network: it makes the artefact complete
Files = Mapping[str, bytes]


class NetworkShelf:
    """Holds the files of built networks by the key of their recipe, and who builds the others."""

    def __init__(self, claim_s: float) -> None:
        self._files: dict[str, Any] = {}
        self._claims: dict[str, tuple[str, float]] = {}
        self._claim_s = claim_s

    def claim(self, key: str, process: str) -> bool:
        """Return whether this process builds the network, as no other one does and still reports."""
        owner, until_s = self._claims.get(key, (process, 0.0))
        if key in self._files or (owner != process and time.monotonic() < until_s):
            return False
        self._claims[key] = process, time.monotonic() + self._claim_s
        return True

    def find(self, key: str) -> Any:
        """Return a reference to the files of a built network; None if it is not built yet."""
        return self._files.get(key)

    def add(self, key: str, files: Files) -> None:
        """Keep the files of a built network; this process owns them, so they outlive the one that built them."""
        self._files.setdefault(key, [ray.put(files)])  # in a list: Ray would pass on the content


def start_shelf() -> Any:
    """Start the actor that holds the files of a search, on this computer."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here}
    return ray.remote(NetworkShelf).options(**options).remote(CLAIM_S)


class Sharing:
    """Exchanges files of a cache folder with a shelf; without the shelf, a process builds its networks."""

    def __init__(self, shelf: Any, folder: Path) -> None:
        self._shelf, self._folder, self._process = shelf, folder, uuid.uuid4().hex

    @contextmanager
    def __call__(self, recipe: FamilyRecipe | SourceSummaryRecipe) -> Iterator[None]:
        """Take the files of a recipe and those that it is built from; offer the missing ones after the block."""
        with ExitStack() as builds:
            for key in keys_of(recipe):
                if not self._take(key):
                    builds.enter_context(self._building(key))
            yield

    def _take(self, key: str) -> bool:
        """Take the files of a built network; return False if it has to be built here."""
        with suppress(exceptions.RayError, OSError):  # without the shelf, or a folder for its files
            while not ray.get(self._shelf.claim.remote(key, self._process)):
                if found := ray.get(self._shelf.find.remote(key)):
                    _write(self._folder, ray.get(found[0]))
                    return True
                time.sleep(POLL_S)
        return False

    @contextmanager
    def _building(self, key: str) -> Iterator[None]:
        """Report regularly that this process builds a network; offer its files, also if there are none."""
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(REPORT_S):
                self._shelf.claim.remote(key, self._process)

        reporting = threading.Thread(target=report, name="built network", daemon=True)
        reporting.start()
        try:
            yield
        finally:
            ended.set()
            reporting.join()
            with suppress(exceptions.RayError, OSError):
                ray.get(self._shelf.add.remote(key, _read(self._folder, key)))


def keys_of(recipe: Recipe | FamilyRecipe | SourceSummaryRecipe) -> list[str]:
    """Return the keys of a recipe and of those that it is built from, which come first."""
    if isinstance(recipe, SourceSummaryRecipe):
        return [*keys_of(recipe.family), recipe.key()]
    return [*keys_of(recipe.network), recipe.key()] if isinstance(recipe, FamilyRecipe) else [recipe.key()]


def _read(folder: Path, key: str) -> dict[str, bytes]:
    """Read the files of a recipe."""
    files = sorted(folder.glob(f"*-{key}.*"), key=lambda file: file.suffix)
    return {file.name: file.read_bytes() for file in files if file.suffix in SUFFIXES}


def _write(folder: Path, files: Files) -> None:
    """Write the files that the folder lacks."""
    make_folder(folder)
    for name, content in files.items():
        if not (folder / name).exists():
            write_atomically(folder / name, content)
