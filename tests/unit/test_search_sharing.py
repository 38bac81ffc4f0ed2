"""Trained networks that trials exchange: built once, also if a process waits, fails or is killed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from ray import exceptions

from driftlab.platform.core.registry import Member
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe, SourceSummaryRecipe
from driftlab.tune_spaces import sharing
from driftlab.tune_spaces.sharing import CLAIM_S, NetworkShelf, Sharing, keys_of

FAMILY = FamilyRecipe(Recipe("half"), Member("scaling", "fixed"))
PACK = SourceSummaryRecipe(FAMILY, Member("adaptation", "tent"))
SLEEPS = 10_000  # of all processes together, before a test fails
FILE = f"half-{FAMILY.network.key()}.safetensors"


class Clock:
    """Time that passes where a test lets it pass."""

    now_s, slept = 0.0, 0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.slept += 1
        assert self.slept < SLEEPS, "it waits without end"
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Calls of Ray are plain ones."""
    clock = Clock()
    monkeypatch.setattr(sharing, "ray", SimpleNamespace(get=lambda found: found, put=lambda found: found))
    monkeypatch.setattr(sharing, "time", clock)
    monkeypatch.setattr(sharing, "REPORT_S", 0.001)
    return clock


def handle(**calls):
    """Give a shelf as Ray does."""
    return SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in calls.items()})


@pytest.fixture
def shelf():
    return NetworkShelf(CLAIM_S)


@pytest.fixture
def computers(tmp_path, shelf):
    """The exchange of two computers, and the folder of each."""
    one, folders = handle(claim=shelf.claim, find=shelf.find, add=shelf.add), [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    return [(Sharing(one, folder), folder) for folder in folders]


def obtain(exchange, folder, recipe=FAMILY, content=b"network"):
    """Take a network, or build it; return whether it was built here."""
    with exchange(recipe):
        missing = not (folder / FILE).exists()
        if missing:
            (folder / FILE).write_bytes(content)
    return missing


def test_a_pack_comes_with_the_network_and_the_family_that_it_is_made_from():
    assert keys_of(PACK) == [FAMILY.network.key(), FAMILY.key(), PACK.key()]


def test_the_second_computer_takes_what_the_first_has_built(computers, clock):
    first, second = computers
    assert obtain(*first)
    clock.now_s += CLAIM_S
    assert [obtain(*second), obtain(*second, PACK)] == [False, False]
    assert [(folder / FILE).read_bytes() for _, folder in computers] == [b"network"] * 2


def test_files_that_a_computer_has_are_offered_and_stay(computers):
    for _, folder in computers:
        (folder / FILE).write_bytes(folder.name.encode())
    assert [obtain(*one) for one in computers] == [False, False]
    assert [(folder / FILE).read_bytes() for _, folder in computers] == [b"first", b"second"]


def test_others_wait_for_a_process_that_builds_and_reports(computers, shelf, clock, monkeypatch):
    (first, folder), second = computers
    built, asked, claim = [], Counter(), shelf.claim

    def reported(key, process):
        granted = claim(key, process)
        asked[process] += 1
        if granted and key == FAMILY.network.key():
            clock.now_s += 0.9 * CLAIM_S  # nearly too long until the next report
        return granted

    first._shelf.claim.remote = reported  # of both computers
    with first(FAMILY):
        waiting = threading.Thread(target=lambda: built.append(obtain(*second)), daemon=True)
        waiting.start()
        while min(asked[one._process] for one in (first, second[0])) < 5:
            assert waiting.is_alive()
            clock.sleep(0)
        (folder / FILE).write_bytes(b"network")
    waiting.join()
    assert built == [False]


def test_a_build_that_is_killed_goes_to_the_next_process(computers, clock):
    (first, _), second = computers
    assert not first._take(FAMILY.network.key())  # and no report follows
    assert not second[0]._shelf.claim.remote(FAMILY.network.key(), "second")
    clock.now_s += CLAIM_S
    assert obtain(*second)


def test_a_build_that_fails_is_not_waited_for(computers):
    (first, _), second = computers
    with pytest.raises(ZeroDivisionError), first(FAMILY):
        _ = 1 / 0
    assert obtain(*second)


def test_without_the_shelf_each_process_builds_its_networks(computers, monkeypatch):
    def lost(_):
        raise exceptions.ActorDiedError

    monkeypatch.setattr(sharing.ray, "get", lost)
    assert [obtain(*one) for one in computers] == [True, True]
