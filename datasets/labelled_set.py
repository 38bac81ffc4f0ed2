"""A labelled set, and a request for one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from driftlab.datasets.signs.presets import Problem
from driftlab.errors import RequestError

Counts = tuple[int, int, int]  # pictures in the training, validation and test part
MAX_SET_BYTES = 2**34
MAX_FILES, MAX_ARCHIVE_BYTES, MAX_DEPTH = 1_000_000, 2**36, 30  # in the folder of an archive
DIGITS = tuple("0123456789")


class Pictures(NamedTuple):
    """Pictures and their classes."""

    images: npt.NDArray[np.uint8]  # [n, height, width, 3], RGB
    classes: npt.NDArray[np.int64]  # [n]


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """A classification data set as arrays."""

    name: str
    classes: tuple[str, ...]  # name of each class, in the order of their numbers
    train: Pictures
    val: Pictures
    test: Pictures


@dataclass(frozen=True)
class SetRequest:
    """The checked arguments that an opener receives."""

    name: str
    folder: str  # of an archive; empty where none was given
    seed: int
    size: tuple[int, int]  # height and width in pixels
    counts: Counts | None  # None: all pictures
    at_most: int | None  # per part; a shortened part holds the first pictures of the full one
    problem: Problem  # of a procedural set


def files_in(folder: Path) -> list[tuple[str, int]]:
    """List names and sizes of what lies in an archive's folder; one that is too large is refused with its size."""
    there = list(itertools.islice(_parts(folder), MAX_FILES + 1))
    if len(there) > MAX_FILES:
        raise RequestError(f"'{folder}' holds more than {MAX_FILES:,} files; give the folder of one labelled set.")
    files = sorted((str(path.relative_to(folder)), path.stat().st_size) for path in there if path.is_file())
    if (total := sum(size for _, size in files)) > MAX_ARCHIVE_BYTES:
        raise RequestError(
            f"'{folder}' holds {total:,} bytes, allowed are {MAX_ARCHIVE_BYTES:,}; give the folder of one labelled set."
        )
    return files


def _parts(folder: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    """List what lies in a folder, links followed as torchvision does; a link that leads back would have no end."""
    found = folder.stat()
    here = (found.st_dev, found.st_ino)
    if here in above or len(above) > MAX_DEPTH:
        raise RequestError(f"'{folder}' is a link to a folder that it lies in, or lies too deep; take it away.")
    for part in folder.iterdir():
        yield part
        if part.is_dir():
            yield from _parts(part, (*above, here))


def memory_faults(pictures: int, pixels: int) -> list[str]:
    """Refuse so many pictures as would not fit into memory."""
    wanted = pictures * pixels * 3
    if wanted <= MAX_SET_BYTES:
        return []
    return [
        f"{pictures} pictures of {pixels} pixels take {wanted / 2**30:.0f} GiB, allowed are {MAX_SET_BYTES / 2**30:.0f}"
    ]
