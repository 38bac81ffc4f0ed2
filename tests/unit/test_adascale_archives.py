"""CIFAR and Tiny ImageNet from archives, as a workload of every AdaScale experiment."""

from __future__ import annotations

import pytest
from archives_factory import pictures, write_cifar10
from PIL import Image

from driftlab.datasets.labelled import open_set
from driftlab.errors import DataError
from driftlab.platform.lab import read

WNIDS = ("n01", "n02", "n03")
MIXED = ("adascale-together",)  # other networks than classifiers


@pytest.fixture(scope="module")
def cifar(tmp_path_factory, torchvision):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cifar")
        write_cifar10(folder, patch, torchvision.datasets)
        yield folder


@pytest.fixture
def tiny(tmp_path):
    """Write Tiny ImageNet's files with a few images of three classes, their names in reverse order."""
    root = tmp_path / "tiny-imagenet-200"
    for part, n in (("train", 12), ("val", 6)):
        for number, (image, kind) in enumerate(zip(*pictures(n), strict=True)):
            place = root / part / (f"{WNIDS[kind]}/images" if part == "train" else "images")
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{part}_{number}.JPEG")
    lines = [f"val_{number}.JPEG\t{WNIDS[number % 3]}\t0\t0\t31\t31" for number in range(6)]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "wnids.txt").write_text("\n".join(reversed(WNIDS)) + "\n")
    return tmp_path


@pytest.mark.slow
def test_tiny_imagenet_is_read_from_its_folders_and_its_list(tiny):
    found = open_set(f"tiny_imagenet:{tiny}")
    assert found.classes == WNIDS
    assert [len(part.classes) for part in (found.train, found.val, found.test)] == [11, 1, 6]
    for part in (found.train, found.test):
        assert (part.images.mean((1, 2)).argmax(1) == part.classes).all()
    (tiny / "tiny-imagenet-200" / "val" / "images" / "val_0.JPEG").unlink()
    with pytest.raises(DataError, match=r"there is no .*val_0\.JPEG"):
        open_set(f"tiny_imagenet:{tiny}")


@pytest.mark.parametrize("name", [one for one in read.names() if one.startswith("adascale-") and one not in MIXED])
def test_an_archive_replaces_the_first_workload_and_its_parameters(name, cifar):
    workload = read.load(name, [f"workloads.0.name=set:cifar10:{cifar}"]).workloads[0]
    assert workload.name == f"set:cifar10:{cifar}" and not workload.params
    assert not any(app.params for app in workload.apps)


def test_an_archive_takes_a_classifier_where_the_experiment_has_others(cifar):
    networks = [f"workloads.0.apps.{number}.network=tiny_staged" for number in range(2)]
    found = read.load("adascale-together", [f"workloads.0.name=set:cifar10:{cifar}", *networks])
    assert found.workloads[0].name == f"set:cifar10:{cifar}"


def test_parameters_stay_if_the_kind_of_workload_does():
    (workload,) = read.load("adascale-loads", ["workloads.0.name=signs/town"]).workloads
    assert workload.apps[0].params == {"classes": 5}
