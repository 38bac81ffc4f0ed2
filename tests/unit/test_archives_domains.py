"""Archives of several domains: USPS and STL-10, domain folders, Cityscapes."""

from __future__ import annotations

import bz2
import hashlib

import numpy as np
import pytest
from PIL import Image

from driftlab.datasets.catalogue import find_workload, open_stream
from driftlab.datasets.frames import IGNORE
from driftlab.datasets.labelled import open_set
from driftlab.errors import DataError

NAMES = ("aeroplane", "bird", "cat")


@pytest.fixture(scope="module")
def torchvision_datasets(torchvision):
    return torchvision.datasets


def pictures(n: int, side: int = 32, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures whose brightest channel is their class."""
    classes = np.arange(n) % 3
    images = np.random.default_rng(seed).integers(0, 30, (n, side, side, 3)).astype(np.uint8)
    images[np.arange(n), :, :, classes] += 200
    return images, classes


def agree(part) -> bool:
    return np.array_equal(part.images.mean((1, 2)).argmax(1), part.classes)


def hashed(path) -> list[str]:
    return [path.name, hashlib.md5(path.read_bytes()).hexdigest()]


def test_stl10_is_read(tmp_path, monkeypatch, torchvision_datasets):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    for part, n in (("train", 30), ("test", 9)):
        images, classes = pictures(n, 96)
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 3, 2, 1).tobytes())  # columns first
        (folder / f"{part}_y.bin").write_bytes((classes + 1).astype(np.uint8).tobytes())
    (folder / "class_names.txt").write_text("\n".join(NAMES) + "\n")
    kind = torchvision_datasets.STL10
    for part in ("train", "test"):
        files = [hashed(folder / f"{part}_X.bin"), hashed(folder / f"{part}_y.bin")]
        monkeypatch.setattr(kind, f"{part}_list", files)
    found = open_set(f"stl10:{tmp_path}", size=32)
    assert found.classes == NAMES and len(found.test.classes) == 9
    assert agree(found.train) and agree(found.test) and found.test.images.shape[1:] == (32, 32, 3)


def test_usps_is_read(tmp_path, monkeypatch, torchvision_datasets):
    rng, files = np.random.default_rng(0), []
    for name, n in (("usps.bz2", 40), ("usps.t.bz2", 10)):
        kinds = np.arange(n) % 10
        lines = []
        for kind in kinds:  # a digit's light says which it is
            values = np.full(256, kind / 4.5 - 1) + rng.uniform(-0.01, 0.01, 256)
            lines.append(f"{kind + 1} " + " ".join(f"{k + 1}:{value:.4f}" for k, value in enumerate(values)))
        (tmp_path / name).write_bytes(bz2.compress("\n".join(lines).encode() + b"\n"))
        files.append(["", name, hashed(tmp_path / name)[1]])
    monkeypatch.setattr(torchvision_datasets.USPS, "split_list", dict(zip(("train", "test"), files, strict=True)))
    found = open_set(f"usps:{tmp_path}", size=16)
    assert found.classes == tuple("0123456789") and len(found.test.classes) == 10
    light = found.test.images.mean((1, 2, 3))
    assert np.array_equal(np.argsort(light), np.argsort(found.test.classes))


def write_domain(folder, n: int, seed: int) -> None:
    for number, (image, kind) in enumerate(zip(*pictures(n, seed=seed), strict=True)):
        place = folder / NAMES[kind]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number:03d}.png")


class TestDomainFolders:
    def test_parts_are_disjoint_and_stable(self, tmp_path):
        write_domain(tmp_path / "real", 120, 0)
        first = open_set(f"domain:{tmp_path / 'real'}")
        sizes = [len(part.classes) for part in (first.train, first.val, first.test)]
        assert sum(sizes) == 120 and 15 <= sizes[2] <= 35 and first.classes == NAMES
        assert agree(first.train) and agree(first.val) and agree(first.test)
        judged = {image.tobytes() for image in first.test.images}
        (tmp_path / "real" / "bird" / "001.png").unlink()
        again = {image.tobytes() for image in open_set(f"domain:{tmp_path / 'real'}").test.images}
        assert again <= judged and len(judged - again) <= 1

    def test_lists_next_to_the_folder_define_the_parts(self, tmp_path):
        write_domain(tmp_path / "sketch", 12, 0)
        paths = sorted((tmp_path / "sketch").glob("*/*.png"))
        for name, chosen in (("train", paths[:8]), ("test", paths[8:])):
            lines = [f"{path.relative_to(tmp_path)} 0" for path in chosen]
            (tmp_path / f"sketch_{name}.txt").write_text("\n".join(lines))
        found = open_set(f"domain:{tmp_path / 'sketch'}")
        assert [len(part.classes) for part in (found.train, found.val, found.test)] == [7, 1, 4]
        assert agree(found.train) and agree(found.test)

    def test_a_list_of_missing_files_is_refused(self, tmp_path):
        write_domain(tmp_path / "sketch", 12, 0)
        (tmp_path / "sketch_train.txt").write_text("sketch/cat/999.png 2\n")
        with pytest.raises(DataError, match=r"sketch_train\.txt lists 'sketch/cat/999\.png'"):
            open_set(f"domain:{tmp_path / 'sketch'}")


class TestStreetsOfCities:
    @pytest.fixture
    def folder(self, tmp_path):
        """Two cities with three images: road below, sky above, and a strip of an ignored class."""
        for city, count in (("aachen", 2), ("ulm", 1)):
            for number in range(count):
                image, labels = np.zeros((64, 128, 3), np.uint8), np.full((64, 128), 7, np.uint8)
                image[..., number], labels[:24], labels[24:32] = 200, 23, 33
                for kind, end, pixels in (("leftImg8bit", "leftImg8bit", image), ("gtFine", "gtFine_labelIds", labels)):
                    place = tmp_path / kind / "val" / city
                    place.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels).save(place / f"{city}_{number:06d}_000019_{end}.png")
        return tmp_path

    def test_images_are_in_order_of_cities_with_the_classes_of_the_streets(self, folder):
        stream = open_stream(f"cityscapes:{folder}", seed=0, height=32, width=64, fps=2, duration_s=4)
        frames = stream.at(np.arange(8) / 2)
        assert frames.scenes.tolist() == [0, 0, 1, 0, 0, 1, 0, 0] and stream.changes_s() == (1.0, 1.5, 2.5, 3.0)
        road, sky = stream.classes.index("road"), stream.classes.index("sky")
        assert frames.labels[0, :, 5].tolist() == [sky] * 12 + [IGNORE] * 4 + [road] * 16
        assert frames.images[:2].mean(axis=(1, 2)).argmax(axis=1).tolist() == [0, 1]

    def test_domains_apply_to_it(self, folder):
        size = {"height": 32, "width": 64, "fps": 2, "duration_s": 40}
        stream = open_stream(f"domains:cityscapes:{folder}", seed=0, **size, shifts=["rotation"], severities=[5])
        assert find_workload(stream.name).family == "streets" and (stream.at([0.0]).labels == IGNORE).mean() > 0.2

    def test_errors_name_missing_parts(self, folder, tmp_path):
        size = {"seed": 0, "height": 32, "width": 64, "fps": 2, "duration_s": 4}
        with pytest.raises(DataError, match="leftImg8bit/val/CITY"):
            open_stream(f"cityscapes:{tmp_path}/nowhere", **size)
        picture = next((folder / "leftImg8bit" / "val" / "ulm").iterdir())
        picture.write_bytes(b"no picture")
        with pytest.raises(DataError, match=picture.name):
            open_stream(f"cityscapes:{folder}", **size).at([1.0])
        next((folder / "gtFine" / "val" / "ulm").iterdir()).unlink()
        with pytest.raises(DataError, match="ulm_000000_000019_gtFine_labelIds"):
            open_stream(f"cityscapes:{folder}", **size)
