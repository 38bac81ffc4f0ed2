"""Parts of the campaigns in `benchmarks/`: random requests, disturbed runs, leaks of many runs."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from benchmarks import leaks
from benchmarks.faults import __main__ as campaigns
from benchmarks.faults import grids, on_ray
from benchmarks.faults.__main__ import disturbed, undisturbed
from benchmarks.fuzz.__main__ import campaign
from benchmarks.fuzz.commands import CommandResult, run_process
from benchmarks.fuzz.grammar import World, request

pytestmark = pytest.mark.slow


def test_drawn_requests_end_with_the_promised_code_and_message(tmp_path):
    outcomes = list(campaign(0, range(20), tmp_path, every=0))
    broken = [(number, outcome.words, *outcome.faults()) for number, _, outcome in outcomes if any(outcome.faults())]
    assert broken == []
    assert {outcome.code for _, _, outcome in outcomes} >= {0, 2}


def test_a_request_does_not_depend_on_the_other_drawn_ones(tmp_path):
    def drawn(number):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        words = request(random.Random(f"5/{number}"), World(folder, tmp_path, Path("film.mp4"))).words
        files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        here = str(folder)
        named = {name: content.replace(here.encode(), b"") for name, content in files.items()}
        return [word.replace(here, "") for word in words], named

    numbers = [number for number in range(20) if _needs_no_files(number)]
    assert len(numbers) > 5
    assert [drawn(number) for number in numbers] == [drawn(number) for number in numbers]


def _needs_no_files(number):
    """Return whether a request copies no video and no run."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        try:
            request(random.Random(f"5/{number}"), World(Path(place), Path("/nowhere"), Path("/nowhere")))
        except OSError:
            return False
    return True


def test_a_separate_process_refuses_as_this_one_does(tmp_path):
    result = run_process(("run", "quick", "--set", "window_s=-1"), tmp_path)
    assert (result.code, list(result.faults())) == (2, [])


def test_a_disturbed_run_ends_with_the_tables_of_an_undisturbed_one(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "networks"))
    monkeypatch.setattr(campaigns, "FAULTS_PER_RUN", 5)
    dice, disturbances = random.Random(0), []
    spec = grids.small("ams-table1", dice)
    span_s = undisturbed(spec, tmp_path)
    assert disturbed(spec, tmp_path, dice, span_s, disturbances.append) == []
    assert len(disturbances) == 5


LOST = "Error: Ray's scheduler (raylet) has ended. To go on: driftlab run --resume /tmp/run"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (f"cell 1/4 done: a\n{LOST}\n", LOST.removeprefix("Error: ")),
        ("To go on: driftlab run --resume /tmp/run\nError: Ray did not start.\n", "Ray did not start."),
        (f"{LOST}\n{LOST}\n", None),
        (f"Traceback (most recent call last):\n{LOST}\n", None),
        ("Error: it broke.\n", None),
        ("FAILED cell\n", None),
    ],
)
def test_a_run_fails_cleanly_with_one_message_that_says_resume_command(message, reason):
    assert on_ray.clean_failure(message) == reason


def test_logs_outlive_the_session_that_wrote_them(tmp_path):
    logs, kept = tmp_path / "mark/session_2026-01-01/logs", tmp_path / "kept"
    logs.mkdir(parents=True)
    kept.mkdir()
    (logs / "old").mkdir()
    (logs / "raylet.out").write_text("first")
    on_ray.keep_logs(str(tmp_path / "mark"), kept)
    with (logs / "raylet.out").open("a") as log:
        log.write(" last")
    on_ray.keep_logs(str(tmp_path / "mark"), kept)
    shutil.rmtree(tmp_path / "mark")
    assert {file.name: file.read_text() for file in kept.iterdir()} == {"raylet.out": "first last"}


def test_waiting_for_a_processor_does_not_count_as_response_time():
    assert list(CommandResult(("list",), 0, "", "", took_s=30.0, waited_s=25.0).faults()) == []
    assert len(list(CommandResult(("list",), 0, "", "", took_s=30.0, waited_s=5.0).faults())) == 1


def test_many_runs_in_one_process_leak_no_resources(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "networks"))
    found = leaks.measured(6, tmp_path)
    assert len(set(found["descriptors"][2:])) == 1
    assert len(set(found["temporary"][2:])) == 1
    assert leaks.slopes(found, 3)["resident_kb"] < 3000  # a grid's frames alone are more; 50 runs say it finer
