"""Built networks, kept on disk under the hash of what built them. Plain arrays only: importing this costs no torch."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as version_of
from pathlib import Path

from driftlab.errors import RequestError
from driftlab.platform.core.records import Weights

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "DRIFTLAB_CACHE"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides which weights come out; two equal recipes mean the same bits on one machine."""

    network: str
    classes: int = 8
    height: int = 64
    width: int = 96
    workloads: str = "streets"  # the family whose scenes are the lessons
    seed: int = 0
    steps: int = 2500
    batch: int = 4
    lr: float = 6e-3
    version: int = 1  # raise it when a network, the lessons or the training change what comes out

    def key(self) -> str:
        """Hash the recipe together with the version of torch, which decides the last bits."""
        return hashlib.sha256(json.dumps(_origin(self), sort_keys=True).encode()).hexdigest()[:20]


def obtain(recipe: Recipe) -> Weights:
    """Return a recipe's weights: from the cache, or built now and kept; processes that ask together build once."""
    path = cache_folder() / f"{recipe.network}-{recipe.key()}.safetensors"
    weights = _read(path)
    if weights is not None:
        return weights
    with _locked(path.with_suffix(".lock")):
        weights = _read(path)
        return _build(recipe, path) if weights is None else weights


def cache_folder() -> Path:
    """Tell where built networks are kept."""
    import platformdirs

    given = os.environ.get(FOLDER_VARIABLE)
    return Path(given).absolute() if given else platformdirs.user_cache_path("driftlab") / "networks"


def _origin(recipe: Recipe) -> dict[str, str | int | float]:
    return {**dataclasses.asdict(recipe), "torch": version_of("torch")}


def _build(recipe: Recipe, path: Path) -> Weights:
    from driftlab.platform.models.pretrain import pretrain

    logger.info("Training %s for %d steps (kept in %s)", recipe.network, recipe.steps, path)
    begun_s = time.perf_counter()
    weights = pretrain(recipe)
    logger.info("Trained %s in %.1f s", recipe.network, time.perf_counter() - begun_s)
    _write(path, weights, _origin(recipe))
    return weights


def _read(path: Path) -> Weights | None:
    """Load what is kept, or nothing; what is damaged counts as nothing and says so."""
    from safetensors import SafetensorError, safe_open

    from driftlab.platform.models.digest import digest

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as kept:
            weights = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118  not a mapping
            expected = (kept.metadata() or {}).get("digest")
    except (SafetensorError, OSError) as error:
        logger.warning("%s is damaged and will be built again: %s", path, error)
        return None
    if digest(weights) != expected:
        logger.warning("%s is damaged and will be built again: its weights are not those written", path)
        return None
    return weights


def _write(path: Path, weights: Weights, origin: dict[str, str | int | float]) -> None:
    """Keep weights with their digest, and beside them for people how they were made; readers see all or nothing."""
    from safetensors.numpy import save

    from driftlab.platform.models.digest import digest

    seal = digest(weights)
    with _explained(path):
        _replace(path.with_suffix(".json"), json.dumps({**origin, "digest": seal}, indent=2).encode())
        _replace(path, save(dict(weights), metadata={"digest": seal}))


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel releases when its holder ends, however it ends."""
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn a refused write into a request that can be mended."""
    try:
        yield
    except OSError as error:
        raise RequestError(
            f"Built networks cannot be kept in {path.parent}: {error.strerror}. "
            f"Set {FOLDER_VARIABLE} to a folder that you may write to."
        ) from error
