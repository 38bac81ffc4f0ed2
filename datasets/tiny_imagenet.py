"""Read Tiny ImageNet in its layout.

Training images are in a folder per class; a list names the validation images, which serve for testing.
"""

from __future__ import annotations

from pathlib import Path

from driftlab.datasets.shifted_archives import ImageFiles, check_files, images_in

FOLDER = "tiny-imagenet-200"
LIST = "val_annotations.txt"  # of the validation images: file, class, box
LAYOUT = f"{FOLDER}/wnids.txt, train/WNID/images/*.JPEG, val/images/*.JPEG and val/{LIST}"


def tiny_imagenet(place: Path, train: bool) -> ImageFiles:
    """Return the training images, or the validation images, as the test images have no public classes."""
    root = place / FOLDER if (place / FOLDER).is_dir() else place
    check_files([root / "wnids.txt"])
    classes = sorted((root / "wnids.txt").read_text().split())
    if train:
        folders = [root / "train" / name / "images" for name in classes]
        check_files(folders)
        imgs = [(path, kind) for kind, folder in enumerate(folders) for path in images_in(folder)]
        return ImageFiles(classes, imgs, root / "train")
    check_files([root / "val" / LIST])
    rows = [line.split()[:2] for line in (root / "val" / LIST).read_text().splitlines() if line.strip()]
    imgs = [(root / "val" / "images" / name, classes.index(kind)) for name, kind in rows]
    check_files(path for path, _ in imgs)
    return ImageFiles(classes, imgs, root / "val")
