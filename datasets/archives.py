"""Labelled sets on disk: archives in torchvision's layout, domain folders, and scikit-learn's digits.

Archives are never downloaded. Only the requested images are decoded; all are resized to one size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from driftlab._torchvision import import_torchvision
from driftlab.datasets import shifted_archives as shifted
from driftlab.datasets import tiny_imagenet as tiny
from driftlab.datasets.labelled_set import DIGITS, LabelledImages, LabelledSet, SetRequest, files_in, memory_faults
from driftlab.errors import DataError, RequestError, first_line, needed_import

if TYPE_CHECKING:
    from PIL.Image import Image

VAL_SHARE = 0.1  # of an archive's training images, which become the validation part
DOMAIN_FOLDER = "DomainFolder"
SUFFIXES = (".jpg", ".jpeg", ".png")
_TRAIN_SHARE = 0.8  # of the images of a class in a domain folder without lists
_SPLITS = ({"train": True}, {"train": False})
_CIFAR_C = "CORRUPTION.npy with five severities of 10 000 images, and labels.npy"
_NAMED_SPLITS = ({"split": "train"}, {"split": "test"})


@dataclass(frozen=True)
class Archive:
    """An archive: torchvision's class, the required files, and the arguments of both parts."""

    reader: str | Callable[[Path, bool], Any]  # or a function of the folder and of whether the training part is read
    layout: str
    parts: tuple[dict[str, Any], dict[str, Any]]


ARCHIVES = {
    "cifar10": Archive("CIFAR10", "cifar-10-batches-py/data_batch_1 to 5, test_batch, batches.meta", _SPLITS),
    "cifar100": Archive("CIFAR100", "cifar-100-python/train, test, meta", _SPLITS),
    "tiny_imagenet": Archive(tiny.tiny_imagenet, tiny.LAYOUT, _SPLITS),
    "mnist": Archive("MNIST", "MNIST/raw/train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-…", _SPLITS),
    "fashion_mnist": Archive("FashionMNIST", "FashionMNIST/raw/train-images-idx3-ubyte and its siblings", _SPLITS),
    "svhn": Archive("SVHN", "train_32x32.mat, test_32x32.mat", _NAMED_SPLITS),
    "stl10": Archive(
        "STL10", "stl10_binary/train_X.bin, train_y.bin, test_X.bin, test_y.bin, class_names.txt, …", _NAMED_SPLITS
    ),
    "usps": Archive("USPS", "usps.bz2, usps.t.bz2", _SPLITS),
    "gtsrb": Archive(
        "GTSRB", "gtsrb/GTSRB/Training/00000/*.ppm …, GTSRB/Final_Test/Images/*.ppm, GT-final_test.csv", _NAMED_SPLITS
    ),
    "images": Archive("ImageFolder", "train/CLASS/*.png or .jpg, test/CLASS/…", ({"sub": "train"}, {"sub": "test"})),
    "cifar10c": Archive(shifted.cifar_c(shifted.CIFAR10), f"{_CIFAR_C}, as in FOLDER/fog/5", _SPLITS),
    "cifar100c": Archive(shifted.cifar_c(shifted.CIFAR100), f"{_CIFAR_C}, as in FOLDER/fog/5", _SPLITS),
    "imagenetc": Archive(shifted.imagenet_c, "CORRUPTION/1 to 5/WNID/*.JPEG, as in FOLDER/fog/5", _SPLITS),
    "clear": Archive(
        shifted.clear,
        "train/ and test/ with labeled_metadata.json, class_names.txt and the files that they name; FOLDER/3 is a year",
        _SPLITS,
    ),
    "core50": Archive(shifted.core50, "s1 to s11/o1 to o50/*.png; FOLDER/s3 is one session", _SPLITS),
    "domain": Archive(
        DOMAIN_FOLDER, "CLASS/*.jpg or .png, and may have FOLDER_train.txt, FOLDER_test.txt next to it", _SPLITS
    ),
}


