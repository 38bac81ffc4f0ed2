"""The built-in experiments, each size read once per process, because reading all takes long."""

from __future__ import annotations

import functools

import pytest
import yaml

from driftlab.platform.lab.read import Experiment, find, load, names

FOLDER = "data/"  # of archives that sizes of papers read


@functools.cache
def head(name: str) -> dict[str, object]:
    """Read the file of an experiment as it is written."""
    return yaml.safe_load(find(name).read_text(encoding="utf-8"))


def sizes(name: str, *, from_files: bool = False) -> list[str | None]:
    """List the sizes that an experiment's own file offers, or its only one; those of archives if asked."""
    found = {size: FOLDER in yaml.safe_dump(changes) for size, changes in head(name).get("sizes", {}).items()}
    return [size for size, reads in found.items() if from_files or not reads] or [None]


def sizes_with_inherited(name: str) -> set[str]:
    """Name the sizes that an experiment has, with those of the one that it extends."""
    base = head(name).get("extends")
    return {str(size) for size in sizes(name, from_files=True)} | (
        sizes_with_inherited(base) if isinstance(base, str) else set()
    )


def loaded(name: str, size: str | None = None) -> Experiment:
    """Give an experiment in a size, or in its usual one."""
    return _loaded(name, size or head(name).get("size"))


@functools.cache
def _loaded(name: str, size: str | None) -> Experiment:
    return load(name, [f"size={size}"] if size else [])


# All tests of one experiment run in one worker, which reads it once.
each_experiment = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(f"experiment-{name}")) for name in names()]
)
