"""Folders of one domain each, with a folder per class, as DomainNet, Office and PACS have them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

DOMAIN_FOLDER = "DomainFolder"
SUFFIXES = (".jpg", ".jpeg", ".png")
_LEARNED = 0.8  # share of the pictures of a class to learn from, where no list says


class DomainFolder:
    """The pictures of a domain to learn from or to judge by.

    DOMAIN_train.txt and DOMAIN_test.txt beside the folder list the parts, a path and a number per line. Without them a
    digest of a picture's name decides, so that a picture stays in its part whatever else is there.
    """

    def __init__(self, folder: Path, *, train: bool) -> None:
        self.classes = tuple(sorted(part.name for part in folder.iterdir() if part.is_dir()))
        numbers = {name: number for number, name in enumerate(self.classes)}
        listed = folder.parent / f"{folder.name}_{'train' if train else 'test'}.txt"
        paths = _listed(folder, listed) if listed.is_file() else _drawn(folder, train=train)
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


def _listed(folder: Path, listed: Path) -> list[Path]:
    """Read a list, whose paths begin with the folder's name."""
    lines = listed.read_text(encoding="utf-8").splitlines()
    paths = [folder.parent / line.rpartition(" ")[0] for line in lines if line.strip()]
    for path in paths:
        if path.parent.parent != folder or not path.is_file():
            raise FileNotFoundError(f"{listed.name} lists '{path.relative_to(folder.parent)}', which is not there")
    return paths


def _drawn(folder: Path, *, train: bool) -> list[Path]:
    paths = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in SUFFIXES)
    return [path for path in paths if (_place(path) < _LEARNED) == train]


def _place(path: Path) -> float:
    """Return a number from 0 to 1 that a picture's class and name decide."""
    digest = hashlib.sha256(f"{path.parent.name}/{path.name}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
