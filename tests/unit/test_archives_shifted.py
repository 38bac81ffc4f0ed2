"""Archives of shifted images in their layouts, and the severities of a reduced CIFAR-10-C."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from pages_factory import DOCS, blocks, invoke
from PIL import Image

import driftlab
from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.domains.orders import Domain
from driftlab.datasets.domains.shifts import shifted
from driftlab.datasets.labelled import open_set
from driftlab.datasets.shifted_archives import CIFAR10, CIFAR100, CORE50
from driftlab.errors import DataError
from driftlab.platform.networks.training.artifacts import Recipe
from driftlab.platform.networks.training.pretrain import draw_data

SHIFTS = ("gaussian_noise", "defocus_blur", "contrast")


def save(path, value: int, side: int = 8) -> None:
    """Write an image of one grey level."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(path)


def levels(images) -> list[int]:
    """Return the mean grey level of each image."""
    return [round(float(image.mean())) for image in images]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classes"), [("cifar10c", CIFAR10), ("cifar100c", CIFAR100)])
def test_a_severity_of_cifar_c_is_its_fifth_of_the_file(tmp_path, name, classes):
    images = np.repeat(np.arange(20, dtype=np.uint8) * 10, 32 * 32 * 3).reshape(20, 32, 32, 3)  # four of each severity
    np.save(tmp_path / "fog.npy", images)
    np.save(tmp_path / "labels.npy", np.tile(np.arange(4, dtype=np.uint8), 5))
    found = open_set(f"{name}:{tmp_path}/fog/3", size=32)
    assert found.classes == classes
    assert dict(zip(levels(found.test.images), found.test.classes.tolist(), strict=True)) == {
        80: 0,
        90: 1,
        100: 2,
        110: 3,
    }
    assert not len(found.train.classes)
    with pytest.raises(DataError, match=r"there is no .*/snow.npy\. In"):
        open_set(f"{name}:{tmp_path}/snow/3")
    with pytest.raises(DataError, match="'6' is no severity from 1 to 5"):
        open_set(f"{name}:{tmp_path}/fog/6")
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(DataError, match=r"there is no .*/labels.npy"):
        open_set(f"{name}:{tmp_path}/fog/1")


