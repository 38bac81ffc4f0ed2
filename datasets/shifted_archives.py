"""Labelled archives of shifted images in their layouts: CIFAR-C, ImageNet-C, CLEAR, CORe50.

`NAME:FOLDER/PART` names one shift, year or session. A part of CIFAR-C and ImageNet-C has test images only, so that
networks are trained on another set, as in `domains:set:cifar10:FOLDER` with the shift `set:cifar10c:FOLDER/fog/5`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png")
SEVERITIES = 5
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_NAMES_100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm"""
CIFAR100 = tuple(_NAMES_100.split())
CORE50 = ("plug_adapter", "mobile_phone", "scissor", "light_bulb", "can", "glass", "ball", "marker", "cup", "remote")
CORE50_TEST = ("s3", "s7", "s10")  # the sessions that the archive's benchmarks test on
OBJECTS = 5  # of each class of CORe50


class ImageFiles:
    """Images of files with their classes, decoded when they are read."""

    def __init__(self, classes: Sequence[str], imgs: Sequence[tuple[Path, int]], place: Path) -> None:
        if not imgs:
            raise FileNotFoundError(f"there is no picture in {place}")
        self.classes, self.imgs = tuple(classes), [(str(path), kind) for path, kind in imgs]

    def __len__(self) -> int:
        return len(self.imgs)

    def __getitem__(self, number: int) -> tuple[Image, int]:
        from PIL import Image

        path, kind = self.imgs[number]
        with Image.open(path) as image:
            return image.convert("RGB"), kind


class CorruptedCifar:
    """A severity of a corruption of CIFAR-10-C or CIFAR-100-C, whose files have five severities in order."""

    def __init__(self, folder: Path, corruption: str, severity: str, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        files = (folder / f"{corruption}.npy", folder / "labels.npy")
        check_files(files)
        images, labels = (np.load(file, mmap_mode="r") for file in files)
        if (
            images.ndim != 4
            or images.shape[1:] != (32, 32, 3)
            or len(labels) != len(images)
            or len(images) % SEVERITIES
        ):
            raise ValueError(
                f"{files[0].name} has the shape {images.shape} and labels.npy {len(labels)} entries, expected "
                "(50000, 32, 32, 3) and 50000, five severities of equal length"
            )
        each = len(images) // SEVERITIES
        part = slice(each * (_severity(severity) - 1), each * _severity(severity))
        self._images, self._kinds = images[part], labels[part]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[Image, int]:
        from PIL import Image

        return Image.fromarray(np.array(self._images[number])), int(self._kinds[number])


def cifar_c(classes: Sequence[str]) -> Callable[[Path, bool], Any]:
    """Return the reader of CIFAR-10-C or CIFAR-100-C."""

    def read(place: Path, train: bool) -> CorruptedCifar | None:
        return None if train else CorruptedCifar(place.parent.parent, place.parent.name, place.name, classes)

    return read


def imagenet_c(place: Path, train: bool) -> ImageFiles | None:
    """Return a severity of a corruption of ImageNet-C; its classes are the WordNet numbers of its folders."""
    if train:
        return None
    _severity(place.name)
    check_files([place])
    classes = sorted(part.name for part in place.iterdir() if part.is_dir())
    imgs = [(path, kind) for kind, name in enumerate(classes) for path in images_in(place / name)]
    return ImageFiles(classes, imgs, place)


def clear(place: Path, train: bool) -> ImageFiles | None:
    """Return the training or test images of CLEAR, or the test images of the year `FOLDER/BUCKET`."""
    year = place.name if place.name.isdecimal() else ""
    if year and train:
        return None
    folder = (place.parent if year else place) / ("train" if train else "test")
    files = [folder / "labeled_metadata.json", folder / "class_names.txt"]
    check_files(files)
    buckets, classes = json.loads(files[0].read_text()), files[1].read_text().split()
    if year and year not in buckets:
        raise ValueError(f"{files[0]} has no bucket {year}, but {', '.join(buckets)}")
    imgs = []
    for bucket in [year] if year else buckets:
        lists = [folder / buckets[bucket][name] for name in classes]
        check_files(lists)
        for kind, file in enumerate(lists):
            imgs += [(folder / one["IMG_PATH"], kind) for one in json.loads(file.read_text()).values()]
    check_files(path for path, _ in imgs)
    return ImageFiles(classes, imgs, folder)


def core50(place: Path, train: bool) -> ImageFiles | None:
    """Return the images of CORe50's training or test sessions, or of the session `FOLDER/s3`."""
    single = place.name[:1] == "s" and place.name[1:].isdecimal()
    if single and train:
        return None
    root = place.parent if single else place
    sessions = [f"s{number}" for number in range(1, 12) if (f"s{number}" in CORE50_TEST) != train]
    folders = [root / name for name in ([place.name] if single else sessions)]
    check_files(folders)
    imgs = [
        (path, (number - 1) // OBJECTS)
        for folder in folders
        for number in range(1, OBJECTS * len(CORE50) + 1)
        for path in images_in(folder / f"o{number}")
    ]
    return ImageFiles(CORE50, imgs, root)


def images_in(folder: Path) -> list[Path]:
    """List the images of a folder by name; empty if there is no folder."""
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)


def check_files(paths: Sequence[Path] | Iterator[Path], shown: int = 5) -> None:
    """Raise FileNotFoundError with the missing files or folders by name."""
    if missing := [str(path) for path in paths if not path.exists()]:
        more = f" and {len(missing) - shown} more" if len(missing) > shown else ""
        raise FileNotFoundError(f"there is no {', '.join(missing[:shown])}{more}")


def _severity(text: str) -> int:
    if text not in map(str, range(1, SEVERITIES + 1)):
        raise ValueError(f"'{text}' is no severity from 1 to {SEVERITIES}; give FOLDER/CORRUPTION/SEVERITY")
    return int(text)
