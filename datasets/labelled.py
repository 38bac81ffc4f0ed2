"""Labelled sets by name: images with one class each, in a training, a validation and a test part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from driftlab.datasets import checks
from driftlab.datasets.joined_sets import JOIN, join_classes, keys_of, names_of_parts, open_joined
from driftlab.datasets.labelled_set import (
    DIGITS,
    Counts,
    LabelledImages,
    LabelledSet,
    SetRequest,
    files_in,
    memory_faults,
)
from driftlab.datasets.signs.presets import SETS as SIGNS
from driftlab.datasets.signs.presets import Problem
from driftlab.errors import RequestError, unknown_name

SIDES = (8, 512)  # allowed height and width of an image, in pixels


@dataclass(frozen=True)
class SetSource:
    """A labelled set in the catalogue."""

    summary: str
    opener: Callable[[SetRequest], LabelledSet] = field(repr=False)
    problem: Problem | None = None  # of a rendered set: default classes and difficulty
    counts: Counts | None = None
    classes: tuple[str, ...] = ()  # names that are known without opening the set

    @property
    def in_folder(self) -> bool:
        """Return whether the name of the set includes its folder."""
        return self.opener is _open_archive


def _draw_signs(request: SetRequest) -> LabelledSet:
    from driftlab.datasets.signs.sets import draw_set

    return draw_set(request)


def _open_archive(request: SetRequest) -> LabelledSet:
    from driftlab.datasets.archives import open_archive

    return open_archive(request)


def _open_joined(request: SetRequest) -> LabelledSet:
    def open_part(name: str, counts: Counts | int | None) -> LabelledSet:
        return open_set(name, seed=request.seed, size=request.size, counts=counts)

    return open_joined(request, names_of_parts(request.name, _in_folder), open_part)


def _in_folder(key: str) -> bool:
    return SETS[key].in_folder


def _open_digits(request: SetRequest) -> LabelledSet:
    from driftlab.datasets.archives import open_digits

    return open_digits(request)


SETS: Mapping[str, SetSource] = MappingProxyType(
    {
        **{
            f"signs/{problem.name}": SetSource(problem.summary, _draw_signs, problem, (4000, 1000, 1000))
            for problem in SIGNS.values()
        },
        "digits": SetSource("1 797 handwritten digits included in scikit-learn", _open_digits, classes=DIGITS),
        "cifar10": SetSource("10 classes of objects and animals, 60 000 images from a folder", _open_archive),
        "cifar100": SetSource("100 classes of objects and animals, 60 000 images from a folder", _open_archive),
        "tiny_imagenet": SetSource("Tiny ImageNet: 200 classes of 550 images from a folder", _open_archive),
        "mnist": SetSource("handwritten digits, 70 000 images from a folder", _open_archive),
        "fashion_mnist": SetSource("10 classes of clothes, 70 000 images from a folder", _open_archive),
        "svhn": SetSource("house numbers, 99 000 images from a folder", _open_archive),
        "stl10": SetSource("10 classes of objects and animals, 13 000 images from a folder", _open_archive),
        "usps": SetSource("handwritten digits on envelopes, 9 298 images from a folder", _open_archive),
        "gtsrb": SetSource("43 classes of German traffic signs, 39 000 images from a folder", _open_archive),
        "cifar10c": SetSource("CIFAR-10-C: a corruption at a severity, test images of a folder", _open_archive),
        "cifar100c": SetSource("CIFAR-100-C: a corruption at a severity, test images of a folder", _open_archive),
        "imagenetc": SetSource("ImageNet-C: a corruption at a severity, test images of a folder", _open_archive),
        "clear": SetSource("CLEAR: photographs of ten years, or of one, from a folder", _open_archive),
        "core50": SetSource("CORe50: objects in eleven sessions, or in one, from a folder", _open_archive),
        "images": SetSource("any images, in one folder per class", _open_archive),
        "domain": SetSource("one domain of several with the same classes, as in DomainNet", _open_archive),
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
    """Return a labelled set; the same arguments give the same arrays.

    `counts` has the numbers of images in the training, validation and test part, or one maximum for each part.
    `cifar10:FOLDER` reads an archive from a folder.
    """
    source, request = _checked(name, seed, size, counts, classes, difficulty)
    return source.opener(request)


def open_test(name: str, *, size: int | tuple[int, int] = 32, at_most: int) -> LabelledImages:
    """Return the test part only; callers must not write to it, as the part of a built-in set is cached."""
    source = SETS.get(name)  # None for an archive with its folder, whose files may change
    if source is None or source.counts is None:
        return open_set(name, size=size, counts=at_most).test
    return _drawn_test(name, size, min(at_most, source.counts[2]))


@lru_cache(maxsize=4)
def _drawn_test(name: str, size: int | tuple[int, int], count: int) -> LabelledImages:
    return open_set(name, size=size, counts=(1, 1, count)).test


def class_names(name: str, *, size: int | tuple[int, int] = 32) -> tuple[str, ...]:
    """Return the class names of a labelled set, without rendering or reading the images of a built-in set."""
    from driftlab.datasets.signs.alphabet import names_of

    source, request = _checked(name, 0, size, 1, None, None)
    if source.opener is _open_joined:
        return join_classes([class_names(part, size=size) for part in names_of_parts(name, _in_folder)])[0]
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
    """Return a set and its checked request; raise RequestError with all faults."""
    folder, source = name.partition(":")[2], _source_of(name)
    height, width = size if isinstance(size, tuple) else (size, size)
    faults = checks.check_integer("seed", seed, 0, 2**63 - 1)
    faults += [fault for side in dict.fromkeys((height, width)) for fault in checks.check_integer("size", side, *SIDES)]
    faults += _count_faults(counts) + _problem_faults(source, classes, difficulty)
    faults += [] if faults else _memory_faults(counts or source.counts, height * width)
    if faults:
        raise RequestError(f"Labelled set '{name}' cannot be opened: {'; '.join(faults)}.")
    default = source.problem or Problem("", "", 2, 1.0)
    problem = Problem(
        default.name,
        default.summary,
        default.classes if classes is None else classes,
        default.difficulty if difficulty is None else float(difficulty),
    )
    exact, at_most = (source.counts, counts) if isinstance(counts, int) else (counts or source.counts, None)
    return source, SetRequest(name, folder, seed, (height, width), exact, at_most, problem)


def _source_of(name: str) -> SetSource:
    """Look up a labelled set, or describe a joined one."""
    keys = keys_of(name)
    for key in keys:
        if key not in SETS:
            raise unknown_name("labelled set", key, SETS)
    if len(set(keys)) < len(keys):
        raise RequestError(f"Labelled set '{name}' joins a set with itself; give each set once.")
    return SETS[keys[0]] if len(keys) == 1 else SetSource(f"{JOIN.join(keys)}, joined", _open_joined)


def folder_digest(name: str) -> str:
    """Return a hash of the file names and sizes in an archive's folder; empty without a folder."""
    folder = Path(name.partition(":")[2]).expanduser()
    if ":" not in name or not folder.is_dir():
        return ""
    return hashlib.sha256(repr(files_in(folder)).encode()).hexdigest()[:20]


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
    """Return a fault if the images would exceed the limit of memory."""
    return memory_faults(sum(counts) if isinstance(counts, tuple | list) else 0, pixels)


def _problem_faults(source: SetSource, classes: object, difficulty: object) -> list[str]:
    given = {"classes": classes, "difficulty": difficulty}
    if source.problem is None:
        return [
            f"{key} is {value!r}, but only signs can be had in any" for key, value in given.items() if value is not None
        ]
    faults = [] if classes is None else checks.check_integer("classes", classes, 2, 360)
    return faults + ([] if difficulty is None else checks.check_number("difficulty", difficulty, 0.0, 10.0))
