"""Built networks are kept whole, built once, never trusted when damaged."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from driftlab.errors import RequestError
from driftlab.platform.models import artifacts, pretrain
from driftlab.platform.models.artifacts import Recipe, cache_folder, obtain
from driftlab.platform.models.digest import digest

RECIPE = Recipe("half")
WEIGHTS = {"a.weight": np.arange(12, dtype=np.float32).reshape(3, 4), "a.count": np.array(7)}


@pytest.fixture
def built(monkeypatch, tmp_path):
    """Put the cache into an empty folder and the building of weights where it can be counted."""
    recipes = []

    def build(recipe):
        recipes.append(recipe)
        time.sleep(0.05)  # long enough for others to come and ask
        return WEIGHTS

    monkeypatch.setenv(artifacts.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(pretrain, "pretrain", build)
    return recipes


def kept():
    (path,) = cache_folder().glob("*.safetensors")
    return path


def test_the_second_request_reads_what_the_first_one_built(built):
    assert obtain(RECIPE) is WEIGHTS
    again = obtain(Recipe("half"))
    assert built == [RECIPE]
    assert digest(again) == digest(WEIGHTS)
    assert again["a.count"].shape == ()


def test_what_is_kept_says_how_it_was_built_and_leaves_no_drafts(built):
    obtain(RECIPE)
    told = json.loads(kept().with_suffix(".json").read_text())
    given, later = dataclasses.asdict(RECIPE), ("fresh_head", "content")
    assert not any(given.pop(name) or name in told for name in later)  # so that what was built before them is found
    assert {**told, **given} == told
    assert told["digest"] == digest(WEIGHTS)
    assert told["torch"]
    assert sorted(path.suffix for path in cache_folder().iterdir()) == [".json", ".lock", ".safetensors"]


def test_every_field_of_a_recipe_decides_where_it_is_kept():
    other = {"str": "other", "int": 3, "float": 0.5, "bool": True}
    changed = [
        dataclasses.replace(RECIPE, **{field.name: other[str(field.type)]}) for field in dataclasses.fields(Recipe)
    ]
    assert len({recipe.key() for recipe in [RECIPE, *changed]}) == len(changed) + 1
    assert RECIPE.key() == Recipe("half").key()


def shorten(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def forge(path):
    from safetensors.numpy import save_file

    save_file({"a.weight": np.zeros(3)}, path)


@pytest.mark.parametrize("damage", [shorten, flip, empty, forge])
def test_a_damaged_file_is_built_again_with_a_warning(built, caplog, damage):
    obtain(RECIPE)
    damage(kept())
    with caplog.at_level(logging.WARNING):
        assert digest(obtain(RECIPE)) == digest(WEIGHTS)
    assert len(built) == 2
    assert "damaged" in caplog.text
    assert digest(obtain(RECIPE)) == digest(WEIGHTS)
    assert len(built) == 2


def test_a_writer_that_dies_half_way_leaves_nothing_to_trust(built, monkeypatch):
    from pathlib import Path

    whole = Path.write_bytes

    def die(self, content):
        weights = ".safetensors" in self.name
        whole(self, content[: len(content) // 2] if weights else content)
        if weights:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_bytes", die)
        obtain(RECIPE)
    assert not list(cache_folder().glob("*.safetensors"))
    assert digest(obtain(RECIPE)) == digest(WEIGHTS)


def test_those_who_ask_together_build_once(built):
    together = threading.Barrier(4)
    found = []

    def ask():
        together.wait()
        found.append(digest(obtain(RECIPE)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert found == [digest(WEIGHTS)] * 4


def test_reading_needs_neither_the_lock_nor_a_folder_to_write_to(built):
    obtain(RECIPE)
    lock = kept().with_suffix(".lock")
    lock.unlink()
    lock.mkdir()  # from now on nobody can take it
    assert digest(obtain(RECIPE)) == digest(WEIGHTS)


def test_a_builder_that_was_killed_holds_nobody_up(built):
    lock = cache_folder() / f"half-{RECIPE.key()}.lock"
    lock.parent.mkdir()
    hold = "f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    code = f"import fcntl, sys, time; {hold}"
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    asked = threading.Thread(target=obtain, args=(RECIPE,))
    asked.start()
    asked.join(0.2)
    assert not built  # it waits while the other builds
    holder.kill()
    holder.wait()
    asked.join(30)
    assert built == [RECIPE]


def test_a_folder_that_cannot_be_written_is_a_request_with_a_cure(built, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(artifacts.FOLDER_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(RequestError, match=r"file/cache.*Set DRIFTLAB_CACHE to a folder"):
        obtain(RECIPE)
    assert not built  # refused before the work, not after it


def test_without_the_variable_the_users_cache_is_used(monkeypatch, tmp_path):
    monkeypatch.delenv(artifacts.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert cache_folder() == tmp_path / "driftlab" / "networks"
