"""Accounts: sums over windows, devices and cells, where what was not measured adds nothing."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.platform.core.records import InferenceReport
from driftlab.platform.sim.ledger import Account, Ledger, total
from driftlab.platform.world.link import Transfer


def window(frames: int, scored: int, score: float, *, hits: int = 0) -> InferenceReport:
    confusion = np.array([[hits, 1], [0, hits]]) if scored else None
    return InferenceReport(
        frames, frames - 1, 0.5, {"inference": 2.0}, scored, scored * score, scored * score / 2, confusion
    )


def test_scores_are_means_over_the_frames_that_had_a_truth():
    account = Account()
    for seen in (window(10, 10, 0.8, hits=5), window(10, 0, 0.0), window(10, 5, 0.5, hits=3)):
        account.watched(seen)
    assert (account.frames, account.processed, account.scored) == (30, 27, 15)
    assert account.score_frame == pytest.approx((10 * 0.8 + 5 * 0.5) / 15)
    assert account.score == pytest.approx(account.score_frame / 2)
    assert account.counts.tolist() == [[8, 2], [0, 8]]


def test_nothing_scored_is_none_and_not_zero():
    account = Account()
    account.watched(window(10, 0, 0.0))
    assert account.score is account.score_frame is account.counts is None


def test_bytes_are_counted_as_they_crossed_the_link():
    account = Account()
    account.sent("up", Transfer(0, 0, 1, 1, 1000, 1500, 1))
    account.sent("down", Transfer(0, 0, 1, 1, 10, 10, 0))
    account.sent("up", Transfer(0, 0, 1, 1, 1, 1, 0))
    assert (account.up_bytes, account.down_bytes) == (1501, 10)


def test_a_cell_is_the_sum_of_its_devices_and_leaves_them_as_they_were():
    accounts = [Account(), Account(), Account()]
    accounts[0].watched(window(10, 10, 0.8, hits=5))
    accounts[2].watched(window(6, 6, 0.2, hits=3))
    whole = total(accounts)
    assert (whole.frames, whole.scored, whole.busy_s, whole.energy_j) == (16, 16, 1.0, 4.0)
    assert whole.counts is None
    assert accounts[0].counts.tolist() == [[5, 1], [0, 5]]
    assert total([]).score is None


def test_rows_keep_the_order_they_come_in():
    ledger = Ledger()
    ledger.row("updates", a=1)
    ledger.take({"frames": [{"x": [1, 2]}], "updates": [{"a": [2]}]})
    ledger.row("updates", a=3)
    assert ledger.rows == {"updates": [{"a": [1]}, {"a": [2]}, {"a": [3]}], "frames": [{"x": [1, 2]}]}


def test_energy_is_all_of_its_parts_whatever_the_order_in_which_they_were_spent():
    account = Account()
    for purpose, joules in (("radio", 0.3), ("inference", 0.1), ("radio", 0.2), ("training", 1e-9)):
        account.spend(purpose, joules)
    assert account.joules == {"inference": 0.1, "training": 1e-9, "radio": 0.5}
    assert account.energy_j == 0.1 + 1e-9 + 0.5