def test_networks_are_not_trained_on_shifted_images(tmp_path):
    np.save(tmp_path / "fog.npy", np.zeros((20, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.zeros(20, np.uint8))
    recipe = Recipe("tiny_classifier", workloads=f"set:cifar10c:{tmp_path}/fog/1", classes=10, height=32, width=32)
    with pytest.raises(DataError, match="has no images to train on"):
        draw_data(recipe)


def test_a_severity_of_imagenet_c_is_a_folder_of_wordnet_numbers(tmp_path):
    for severity in range(1, 6):
        for kind, wnid in enumerate(("n01440764", "n01443537")):
            for number in range(2):
                save(tmp_path / f"fog/{severity}/{wnid}/ILSVRC2012_val_0000000{number}.JPEG", 40 * severity + 10 * kind)
    found = open_set(f"imagenetc:{tmp_path}/fog/4", size=8)
    assert found.classes == ("n01440764", "n01443537")
    assert sorted(zip(found.test.classes.tolist(), levels(found.test.images), strict=True)) == [
        (0, 160), (0, 160), (1, 170), (1, 170),
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"there is no .*/fog2/4\. In"):
        open_set(f"imagenetc:{tmp_path}/fog2/4")


@pytest.fixture
def clear(tmp_path):
    """Write CLEAR's layout: per part and class a list of images, with one image per year."""
    for part, level in (("train", 0), ("test", 100)):
        folder = tmp_path / part
        lists = {}
        for year in ("1", "2"):
            lists[year] = {}
            for kind, name in enumerate(("bus", "camera", "cosplay")):
                image = f"labeled_images/{year}/{name}/{year}{kind}.jpg"
                save(folder / image, level + 20 * int(year) + kind)
                lists[year][name] = f"labeled_metadata/{year}/{name}.json"
                file = folder / lists[year][name]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps({f"{year}{kind}": {"IMG_PATH": image}}))
        (folder / "labeled_metadata.json").write_text(json.dumps(lists))
        (folder / "class_names.txt").write_text("bus\ncamera\ncosplay\n")
    return tmp_path


def test_clear_is_read_as_a_whole_and_by_year(clear):
    found = open_set(f"clear:{clear}", size=8)
    assert found.classes == ("bus", "camera", "cosplay")
    assert sorted(levels(found.test.images)) == [120, 121, 122, 140, 141, 142]
    assert len(found.train.classes) + len(found.val.classes) == 6
    year = open_set(f"clear:{clear}/2", size=8)
    assert sorted(zip(levels(year.test.images), year.test.classes.tolist(), strict=True)) == [
        (140, 0),
        (141, 1),
        (142, 2),
    ]
    with pytest.raises(DataError, match="has no bucket 7, but 1, 2"):
        open_set(f"clear:{clear}/7")
    (clear / "test/labeled_images/2/bus/20.jpg").unlink()
    with pytest.raises(DataError, match=r"there is no .*test/labeled_images/2/bus/20.jpg"):
        open_set(f"clear:{clear}/2")


def test_core50_is_tested_on_sessions_three_seven_and_ten(tmp_path):
    for session in range(1, 12):
        for number in (1, 5, 6, 50):
            save(tmp_path / f"s{session}/o{number}/C_{session:02d}_{number:02d}_000.png", 20 * session)
    found = open_set(f"core50:{tmp_path}", size=8)
    assert found.classes == CORE50
    assert sorted(set(levels(found.test.images))) == [60, 140, 200]
    assert sorted(found.test.classes.tolist()) == [0] * 6 + [1] * 3 + [9] * 3
    assert set(levels(open_set(f"core50:{tmp_path}/s4", size=8).test.images)) == {80}
    with pytest.raises(DataError, match=r"there is no .*/s12\. In"):
        open_set(f"core50:{tmp_path}/s12")


@pytest.fixture(scope="module")
def reduced(tmp_path_factory, torchvision):
    """Write a CIFAR-10 of signs, and a CIFAR-10-C of its test images with driftlab's corruptions."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield write_archives(tmp_path_factory.mktemp("reduced") / "archives", monkeypatch, torchvision)


def write_archives(root, monkeypatch, torchvision):
    signs = open_set("signs/rp", size=32, classes=10, counts=(1000, 1, 200))
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (archive := root / "CIFAR-10-C").mkdir()

    def write(name: str, content: dict) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def batch(name: str, part, rows: slice) -> list[str]:
        images = part.images[rows].transpose(0, 3, 1, 2).reshape(len(part.images[rows]), -1)
        return write(name, {"data": images, "labels": part.classes[rows].tolist()})

    kind = torchvision.datasets.CIFAR10
    parts = [batch(f"data_batch_{k}", signs.train, slice(200 * (k - 1), 200 * k)) for k in range(1, 6)]
    monkeypatch.setattr(kind, "train_list", parts)
    monkeypatch.setattr(kind, "test_list", [batch("test_batch", signs.test, slice(None))])
    _, md5 = write("batches.meta", {"label_names": list(CIFAR10)})
    monkeypatch.setattr(kind, "meta", {"filename": "batches.meta", "key": "label_names", "md5": md5})
    images, classes = signs.test.images, signs.test.classes
    for shift in SHIFTS:
        rows = [
            shifted(image, Domain(shift, severity), np.random.default_rng([number, severity]))
            for severity in range(1, 6)
            for number, image in enumerate(images)
        ]
        np.save(archive / f"{shift}.npy", np.stack(rows))
    np.save(archive / "labels.npy", np.tile(classes, 5))
    return root


@pytest.mark.slow
def test_a_reduced_cifar_10_c_has_its_severities_in_order_for_a_fixed_network(reduced, tmp_path):
    domains = [f"set:cifar10c:{reduced}/CIFAR-10-C/{shift}/{severity}" for severity in range(1, 6) for shift in SHIFTS]
    run = driftlab.run(
        {
            "name": "cifar10c",
            "bounds": False,
            "snapshots": 0,
            "systems": ["no_custom"],
            "student": {"network": "tiny_classifier", "pretrain_steps": 300, "pretrain_batch": 16},
            "workloads": [
                {
                    "name": f"domains:set:cifar10:{reduced}",
                    "duration_s": 20.0 * len(domains),
                    "fps": 10,
                    "height": 32,
                    "width": 32,
                    "params": {"shifts": domains, "order": "listed", "domain_s": 20},
                }
            ],
        },
        out=tmp_path / "run",
    )
    frames = driftlab.open_run(run.directory).frame("frames")
    by_severity = frames.groupby(frames["scene"] // len(SHIFTS))["score_frame"].mean()
    assert len(by_severity) == 5
    assert (by_severity.diff().dropna() < 0).all(), by_severity.to_list()
    assert by_severity[0] > 0.6


def test_listed_domains_keep_their_order(tmp_path):
    shifts = ["fog", "clean", "snow"]
    stream = open_stream(
        "domains:set:digits", seed=3, height=16, width=16, fps=2, duration_s=12, shifts=shifts, severities=[5],
        order="listed", domain_s=2,
    )  # fmt: skip
    assert stream.at(np.arange(0, 12, 2.0)).scenes.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.slow
def test_the_protocol_of_the_page_is_planned_on_the_archive(reduced, monkeypatch):
    monkeypatch.chdir(reduced.parent)
    text = next(block.text for block in blocks(DOCS / "your-data.md") if block.name == "cifar10c.yaml")
    own = '"standard_wrn.py:Standard", weights: standard.safetensors'
    assert own in text
    Path("cifar10c.yaml").write_text(text.replace(own, "wrn_28_10"))  # methods are tried on a network of a file
    corruptions = re.findall(r"CIFAR-10-C/(\w+)/5", text)
    assert len(corruptions) == 15
    for name in corruptions:
        if name not in SHIFTS:
            shutil.copy(reduced / f"CIFAR-10-C/{SHIFTS[0]}.npy", reduced / f"CIFAR-10-C/{name}.npy")
    assert "7 cells" in invoke(["run", "cifar10c.yaml", "--dry-run"])
