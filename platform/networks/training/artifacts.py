"""The cache of built networks on disk, by a hash of their recipe.

Importing this module does not import torch.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from driftlab.platform.core import plugins
from driftlab.platform.core.files import explain_refusal, write_atomically
from driftlab.platform.core.parameters import BEFORE
from driftlab.platform.core.records import Weights
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.memory_format import CONTIGUOUS
from driftlab.platform.networks.training.states import FOLDER_VARIABLE, cache_folder

logger = logging.getLogger(__name__)
version_of = cache(metadata.version)  # a look-up takes 4 ms, and every key and every run needs some

Origin = Mapping[str, Any]  # the recipe as JSON; it determines the result


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The inputs that determine pre-trained weights; equal recipes give equal bits on one computer."""

    network: str
    classes: int = 8
    height: int = 64
    width: int = 96
    workloads: str = "streets"  # family of workloads that provide the training frames
    seed: int = 0
    steps: int = 2500
    batch: int = 4
    lr: float = 6e-3
    version: int = 1  # raise it if a change of a network, the data or the training changes the result
    fresh_head: bool = dataclasses.field(
        default=False, metadata={BEFORE: False}
    )  # for other classes than those of the training frames
    content: str = dataclasses.field(default="", metadata={BEFORE: ""})  # digest of a labelled set's folder
    lessons: tuple[tuple[str, float], ...] = dataclasses.field(
        default=(), metadata={BEFORE: ()}
    )  # parameters of the training streams
    start: str = dataclasses.field(default="", metadata={BEFORE: ""})  # file of initial weights
    start_digest: str = dataclasses.field(default="", metadata={BEFORE: ""})  # of that file
    elsewhere: str = dataclasses.field(default="", metadata={BEFORE: ""})  # pre-training set
    elsewhere_steps: int = dataclasses.field(default=0, metadata={BEFORE: 0})
    elsewhere_content: str = dataclasses.field(default="", metadata={BEFORE: ""})  # digest of that set's folder
    device: str = dataclasses.field(default="cpu", metadata={BEFORE: "cpu"})  # torch device of the training
    precision: str = dataclasses.field(default="float32", metadata={BEFORE: "float32"})  # of forward passes
    portable: bool = dataclasses.field(
        default=False, metadata={BEFORE: False}
    )  # equal bits on all x86-64 processors with AVX2
    code: str = dataclasses.field(default="", metadata={BEFORE: ""})  # digest of the file of a user's network
    shifts: tuple[str, ...] = dataclasses.field(default=(), metadata={BEFORE: ()})  # of part of the training frames

    def key(self) -> str:
        """Return the hash of the recipe and the version of torch, which changes the last bits."""
        return _key(_origin(self))


@dataclasses.dataclass(frozen=True)
class FamilyRecipe:
    """A pre-trained network and the scaling member that builds a family from it."""

    network: Recipe
    scaling: Member
    version: int = 4  # raise it if the data or the training of all members change; members have separate versions

    def key(self) -> str:
        """Hash the recipe with every parameter of the member and, for a user's member, its file."""
        return _key(_family_origin(self))


@dataclasses.dataclass(frozen=True)
class SourceSummaryRecipe:
    """A family of networks, and the adaptation member that summarises its training data."""

    family: FamilyRecipe
    adaptation: Member
    version: int = 1  # raise it if the data change the result; members have separate versions

    def key(self) -> str:
        """Hash the family's recipe with every parameter of the member and, for a user's member, its file."""
        return _key(_pack_origin(self))


def obtain(recipe: Recipe) -> Weights:
    """Return a recipe's weights from the cache, or build and store them.

    Concurrent processes build them once.
    """

    def build() -> Weights:
        from driftlab.platform.networks.training.pretrain import pretrain, recipe_elsewhere  # torch: seconds

        return pretrain(recipe, obtain(recipe_elsewhere(recipe)) if recipe.elsewhere else None)

    return _obtain(
        f"{recipe.network} for {recipe.steps} steps",
        f"{_file_name(recipe.network)}-{recipe.key()}",
        _origin(recipe),
        build,
    )


def obtain_family(recipe: FamilyRecipe, limit_s: float = math.inf) -> Weights:
    """Return a family as arrays; families without training data are always rebuilt, others are cached."""

    def build() -> Weights:
        from driftlab.platform.networks.training.pretrain import build_family

        return build_family(recipe, obtain(recipe.network), limit_s)

    if not recipe.scaling.make().needs_data:
        return build()
    name = f"{_file_name(recipe.scaling.name)}-{_file_name(recipe.network.network)}"
    what = f"{recipe.scaling} from {recipe.network.network}"
    return _obtain(what, f"{name}-{recipe.key()}", _family_origin(recipe), build)


def obtain_pack(recipe: SourceSummaryRecipe, limit_s: float = math.inf) -> Weights:
    """Return an adaptation member's summary of the source data from the cache, or build it.

    It is empty for a member without one.
    """

    def build() -> Weights:
        from driftlab.platform.networks.training.pretrain import build_pack

        return build_pack(recipe, obtain_family(recipe.family), limit_s)

    if not recipe.adaptation.make().has_source_summary:
        return {}
    network = recipe.family.network.network
    name = f"{_file_name(recipe.adaptation.name)}-pack-{_file_name(network)}"
    return _obtain(
        f"the pack of {recipe.adaptation} on {network}", f"{name}-{recipe.key()}", _pack_origin(recipe), build
    )


