"""Labelled sets joined from others: `cifar10+svhn:FOLDER` with FOLDER/cifar10 and FOLDER/svhn.

Classes of one name are one class. Images of the sets alternate in every part, until a set has none left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from driftlab.datasets.labelled_set import Counts, LabelledImages, LabelledSet, SetRequest, normalised_class
from driftlab.errors import DataError

JOIN = "+"  # between the names of sets
OpenSet = Callable[[str, Counts | int | None], LabelledSet]  # by its name, with folder, and its counts


def keys_of(name: str) -> list[str]:
    """Return the names of the joined sets, without their folders; one name if none are joined."""
    return name.partition(":")[0].split(JOIN)


def names_of_parts(name: str, in_folder: Callable[[str], bool]) -> list[str]:
    """Return the names of the joined sets, each with its folder in the folder of the whole."""
    folder, keys = name.partition(":")[2], keys_of(name)
    if not folder and any(map(in_folder, keys)):
        raise DataError(
            f"Labelled set '{name}' cannot be read: no folder was given. "
            f"In '{name}:FOLDER' FOLDER has a folder for each of {', '.join(filter(in_folder, keys))}."
        )
    return [f"{key}:{Path(folder) / key}" if in_folder(key) else key for key in keys]


def open_joined(request: SetRequest, names: Sequence[str], open_part: OpenSet) -> LabelledSet:
    """Open every set with an equal share of the requested counts, and join their parts."""
    sets = [open_part(name, _counts_of(request, place, len(names))) for place, name in enumerate(names)]
    classes, numbers = join_classes([one.classes for one in sets])
    train, val, test = (
        _take_turns([_renumber(getattr(one, part), own) for one, own in zip(sets, numbers, strict=True)], request)
        for part in ("train", "val", "test")
    )
    return LabelledSet(request.name, classes, train, val, test)


def join_classes(names: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[list[int]]]:
    """Return the names of all classes, and for each set the numbers of its classes among them."""
    joined: dict[str, str] = {}
    for name in itertools.chain.from_iterable(names):
        joined.setdefault(normalised_class(name), name)
    places = {name: number for number, name in enumerate(joined)}
    return tuple(joined.values()), [[places[normalised_class(name)] for name in own] for own in names]


def _counts_of(request: SetRequest, place: int, sets: int) -> Counts | int | None:
    """Return the counts of one set: an equal share of exact ones, or the most of each part."""
    if request.counts is None:
        return request.at_most
    first, second, third = (count // sets + (place < count % sets) for count in request.counts)
    return first, second, third


def _renumber(images: LabelledImages, numbers: Sequence[int]) -> LabelledImages:
    return LabelledImages(images.images, np.array(numbers, np.int64)[images.classes])


def _take_turns(parts: Sequence[LabelledImages], request: SetRequest) -> LabelledImages:
    """Join the images of all sets: the first of each, the second of each, and so on."""
    places = np.concatenate([np.arange(len(part.classes)) for part in parts])
    order = np.argsort(places, kind="stable")[: request.at_most]
    images, classes = (np.concatenate(arrays)[order] for arrays in zip(*parts, strict=True))
    return LabelledImages(images, classes)