def open_archive(request: SetRequest) -> LabelledSet:
    """Read an archive; a share of its training images becomes the validation part."""
    archive, folder = ARCHIVES[request.name.partition(":")[0]], Path(request.folder).expanduser()
    if request.folder and folder.is_dir():
        files_in(folder)
    training, testing = (_open_part(request, archive, dict(part)) for part in archive.parts)
    if training is None:
        return _test_alone(request, testing)
    order = np.random.default_rng([request.seed, 31]).permutation(len(training))
    val_count = request.counts[1] if request.counts else max(1, round(VAL_SHARE * len(training)))
    train_count = request.counts[0] if request.counts else len(training) - val_count
    _check_counts(request, {"train and val": (train_count + val_count, len(training))})
    test_order = np.random.default_rng([request.seed, 32]).permutation(len(testing))
    counts = [train_count, val_count, request.counts[2] if request.counts else len(testing)]
    decoded = sum(min(count, request.at_most or count) for count in counts)
    if faults := memory_faults(decoded, request.size[0] * request.size[1]):
        raise RequestError(f"Labelled set '{request.name}' is too large: {faults[0]}.")
    if request.counts:
        _check_counts(request, {"test": (request.counts[2], len(testing))})
        test_order = test_order[: request.counts[2]]
    return LabelledSet(
        request.name,
        _class_names(training),
        train=_decode(request, training, order[val_count : val_count + train_count]),
        val=_decode(request, training, order[:val_count]),
        test=_decode(request, testing, test_order),
    )


def _test_alone(request: SetRequest, testing: Any) -> LabelledSet:
    """Read an archive without training images."""
    rows = np.random.default_rng([request.seed, 32]).permutation(len(testing))
    rows = rows[: request.counts[2] if request.counts else None]
    if faults := memory_faults(len(rows[: request.at_most]), request.size[0] * request.size[1]):
        raise RequestError(f"Labelled set '{request.name}' is too large: {faults[0]}.")
    none = LabelledImages(np.empty((0, *request.size, 3), np.uint8), np.empty(0, np.int64))
    return LabelledSet(request.name, _class_names(testing), none, none, _decode(request, testing, rows))


def open_digits(request: SetRequest) -> LabelledSet:
    """Split scikit-learn's 1 797 handwritten digits of 8 by 8 pixels, resized to the requested size."""
    images, kinds = _digits()
    order = np.random.default_rng([request.seed, 31]).permutation(len(images))
    counts = request.counts or (1077, 360, 360)
    _check_counts(request, {"all parts": (sum(counts), len(images))})
    parts = np.split(order[: sum(counts)], np.cumsum(counts)[:2])
    train, val, test = (
        LabelledImages(_resize_all(images[rows], request.size), kinds[rows])
        for rows in (part[: request.at_most] for part in parts)
    )
    return LabelledSet(request.name, DIGITS, train, val, test)


@lru_cache(maxsize=1)
def _digits() -> LabelledImages:
    """Return all digits, from scikit-learn's file; to import its reader takes a second."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError("The labelled set 'digits' needs scikit-learn. Install it, or take signs/….")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():
        raise DataError(f"This version of scikit-learn has no file '{file}', which holds the digits. Take signs/….")
    rows = np.loadtxt(file, delimiter=",")  # 64 shades from 0 to 16, and the digit
    images = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return LabelledImages(images, rows[:, -1].astype(np.int64))


def _open_part(request: SetRequest, archive: Archive, part: dict[str, Any]) -> Any:
    """Open one part with torchvision's reader."""
    with needed_import(
        f"The labelled set '{request.name}' needs torchvision",
        "Take signs/… or digits, which do not need it, or see `driftlab doctor`.",
    ):
        import_torchvision()
        from torchvision import datasets
    folder = Path(request.folder).expanduser() / part.pop("sub", "")
    offline = {} if archive.reader == "ImageFolder" else {"download": False}
    try:
        if not request.folder:
            raise FileNotFoundError("no folder was given")
        if archive.reader == DOMAIN_FOLDER:
            return DomainFolder(folder, **part)
        if callable(archive.reader):
            return archive.reader(folder, part["train"])
        return getattr(datasets, archive.reader)(str(folder), **part, **offline)
    except Exception as error:  # the readers raise various classes for damaged archives
        name = request.name.partition(":")[0]
        reason = first_line(error).partition(". You can use")[0]  # without the advice to use download=True
        raise DataError(
            f"Labelled set '{name}' cannot be read from '{request.folder}': {reason}. "
            f"In '{name}:FOLDER' FOLDER holds {archive.layout}."
        ) from error


