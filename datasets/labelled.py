"""Labelled sets by name: pictures with one class each, in a training, a validation and a test part."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from driftlab.datasets import checks
from driftlab.datasets.signs.presets import SETS as SIGNS
from driftlab.datasets.signs.presets import Problem
from driftlab.errors import RequestError, unknown_name

Counts = tuple[int, int, int]  # pictures in the training, validation and test part
MAX_SET_BYTES = 2**34
SIDES = (8, 512)  # of a picture, in pixels
MAX_FILES, MAX_ARCHIVE_BYTES, MAX_DEPTH = 1_000_000, 2**36, 30  # in the folder of an archive


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


@dataclass(frozen=True)
class SetSource:
    """A labelled set in the catalogue."""

    summary: str
    opener: Callable[[SetRequest], LabelledSet] = field(repr=False)
    problem: Problem | None = None  # of a procedural set: its classes and difficulty, which a request may change
    counts: Counts | None = None
    classes: tuple[str, ...] = ()  # names that are known without its pictures

    @property
    def in_folder(self) -> bool:
        """Tell whether the set is read from a folder that its name gives."""
        return self.opener is _open_archive


def _draw_signs(request: SetRequest) -> LabelledSet:
    from driftlab.datasets.signs.sets import draw_set

    return draw_set(request)


def _open_archive(request: SetRequest) -> LabelledSet:
    from driftlab.datasets.archives import open_archive

    return open_archive(request)


def _open_digits(request: SetRequest) -> LabelledSet:
    from driftlab.datasets.archives import open_digits

    return open_digits(request)


DIGITS = tuple("0123456789")
SETS: Mapping[str, SetSource] = MappingProxyType(
    {
        **{
            f"signs/{problem.name}": SetSource(problem.summary, _draw_signs, problem, (4000, 1000, 1000))
            for problem in SIGNS.values()
        },
        "digits": SetSource("1 797 handwritten digits that come with scikit-learn", _open_digits, classes=DIGITS),
        "cifar10": SetSource("10 classes of things and animals, 60 000 pictures on this machine", _open_archive),
        "cifar100": SetSource("100 classes of things and animals, 60 000 pictures on this machine", _open_archive),
        "mnist": SetSource("handwritten digits, 70 000 pictures on this machine", _open_archive),
        "fashion_mnist": SetSource("10 classes of clothes, 70 000 pictures on this machine", _open_archive),
        "svhn": SetSource("house numbers, 99 000 pictures on this machine", _open_archive),
        "stl10": SetSource("10 classes of things and animals, 13 000 pictures on this machine", _open_archive),
        "usps": SetSource("handwritten digits from letters, 9 298 pictures on this machine", _open_archive),
        "gtsrb": SetSource("43 classes of German traffic signs, 39 000 pictures on this machine", _open_archive),
        "images": SetSource("any pictures on this machine, in one folder per class", _open_archive),
        "domain": SetSource("one of several folders of the same classes, as DomainNet has them", _open_archive),
    }
)


def open_set(
    name: str,
    *,
    seed: int = 0,
    size: int | tuple[int, int] = 32,
    counts: Counts | int | None = None,
    classes: int | None = None,
    difficulty: float | None = None,
) -> LabelledSet:
    """Open a labelled set; the same arguments give the same arrays. `cifar10:FOLDER` reads an archive from a folder.

    `counts` gives the pictures in the training, validation and test part; one number is the maximum for each part.
    """
    source, request = _checked(name, seed, size, counts, classes, difficulty)
    return source.opener(request)


def open_test(name: str, *, size: int | tuple[int, int] = 32, at_most: int) -> Pictures:
    """Open the test part alone; callers must not write to it, since that of a set without a folder is kept."""
    source = SETS.get(name)  # the name of an archive says its folder too, whose files may change
    if source is None or source.counts is None:
        return open_set(name, size=size, counts=at_most).test
    return _drawn_test(name, size, min(at_most, source.counts[2]))


@lru_cache(maxsize=4)
def _drawn_test(name: str, size: int | tuple[int, int], count: int) -> Pictures:
    return open_set(name, size=size, counts=(1, 1, count)).test


def class_names(name: str, *, size: int | tuple[int, int] = 32) -> tuple[str, ...]:
    """Name the classes of a labelled set; no picture of a built-in set is drawn or read for it."""
    from driftlab.datasets.signs.alphabet import names_of

    source, request = _checked(name, 0, size, 1, None, None)
    if source.problem is not None:
        return names_of(request.problem.classes)
    return source.classes or source.opener(request).classes


def _checked(
    name: str,
    seed: int,
    size: int | tuple[int, int],
    counts: Counts | int | None,
    classes: int | None,
    difficulty: float | None,
) -> tuple[SetSource, SetRequest]:
    """Find a set and check what is asked of it; all faults are named at once."""
    key, _, folder = name.partition(":")
    if key not in SETS:
        raise unknown_name("labelled set", key, SETS)
    source = SETS[key]
    height, width = size if isinstance(size, tuple) else (size, size)
    faults = checks.check_integer("seed", seed, 0, 2**63 - 1)
    faults += [fault for side in dict.fromkeys((height, width)) for fault in checks.check_integer("size", side, *SIDES)]
    faults += _count_faults(counts) + _problem_faults(source, classes, difficulty)
    faults += [] if faults else _memory_faults(counts or source.counts, height * width)
    if faults:
        raise RequestError(f"Labelled set '{name}' cannot be opened: {'; '.join(faults)}.")
    known = source.problem or Problem("", "", 2, 1.0)
    problem = Problem(
        known.name,
        known.summary,
        known.classes if classes is None else classes,
        known.difficulty if difficulty is None else float(difficulty),
    )
    exact, at_most = (source.counts, counts) if isinstance(counts, int) else (counts or source.counts, None)
    return source, SetRequest(name, folder, seed, (height, width), exact, at_most, problem)


def folder_digest(name: str) -> str:
    """Hash names and sizes of the files in an archive's folder; empty for a set without a folder."""
    folder = Path(name.partition(":")[2]).expanduser()
    if ":" not in name or not folder.is_dir():
        return ""
    return hashlib.sha256(repr(files_in(folder)).encode()).hexdigest()[:20]


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


def _count_faults(counts: object) -> list[str]:
    if counts is None:
        return []
    if isinstance(counts, int):
        return checks.check_integer("counts", counts, 1, 10**7)
    if not isinstance(counts, tuple | list) or len(counts) != 3:
        return [
            f"counts is {counts!r}, allowed are three numbers (to learn, to choose and to judge by) or the most of each"
        ]
    return [fault for count in counts for fault in checks.check_integer("a count", count, 1, 10**7)]


def _memory_faults(counts: Counts | int | None, pixels: int) -> list[str]:
    """Refuse numbers of pictures that would not fit into memory."""
    return memory_faults(sum(counts) if isinstance(counts, tuple | list) else 0, pixels)


def _problem_faults(source: SetSource, classes: object, difficulty: object) -> list[str]:
    given = {"classes": classes, "difficulty": difficulty}
    if source.problem is None:
        return [
            f"{key} is {value!r}, but only signs can be had in any" for key, value in given.items() if value is not None
        ]
    faults = [] if classes is None else checks.check_integer("classes", classes, 2, 360)
    return faults + ([] if difficulty is None else checks.check_number("difficulty", difficulty, 0.0, 10.0))
