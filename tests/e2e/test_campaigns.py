"""Slices of the campaigns in `benchmarks/`: drawn requests, disturbed runs, and what many runs leave behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks import leaks
from benchmarks.faults import grids
from benchmarks.faults.__main__ import disturbed, undisturbed
from benchmarks.fuzz.__main__ import campaign
from benchmarks.fuzz.asking import ask_process
from benchmarks.fuzz.grammar import World, request

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [0, 1])
def test_drawn_requests_are_answered_as_promised(tmp_path, seed):
    answers = list(campaign(seed, range(10 * seed, 10 * seed + 10), tmp_path, every=0))
    broken = [(number, answer.words, *answer.faults()) for number, _, answer in answers if any(answer.faults())]
    assert broken == []
    assert {answer.code for _, _, answer in answers} >= {0, 2}


def test_a_request_is_the_same_whichever_others_are_drawn(tmp_path):
    def drawn(number):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        words = request(random.Random(f"5/{number}"), World(folder, tmp_path, Path("film.mp4"))).words
        files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        return [word.replace(str(folder), "") for word in words], files

    numbers = [number for number in range(20) if _needs_no_files(number)]
    assert len(numbers) > 5
    assert [drawn(number) for number in numbers] == [drawn(number) for number in numbers]


def _needs_no_files(number):
    """Tell requests that copy no film and no run."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        try:
            request(random.Random(f"5/{number}"), World(Path(place), Path("/nowhere"), Path("/nowhere")))
        except OSError:
            return False
    return True


def test_a_real_process_answers_as_the_one_here(tmp_path):
    answer = ask_process(("run", "quick", "--set", "window_s=-1"), tmp_path)
    assert (answer.code, list(answer.faults())) == (2, [])


@pytest.mark.parametrize("name", ["ams-table1", "nestdnn-optimum"])
def test_disturbed_runs_end_with_the_tables_of_undisturbed_ones(tmp_path, monkeypatch, name):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "networks"))
    dice, said = random.Random(0), []
    spec = grids.small(name, dice)
    span_s = undisturbed(spec, tmp_path)
    assert disturbed(spec, tmp_path, dice, span_s, said.append) == []
    assert len(said) == 8


def test_many_runs_in_one_process_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "networks"))
    found = leaks.measured(6, tmp_path)
    assert len(set(found["descriptors"][2:])) == 1
    assert len(set(found["temporary"][2:])) == 1
    assert leaks.slopes(found, 3)["resident_kb"] < 3000  # a grid's frames alone are more; 50 runs say it finer
