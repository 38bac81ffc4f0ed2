"""Hints for names that are not known: the new name of a renamed thing, else the most similar one."""

from __future__ import annotations

import pytest

from driftlab import renamed
from driftlab.renamed import name_hint, name_note

KNOWN = ("inference_j", "training_j", "priority")


@pytest.fixture(autouse=True)
def two_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"learning_j": ("training_j",), "prior": ("earlier", "inference_j")}
    monkeypatch.setattr(renamed, "RENAMED", table)


def test_an_old_name_is_reported_with_its_new_one_if_that_exists() -> None:
    assert name_hint("learning_j", KNOWN) == " It is now 'training_j'."
    assert name_note("prior", KNOWN) == " (it is now 'inference_j')"  # and not 'priority', which is more similar
    assert name_hint("prior", ("priority",)) == " Did you mean 'priority'?"


def test_other_names_get_the_most_similar_one_or_no_hint() -> None:
    assert name_note("priorty", KNOWN) == " (did you mean 'priority'?)"
    assert name_hint("zzz", KNOWN) == name_note("zzz", KNOWN) == ""
