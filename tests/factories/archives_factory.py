"""Archives of a few images in the real layout, with one colour per class."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

NAMES = ("aeroplane", "bird", "cat")


def pictures(n: int, seed: int = 0) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return images with one colour per class and noise, so that the class of an image can be checked."""
    rng = np.random.default_rng(seed)
    classes = np.arange(n) % 3
    images = rng.integers(0, 30, (n, 32, 32, 3)).astype(np.uint8)
    images[np.arange(n), :, :, classes] += 200
    return images, classes


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch, datasets: Any) -> None:
    """Write CIFAR-10's files with a few images each; torchvision identifies the real ones by hash."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)

    def write(name: str, content: Any) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def batch(name: str, n: int, seed: int) -> list[str]:
        images, classes = pictures(n, seed)
        return write(name, {"data": images.transpose(0, 3, 1, 2).reshape(n, -1), "labels": classes.tolist()})

    kind = datasets.CIFAR10
    monkeypatch.setattr(kind, "train_list", [batch(f"data_batch_{k}", 12, k) for k in range(1, 6)])
    monkeypatch.setattr(kind, "test_list", [batch("test_batch", 15, 9)])
    _, md5 = write("batches.meta", {"label_names": list(NAMES)})
    monkeypatch.setattr(kind, "meta", {"filename": "batches.meta", "key": "label_names", "md5": md5})


def write_svhn(root: Path, monkeypatch: pytest.MonkeyPatch, datasets: Any) -> None:
    """Write SVHN's files with a few images each; the label of a 0 is 10."""
    from scipy.io import savemat

    parts = {}
    root.mkdir(parents=True, exist_ok=True)
    for split, n in (("train", 30), ("test", 6)):
        images, classes = pictures(n)
        file = root / f"{split}_32x32.mat"
        savemat(file, {"X": images.transpose(1, 2, 3, 0), "y": np.where(classes == 0, 10, classes)[:, None]})
        parts[split] = ["", file.name, hashlib.md5(file.read_bytes()).hexdigest()]
    monkeypatch.setattr(datasets.SVHN, "split_list", parts)


def write_gtsrb(root: Path) -> None:
    """Write GTSRB's folders with a few images."""
    base = root / "gtsrb"
    for number, (image, kind) in enumerate(zip(*pictures(30), strict=True)):
        place = base / "GTSRB" / "Training" / f"{kind:05d}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number:05d}.ppm")
    judged = base / "GTSRB" / "Final_Test" / "Images"
    judged.mkdir(parents=True)
    lines = ["Filename;ClassId"]
    for number, (image, kind) in enumerate(zip(*pictures(6, seed=5), strict=True)):
        Image.fromarray(image).save(judged / f"{number:05d}.ppm")
        lines.append(f"{number:05d}.ppm;{kind}")
    (base / "GT-final_test.csv").write_text("\n".join(lines) + "\n")
