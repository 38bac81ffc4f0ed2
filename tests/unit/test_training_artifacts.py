"""The cache of built networks: atomic writes, one build per key, damaged files are rebuilt."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from driftlab.errors import RequestError
from driftlab.platform.core.registry import Member, member_class
from driftlab.platform.networks.digest import digest
from driftlab.platform.networks.training import artifacts, pretrain
from driftlab.platform.networks.training.artifacts import (
    FamilyRecipe,
    Recipe,
    SourceSummaryRecipe,
    cache_folder,
    obtain,
    obtain_pack,
)
from driftlab.platform.sim.nodes.networks import Builder

RECIPE = Recipe("half")
WEIGHTS = {"a.weight": np.arange(12, dtype=np.float32).reshape(3, 4), "a.count": np.array(7)}


@pytest.fixture
def built(monkeypatch, tmp_path):
    """Use an empty cache folder, and return a list with an entry per build."""
    recipes = []

    def build(recipe, before):
        recipes.append(recipe)
        time.sleep(0.05)  # long enough for concurrent requests
        return WEIGHTS

    monkeypatch.setenv(artifacts.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(pretrain, "pretrain", build)
    return recipes


def kept():
    (path,) = cache_folder().glob("*.safetensors")
    return path


def test_the_cache_holds_weights_and_recipe_and_no_temporary_files(built):
    obtain(RECIPE)
    stored = json.loads(kept().with_suffix(".json").read_text())
    given, later = dataclasses.asdict(RECIPE), ["fresh_head", "content", "lessons", "start", "start_digest"]
    later += ["elsewhere", "elsewhere_steps", "elsewhere_content", "device", "precision", "portable", "code", "shifts"]
    usual = dataclasses.asdict(Recipe("half"))
    assert not any(given.pop(name) != usual[name] or name in stored for name in later)  # existing entries stay valid
    assert {**stored, **given} == stored
    assert stored["digest"] == digest(WEIGHTS)
    assert stored["torch"]
    assert sorted(path.suffix for path in cache_folder().iterdir()) == [".json", ".lock", ".safetensors"]


def test_every_field_of_a_recipe_changes_its_key():
    other = {"str": "other", "int": 3, "float": 0.5, "bool": True}
    other |= {"tuple[tuple[str, float], ...]": (("noise", 2.0),), "tuple[str, ...]": ("fog",)}
    changed = [
        dataclasses.replace(RECIPE, **{field.name: other[str(field.type)]}) for field in dataclasses.fields(Recipe)
    ]
    assert len({recipe.key() for recipe in [RECIPE, *changed]}) == len(changed) + 1
    assert RECIPE.key() == Recipe("half").key()


def test_initial_weights_are_identified_by_their_digest_in_any_folder():
    def key(start, digest="x"):
        return dataclasses.replace(RECIPE, start=start, start_digest=digest).key()

    assert key("a.safetensors") == key("./a.safetensors") != key("a.safetensors", "y")
    assert RECIPE.key() not in {key("a.safetensors"), key("a.safetensors", "")}


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


def test_an_interrupted_write_is_rebuilt(built, monkeypatch):
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


def test_concurrent_requests_build_once(built):
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
    lock.mkdir()  # the lock can no longer be taken
    assert digest(obtain(RECIPE)) == digest(WEIGHTS)


def test_a_killed_builder_releases_the_lock(built):
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
    assert not built  # it waits for the other builder
    holder.kill()
    holder.wait()
    asked.join(30)
    assert built == [RECIPE]


def test_an_unwritable_folder_is_refused_with_the_fix(built, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(artifacts.FOLDER_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(RequestError, match=r"file/cache.*Set DRIFTLAB_CACHE to a folder"):
        obtain(RECIPE)
    assert not built  # refused before the build


LOOKING = """
from dataclasses import dataclass

import numpy as np

from driftlab.platform.adaptation.frozen import Frozen


@dataclass(frozen=True)
class Looking(Frozen):
    scale: float = 1.0

    has_source_summary = True

    def summarise_source(self, model, data):
        import torch

        assert not model.training
        torch.rand(1)
        with open(__file__ + ".asked", "a") as asked:
            asked.write("x")
        return {
            "mean": np.float64(self.scale * data.train.images.mean()),
            "weights": np.int64(sum(p.numel() for p in model.parameters())),
            "frames": np.array(data.train.images.shape),
            "view": np.arange(6.0).reshape(2, 3).T,
        }