def is_kept(recipe: FamilyRecipe) -> bool:
    """Return whether the cache has a family, or the network of a family that is always rebuilt."""
    name = _file_name(recipe.network.network)
    network = f"{name}-{recipe.network.key()}"
    family = f"{_file_name(recipe.scaling.name)}-{name}-{recipe.key()}"
    return (cache_folder() / f"{family if recipe.scaling.make().needs_data else network}.safetensors").exists()


def _key(origin: Origin) -> str:
    return _hash(origin)[:20]


def _hash(origin: Origin) -> str:
    return hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()


def _origin(recipe: Recipe) -> Origin:
    """Return the inputs that determine the weights; the digest of a start file replaces its path."""
    movable = dataclasses.replace(recipe, network=plugins.drop_folder(recipe.network))
    movable = dataclasses.replace(movable, start="") if recipe.start_digest else movable
    memory = {"memory format": "contiguous"} if recipe.network in CONTIGUOUS else {}
    return {**_decisive(movable), **memory, "torch": version_of("torch")}


def _family_origin(recipe: FamilyRecipe) -> Origin:
    return {
        "network": _origin(recipe.network),
        "scaling": _member_origin(recipe.scaling),
        "version": recipe.version,
    }


def _pack_origin(recipe: SourceSummaryRecipe) -> Origin:
    return {
        "family": _family_origin(recipe.family),
        "adaptation": _member_origin(recipe.adaptation),
        "version": recipe.version,
    }


def _member_origin(member: Member) -> Origin:
    return {
        "name": plugins.drop_folder(member.name),
        "code": plugins.code_digest(member.name),
        **({"member version": version} if (version := member.version) > 1 else {}),
        **_decisive(member.make()),
    }


def _file_name(name: str) -> str:
    return plugins.drop_folder(name).replace(":", "-")


def _decisive(recipe: Any) -> Origin:
    """Return the fields of a recipe or a member.

    A later field at its `BEFORE` value is left out, so that old keys stay valid.
    """
    before = {field.name: field.metadata.get(BEFORE, dataclasses.MISSING) for field in dataclasses.fields(recipe)}
    return {name: value for name, value in dataclasses.asdict(recipe).items() if value != before[name]}


def _obtain(what: str, name: str, origin: Origin, build: Callable[[], Weights]) -> Weights:
    path = cache_folder() / f"{name}.safetensors"
    weights = _read(path, origin)
    if weights is not None:
        return weights
    with _locked(path.with_suffix(".lock")):
        weights = _read(path, origin)
        if weights is None:
            logger.info("Training %s (kept in %s)", what, path)
            begun_s = time.perf_counter()
            weights = build()
            logger.info("Trained %s in %.1f s", what, time.perf_counter() - begun_s)
            _write(path, weights, origin)
        return weights


def _read(path: Path, origin: Origin) -> Weights | None:
    """Load cached weights; returns None and logs a warning for a damaged file or another recipe."""
    from safetensors import SafetensorError, safe_open

    from driftlab.platform.networks.digest import digest

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as kept:
            weights = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118  not a mapping
            metadata = kept.metadata() or {}
    except (SafetensorError, OSError) as error:
        logger.warning("%s is damaged and will be built again: %s", path, error)
        return None
    seal = digest(weights)
    if seal != metadata.get("digest"):
        logger.warning("%s is damaged and will be built again: its weights have another digest", path)
        return None
    differs = (
        metadata["recipe"] != _hash(origin)
        if "recipe" in metadata
        else _recipe_file(path) != _recipe_json(origin, seal)
    )
    if differs:
        logger.warning("%s was built by another recipe and will be built again", path)
        return None
    return weights


def _recipe_file(path: Path) -> object:
    """Return the recipe next to a network whose own file does not record it; None if unknown."""
    try:
        return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _recipe_json(origin: Origin, seal: str) -> object:
    """Return a recipe after a round trip through JSON."""
    return json.loads(json.dumps({**origin, "digest": seal}))


def _write(path: Path, weights: Weights, origin: Origin) -> None:
    """Store weights with their digest and the hash of their recipe.

    The readable recipe is in a file next to them.
    """
    from safetensors.numpy import save

    from driftlab.platform.networks.digest import digest

    seal = digest(weights)
    with _explained(path):
        write_atomically(path.with_suffix(".json"), json.dumps({**origin, "digest": seal}, indent=2))
        write_atomically(path, save(dict(weights), metadata={"digest": seal, "recipe": _hash(origin)}))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel releases at the end of the process, also if it is killed."""
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _explained(path: Path) -> AbstractContextManager[None]:
    what, fix = (
        f"Built networks cannot be kept in {path.parent}",
        f"Set {FOLDER_VARIABLE} to a folder that you may write to.",
    )
    return explain_refusal(what, fix)
