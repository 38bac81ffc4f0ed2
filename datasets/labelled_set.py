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

Counts = tuple[int, int, int]  # images in the training, validation and test part
MAX_SET_BYTES = 2**34
MAX_FILES, MAX_ARCHIVE_BYTES, MAX_DEPTH = 1_000_000, 2**36, 30  # in the folder of an archive
DIGITS = tuple("0123456789")
ALIASES = {"automobile": "car", "aeroplane": "airplane", "motorcycle": "motorbike"}


class LabelledImages(NamedTuple):
    """Images and their classes."""

    images: npt.NDArray[np.uint8]  # [n, height, width, 3], RGB
    classes: npt.NDArray[np.int64]  # [n]


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """A classification data set as arrays."""

    name: str
    classes: tuple[str, ...]  # name of each class, in order of the class numbers
    train: LabelledImages
    val: LabelledImages
    test: LabelledImages


@dataclass(frozen=True)
class SetRequest:
    """The checked arguments that an opener receives."""

    name: str
    folder: str  # of an archive; empty if the request has none
    seed: int
    size: tuple[int, int]  # height and width in pixels
    counts: Counts | None  # None: all images
    at_most: int | None  # per part; a shortened part has the first images of the full one
    problem: Problem  # classes and difficulty of a rendered set


def normalised_class(name: str) -> str:
    """Return a class name in one spelling: MNIST has '3 - three', and DomainNet underscores."""
    plain = name.lower().partition(" - ")[0].replace("_", " ").strip()
    return ALIASES.get(plain, plain)


def files_in(folder: Path) -> list[tuple[str, int]]:
    """Return names and sizes of the files in an archive's folder; raise RequestError if it is too large."""
    paths = list(itertools.islice(_walk(folder), MAX_FILES + 1))
    if len(paths) > MAX_FILES:
        raise RequestError(f"'{folder}' holds more than {MAX_FILES:,} files; give the folder of one labelled set.")
    files = sorted((str(path.relative_to(folder)), path.stat().st_size) for path in paths if path.is_file())
    if (total := sum(size for _, size in files)) > MAX_ARCHIVE_BYTES:
        raise RequestError(
            f"'{folder}' holds {total:,} bytes, allowed are {MAX_ARCHIVE_BYTES:,}; give the folder of one labelled set."
        )
    return files


def _walk(folder: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    """Yield all paths below a folder, following links as torchvision does; raise for a cycle of links."""
    info = folder.stat()
    here = (info.st_dev, info.st_ino)
    if here in above or len(above) > MAX_DEPTH:
        raise RequestError(f"'{folder}' is a link to a folder that it lies in, or lies too deep; take it away.")
    for part in folder.iterdir():
        yield part
        if part.is_dir():
            yield from _walk(part, (*above, here))


def memory_faults(pictures: int, pixels: int) -> list[str]:
    """Return a fault if a set of images exceeds `MAX_SET_BYTES`."""
    size = pictures * pixels * 3
    if size <= MAX_SET_BYTES:
        return []
    return [
        f"{pictures} pictures of {pixels} pixels take {size / 2**30:.0f} GiB, allowed are {MAX_SET_BYTES / 2**30:.0f}"
    ]