"""


@pytest.fixture
def looking(tmp_path, monkeypatch):
    monkeypatch.setenv(artifacts.FOLDER_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "looking.py").write_text(LOOKING)

    def recipe(adaptation=f"{tmp_path}/looking.py:Looking", params=(), **network):
        family = FamilyRecipe(Recipe("half", height=16, width=24, steps=0, **network), Member("scaling", "fixed"))
        return SourceSummaryRecipe(family, Member("adaptation", adaptation, params))

    return recipe


def times_asked(tmp_path) -> int:
    return len((tmp_path / "looking.py.asked").read_text())


@pytest.mark.slow
def test_a_pack_is_found_out_once(looking, tmp_path):
    import torch

    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = obtain_pack(looking())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert digest(obtain_pack(looking())) == digest(first)
    reply = Builder().pack(looking())
    assert (reply.facts, digest(reply.payload)) == (digest(first), digest(first))
    assert obtain_pack(looking())["view"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert times_asked(tmp_path) == 1
    assert first["frames"].tolist() == [64, 16, 24, 3]
    assert first["weights"] == 6288
    assert 0 < first["mean"] < 255
    stored = json.loads(next(cache_folder().glob("looking.py-Looking-pack-half-*.json")).read_text())
    assert stored["adaptation"]["scale"] == 1.0
    assert stored["family"]["network"]["network"] == "half"


@pytest.mark.slow
def test_a_pack_belongs_to_its_family_and_to_its_member(looking, tmp_path):
    recipes = [looking(), looking(params=(("scale", 2.0),)), looking(seed=1)]
    packs = [obtain_pack(recipe) for recipe in recipes]
    assert times_asked(tmp_path) == 3
    assert len({recipe.key() for recipe in recipes}) == 3
    assert packs[1]["mean"] == 2 * packs[0]["mean"]
    edited = looking().key()
    with (tmp_path / "looking.py").open("a") as file:
        file.write("# changed\n")
    assert looking().key() != edited


def test_families_that_were_built_before_packs_are_found(monkeypatch):
    """A build takes minutes, so that a key must only change with the result."""
    monkeypatch.setattr(artifacts, "version_of", lambda name: "2.0")
    assert FamilyRecipe(RECIPE, Member("scaling", "usnet")).key() == "88cd3e06f7341d123229"


@pytest.mark.parametrize("older", [False, True])
def test_a_network_of_another_recipe_is_refused_and_built_again(built, caplog, older):
    """A file copied under the name of another recipe is intact, but has the wrong weights."""
    other = dataclasses.replace(RECIPE, steps=3)
    obtain(other)
    wrong, right = kept(), cache_folder() / f"half-{RECIPE.key()}.safetensors"
    if older:
        save_file(load_file(wrong), wrong, metadata={"digest": digest(WEIGHTS)})
    shutil.copy(wrong, right)
    shutil.copy(wrong.with_suffix(".json"), right.with_suffix(".json"))
    with caplog.at_level(logging.WARNING):
        obtain(RECIPE)
    assert built == [other, RECIPE]
    assert str(right) in caplog.text
    obtain(RECIPE)
    assert built == [other, RECIPE]


def test_a_network_without_recipe_metadata_is_checked_by_its_json_file(built):
    obtain(RECIPE)
    save_file(load_file(kept()), kept(), metadata={"digest": digest(WEIGHTS)})
    obtain(RECIPE)
    assert built == [RECIPE]


def test_the_version_of_a_member_changes_only_its_keys(monkeypatch):
    def keys():
        families = [FamilyRecipe(RECIPE, Member("scaling", name)) for name in ("usnet", "nested")]
        packs = [SourceSummaryRecipe(families[1], Member("adaptation", name)) for name in ("tent", "shot")]
        return [recipe.key() for recipe in (*families, *packs)]

    before = keys()
    monkeypatch.setattr(member_class("scaling", "usnet"), "version", 2)
    assert [a == b for a, b in zip(before, keys(), strict=True)] == [False, True, True, True]
    monkeypatch.setattr(member_class("adaptation", "shot"), "version", 2)
    assert [a == b for a, b in zip(before, keys(), strict=True)] == [False, True, True, False]
