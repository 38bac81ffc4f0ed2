"""Archives on disk: small ones in the real layout, and errors for missing and damaged ones."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from archives_factory import NAMES, pictures, write_cifar10, write_gtsrb, write_svhn
from PIL import Image

from driftlab.datasets import archives, labelled_set
from driftlab.datasets.archives import ARCHIVES
from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.labelled import SETS, class_names, folder_digest, open_set
from driftlab.errors import DataError, RequestError
from driftlab.platform.networks.training.artifacts import Recipe
from driftlab.platform.networks.training.pretrain import draw_data


@pytest.fixture(scope="module")
def torchvision_datasets(torchvision):
    return torchvision.datasets


def agree(part):
    return np.array_equal(part.images.mean((1, 2)).argmax(1), part.classes)


@pytest.fixture
def cifar(tmp_path, monkeypatch, torchvision_datasets):
    write_cifar10(tmp_path, monkeypatch, torchvision_datasets)
    return tmp_path


def test_cifar_is_read_with_a_validation_part(cifar):
    found = open_set(f"cifar10:{cifar}")
    assert found.classes == NAMES
    assert [len(part.classes) for part in (found.train, found.val, found.test)] == [54, 6, 15]
    assert found.train.images.shape == (54, 32, 32, 3) and found.train.images.dtype == np.uint8
    assert agree(found.train) and agree(found.val) and agree(found.test)
    both = {image.tobytes() for part in (found.train, found.val) for image in part.images}
    assert len(both) == 60


def test_requested_counts_are_the_same_for_the_same_seed(cifar):
    first, same, other = (open_set(f"cifar10:{cifar}", counts=(20, 10, 5), seed=seed, size=16) for seed in (1, 1, 2))
    assert [len(part.classes) for part in (first.train, first.val, first.test)] == [20, 10, 5]
    assert first.train.images.shape == (20, 16, 16, 3) and agree(first.train)
    assert np.array_equal(first.train.images, same.train.images)
    assert not np.array_equal(first.train.classes, other.train.classes)
    most = open_set(f"cifar10:{cifar}", counts=10)
    assert [len(part.classes) for part in (most.train, most.val, most.test)] == [10, 6, 10] and agree(most.test)
    assert np.array_equal(most.train.images, open_set(f"cifar10:{cifar}").train.images[:10])
    with pytest.raises(DataError, match=r"too few pictures \(train and val: 70 asked for, 60 there\)"):
        open_set(f"cifar10:{cifar}", counts=(60, 10, 5))
    with pytest.raises(DataError, match=r"too few pictures \(test: 16 asked for, 15 there\)"):
        open_set(f"cifar10:{cifar}", counts=(6, 1, 16))


def test_an_incomplete_archive_is_refused(cifar):
    (cifar / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"(?s)cannot be read from .*FOLDER holds cifar-10-batches-py/data_batch_1"):
        open_set(f"cifar10:{cifar}")


def write_folders(folder, n):
    for image, number in zip(*pictures(n), strict=True):
        place = folder / NAMES[number]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((40, 20)).save(place / f"{len(list(place.iterdir()))}.png")


def test_folders_of_images_of_any_size_are_read(tmp_path, torchvision_datasets):
    write_folders(tmp_path / "train", 30)
    write_folders(tmp_path / "test", 9)
    found = open_set(f"images:{tmp_path}", size=24)
    assert found.classes == NAMES and [len(found.train.classes), len(found.val.classes)] == [27, 3]
    assert found.test.images.shape == (9, 24, 24, 3) and agree(found.train) and agree(found.test)


def test_a_large_archive_is_refused_before_it_is_read(tmp_path, monkeypatch, torchvision_datasets):
    write_folders(tmp_path / "train", 30)
    write_folders(tmp_path / "test", 9)
    with monkeypatch.context() as changed, pytest.raises(RequestError, match=r"bytes, allowed are 1,000"):
        changed.setattr(labelled_set, "MAX_ARCHIVE_BYTES", 1000)
        open_set(f"images:{tmp_path}")
    monkeypatch.setattr(labelled_set, "MAX_SET_BYTES", 30 * 24 * 24 * 3)
    with pytest.raises(RequestError, match="39 pictures of 576 pixels take"):
        open_set(f"images:{tmp_path}", size=24)
    assert len(open_set(f"images:{tmp_path}", size=24, counts=5).test.images) == 5


def test_a_cycle_of_links_is_refused_and_other_links_are_followed(tmp_path, torchvision_datasets):
    """Reading pictures, torchvision would follow two such links 2 to the 40th times."""
    write_folders(tmp_path / "elsewhere", 30)
    (tmp_path / "set").mkdir()
    for part in ("train", "test"):
        (tmp_path / "set" / part).symlink_to(tmp_path / "elsewhere")
    found = open_set(f"images:{tmp_path / 'set'}", size=24)
    assert len(found.test.images) == 30
    assert folder_digest(f"images:{tmp_path / 'set'}") != folder_digest(f"images:{tmp_path / 'elsewhere'}")
    for name in ("a", "b"):
        (tmp_path / "elsewhere" / "cat" / name).symlink_to(tmp_path / "set")
    with pytest.raises(RequestError, match="link to a folder that it lies in"):
        open_set(f"images:{tmp_path / 'set'}", size=24)


def test_the_error_for_an_unreadable_image_has_its_name(tmp_path, torchvision_datasets):
    write_folders(tmp_path / "train", 30)
    write_folders(tmp_path / "test", 9)
    (tmp_path / "test" / "cat" / "0.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"cat/0\.png cannot be read"):
        open_set(f"images:{tmp_path}", size=24)


def test_svhn_is_read(tmp_path, monkeypatch, torchvision_datasets):
    write_svhn(tmp_path, monkeypatch, torchvision_datasets)
    found = open_set(f"svhn:{tmp_path}")
    assert found.classes == ("0", "1", "2") and agree(found.train) and agree(found.test)


def test_gtsrb_is_read(tmp_path, torchvision_datasets):
    write_gtsrb(tmp_path)
    found = open_set(f"gtsrb:{tmp_path}")
    assert found.classes == ("0", "1", "2") and len(found.test.classes) == 6
    assert agree(found.train) and agree(found.val) and agree(found.test)


@pytest.mark.parametrize("name", ARCHIVES)
def test_the_error_for_a_missing_archive_has_its_layout(name, tmp_path, torchvision_datasets):
    for request in (name, f"{name}:{tmp_path}", f"{name}:{tmp_path}/nowhere"):
        with pytest.raises(DataError) as caught:
            open_set(request)
        assert f"'{name}:FOLDER' FOLDER holds {ARCHIVES[name].layout}" in str(caught.value)
        assert "download=True" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [None, RuntimeError("operator torchvision::nms does not exist")])
def test_other_sets_open_without_torchvision(monkeypatch, broken):
    class Broken:
        def __getattr__(self, name):
            raise broken

    monkeypatch.setitem(sys.modules, "torchvision", Broken() if broken else None)
    with pytest.raises(RequestError, match="needs torchvision, which cannot be imported here"):
        open_set("cifar10:/data")
    assert len(open_set("signs/vg", counts=(4, 2, 2)).train.classes) == 4


@pytest.mark.slow
def test_digits_equal_those_of_scikit_learn():
    found = open_set("digits")
    assert [len(part.classes) for part in (found.train, found.val, found.test)] == [1077, 360, 360]
    assert found.classes == tuple("0123456789") and found.train.images.shape[1:] == (32, 32, 3)
    assert np.ptp(found.train.images.astype(int), axis=3).max() == 0  # grey
    small = open_set("digits", size=8, counts=(500, 100, 500))
    centres = np.stack([small.train.images[small.train.classes == digit].mean(0).ravel() for digit in range(10)])
    flat = small.test.images.reshape(500, -1).astype(float)
    nearest = ((flat[:, None] - centres) ** 2).sum(-1).argmin(1)
    assert (nearest == small.test.classes).mean() > 0.8  # pictures and classes belong together
    with pytest.raises(DataError, match="1800 asked for, 1797 there"):
        open_set("digits", counts=(1000, 400, 400))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "needs scikit-learn. Install it"),
        (SimpleNamespace(origin="/none/__init__.py"), "has no file '/none/datasets/data"),
    ],
)
def test_a_missing_file_of_digits_is_named(monkeypatch, found, message):
    monkeypatch.setattr(archives, "find_spec", lambda name: found)
    archives._digits.cache_clear()
    with pytest.raises(DataError, match=message):
        open_set("digits")


@pytest.mark.parametrize("name", [name for name in SETS if not name.startswith("signs/")])
def test_only_signs_have_a_variable_number_of_classes(name):
    with pytest.raises(RequestError, match="classes is 5, but only signs can be had in any"):
        open_set(name, classes=5)


class TestJoinedSets:
    def test_images_take_turns_and_classes_of_one_name_are_one(self, tmp_path, monkeypatch, torchvision_datasets):
        write_cifar10(tmp_path / "cifar10", monkeypatch, torchvision_datasets)
        for part, count in (("train", 30), ("test", 9)):
            write_folders(tmp_path / "images" / part, count)
            for name, other in (("aeroplane", "airplane"), ("cat", "dog")):
                (tmp_path / "images" / part / name).rename(tmp_path / "images" / part / other)
        found = open_set(f"cifar10+images:{tmp_path}", size=24)
        alone = open_set(f"cifar10:{tmp_path / 'cifar10'}", size=24)
        other = open_set(f"images:{tmp_path / 'images'}", size=24)
        assert found.classes == (*NAMES, "dog") and class_names(f"cifar10+images:{tmp_path}") == found.classes
        assert [len(part.classes) for part in (found.train, found.val, found.test)] == [81, 9, 24]
        assert np.array_equal(found.train.images[:4:2], alone.train.images[:2])
        assert np.array_equal(found.train.images[1:4:2], other.train.images[:2])
        assert np.array_equal(found.test.classes[1:18:2], np.array([0, 1, 3])[other.test.classes])
        most = open_set(f"cifar10+images:{tmp_path}", size=24, counts=10)
        assert np.array_equal(most.test.images, found.test.images[:10])
        exact = open_set(f"cifar10+images:{tmp_path}", size=24, counts=(11, 2, 5))
        assert [len(part.classes) for part in (exact.train, exact.val, exact.test)] == [11, 2, 5]

    @pytest.mark.slow
    def test_a_network_learns_from_them_and_meets_another_set(self, tmp_path, monkeypatch, torchvision_datasets):
        write_cifar10(tmp_path / "cifar10", monkeypatch, torchvision_datasets)
        for folder in ("images", "other"):
            for part, count in (("train", 30), ("test", 9)):
                write_folders(tmp_path / folder / part, count)
                (tmp_path / folder / part / "cat").rename(tmp_path / folder / part / "dog")
        name, size = f"set:cifar10+images:{tmp_path}", {"height": 16, "width": 16, "fps": 10.0}
        shifts = ["clean", f"set:images:{tmp_path / 'other'}"]
        params = {"shifts": shifts, "order": "interleaved", "domain_s": 2, "before_s": 0, "adapt_s": 1}
        stream = open_stream(f"domains:{name}", seed=0, duration_s=4.0, **params, **size)
        scored = np.arange(1, 2, 0.1)  # the first second of each domain is to adapt on
        first, second = (set(stream.at(scored + start).classes.tolist()) for start in (0, 2))
        assert stream.classes == (*NAMES, "dog") and first == {0, 1, 2, 3} and second == {0, 1, 3}
        recipe = Recipe("tiny_classifier", len(stream.classes), 16, 16, name, steps=2, batch=32)
        assert set(draw_data(recipe).train.labels.tolist()) == {0, 1, 2, 3}

    def test_errors_name_the_set_and_its_folders(self):
        with pytest.raises(RequestError, match="joins a set with itself"):
            open_set("digits+digits")
        with pytest.raises(RequestError, match="'unknown'"):
            open_set("digits+unknown")
        with pytest.raises(DataError, match="FOLDER has a folder for each of svhn"):
            open_set("digits+svhn")