def _class_names(part: Any) -> tuple[str, ...]:
    """Return the class names of an archive, or the class numbers if it has no names."""
    if names := getattr(part, "classes", None):
        return tuple(names)
    attribute = next((name for name in ("labels", "targets") if hasattr(part, name)), "")  # of SVHN and USPS
    numbers = getattr(part, attribute) if attribute else [label for _, label in part._samples]  # of GTSRB
    return tuple(str(number) for number in range(int(max(numbers)) + 1))


def _decode(request: SetRequest, part: Any, order: npt.NDArray[np.intp]) -> LabelledImages:
    rows = order[: request.at_most]
    images = np.empty((len(rows), *request.size, 3), np.uint8)
    classes = np.empty(len(rows), np.int64)
    for place, row in enumerate(rows):
        try:
            image, classes[place] = part[int(row)]
            images[place] = _resize(request.size, image)
        except Exception as error:  # the readers raise various classes for damaged images
            file = getattr(part, "imgs", {}) and part.imgs[int(row)][0]
            raise DataError(
                f"Labelled set '{request.name}': picture {file or int(row)} cannot be read: {first_line(error)}. "
                "Write it again, or take it out."
            ) from error
    return LabelledImages(images, classes)


def _resize(size: tuple[int, int], image: Image) -> npt.NDArray[np.uint8]:
    colours, (height, width) = image.convert("RGB"), size
    return np.asarray(colours if colours.size == (width, height) else colours.resize((width, height)), dtype=np.uint8)


def _resize_all(images: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    from PIL import Image

    return np.stack([_resize(size, Image.fromarray(image)) for image in images])


def _check_counts(request: SetRequest, counts: dict[str, tuple[int, int]]) -> None:
    faults = [f"{part}: {asked} asked for, {there} there" for part, (asked, there) in counts.items() if asked > there]
    if faults:
        raise DataError(f"Labelled set '{request.name}' has too few pictures ({'; '.join(faults)}).")


class DomainFolder:
    """The training or test images of one domain, with one folder per class, as in DomainNet and PACS.

    DOMAIN_train.txt and DOMAIN_test.txt next to the folder list the parts, with a path and a number per line. Without
    them the part of an image depends only on a digest of its class and name, so further images do not change it.
    """

    def __init__(self, folder: Path, *, train: bool) -> None:
        self.classes = tuple(sorted(part.name for part in folder.iterdir() if part.is_dir()))
        numbers = {name: number for number, name in enumerate(self.classes)}
        listed = folder.parent / f"{folder.name}_{'train' if train else 'test'}.txt"
        paths = _read_list(folder, listed) if listed.is_file() else _split(folder, train=train)
        self.imgs = [(str(path), numbers[path.parent.name]) for path in paths]
        if not self.imgs:
            raise FileNotFoundError(f"there is no picture to {'learn from' if train else 'judge by'}")

    def __len__(self) -> int:
        return len(self.imgs)

    def __getitem__(self, number: int) -> tuple[Image, int]:
        from PIL import Image

        path, kind = self.imgs[number]
        with Image.open(path) as image:
            return image.convert("RGB"), kind


def _read_list(folder: Path, listed: Path) -> list[Path]:
    """Return the paths in a list file; they begin with the folder's name."""
    lines = listed.read_text(encoding="utf-8").splitlines()
    paths = [folder.parent / line.rpartition(" ")[0] for line in lines if line.strip()]
    for path in paths:
        if path.parent.parent != folder or not path.is_file():
            raise FileNotFoundError(f"{listed.name} lists '{path.relative_to(folder.parent)}', which is not there")
    return paths


def _split(folder: Path, *, train: bool) -> list[Path]:
    paths = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in SUFFIXES)
    return [path for path in paths if (_uniform(path) < _TRAIN_SHARE) == train]


def _uniform(path: Path) -> float:
    """Return a number from 0 to 1 that is a function of an image's class and name."""
    digest = hashlib.sha256(f"{path.parent.name}/{path.name}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
