"""First use: examples, completion, the plan of a dry run, and an immediate reply to Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from command_factory import run_command

import driftlab
from driftlab.cli import app as front
from driftlab.cli.output import format_duration
from driftlab.errors import RequestError
from driftlab.platform.lab.read import names

DEEP = """
import hashlib, signal, sys
from driftlab.cli import app
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored

def compute(name):
    sys.stdout.write("computing")
    sys.stdout.flush()
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)  # for half an hour, and no signal ends it

app.catalogue.kind_of = compute
sys.argv[1:] = ["list"]
app.main()
"""


def call(*words: str) -> str:
    result = run_command(list(words), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def completed(line: str) -> list[str]:
    """Return the completions at the end of a line."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    environment = {"_DRIFTLAB_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    code = [sys.executable, "-m", "driftlab"]
    done = subprocess.run(code, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("driftlab run ams-t", ["ams-table1", "ams-table2", "ams-table3"]),
        ("driftlab run quick --system no_custom,ond", ["no_custom,onda"]),
        ("driftlab run quick --workload streets/w", ["streets/walking_paris", "streets/walking_ny"]),
        ("driftlab list sy", ["systems"]),
        ("driftlab show sched", ["scheduling/"]),
        ("driftlab show scheduling/ne", ["scheduling/nestdnn"]),
        ("driftlab show nothing/a", []),
    ],
)
def test_names_are_completed(line: str, words: list[str]):
    assert sorted(completed(line)) == sorted(words)


def test_help_of_run_has_valid_examples():
    help_text = call("run", "--help")
    examples = re.findall(r"^ +driftlab (run .*?)(?:  .*)?$", help_text, re.MULTILINE)
    assert len(examples) >= 5
    known = [words[1] for words in map(shlex.split, examples) if words[1] in names()]
    assert len(known) >= 4


def test_claims_are_listed_in_order_of_numbers():
    listed = [line.split()[0] for line in call("list", "claims").splitlines()]
    keys = [(name.split("-")[0], int(re.search(r"\d+", name)[0])) for name in listed]
    assert keys == sorted(keys)
    assert any(number > 9 for _, number in keys)


def test_a_dry_run_prints_the_grid_with_time_and_disk():
    rows = dict(line.split("  ", 1) for line in call("run", "ams-clients", "--dry-run").splitlines() if "  " in line)
    grid = {name.strip(): text.strip() for name, text in rows.items()}
    places = ["systems", "workloads", "fleets", "seeds", "placement"]
    assert list(grid) == [*places, "networks", "frames", "time", "memory", "disk"]
    assert grid["placement"] == "nodes: 'ams' has a server, which the 9 devices of 'alone' share"
    assert grid["systems"] == "ams, ams-steady, ams-patient  [3]"
    assert "devices-4 (4 devices)" in grid["fleets"]
    assert grid["frames"] == f"{3 * 5 * (9 + 4 + 6 + 9) * 150:,}"
    assert re.match(r"about \d", grid["time"])
    assert re.match(r"\d[\d,]* MiB; \d[\d,]* MiB are free", grid["disk"])
    assert "60 cells; nothing was run." in call("run", "ams-clients", "--dry-run")


@pytest.mark.parametrize(
    ("seconds", "message"),
    [(0.2, "1 second"), (89, "89 seconds"), (90, "1.5 minutes"), (7200, "2 hours"), (864_000, "10 days")],
)
def test_a_duration_is_printed_in_a_suitable_unit(seconds: float, message: str):
    assert format_duration(seconds) == message


def until_it_computes(process: int, seconds: float = 0.2) -> None:
    """Wait until a process computes in a library: an earlier signal would end it between two statements."""
    used = psutil.Process(process).cpu_times
    start = used().user
    while used().user < start + seconds:
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_is_acknowledged_while_a_library_computes(terminal: bool):
    reading, writing = pty.openpty() if terminal else os.pipe()
    child = subprocess.Popen([sys.executable, "-c", DEEP], stdout=subprocess.PIPE, stderr=writing)
    try:
        assert child.stdout is not None
        assert child.stdout.read(9) == b"computing"
        until_it_computes(child.pid)
        child.send_signal(signal.SIGINT)
        assert select.select([reading], [], [], 30.0)[0], "nothing was said"
        message = os.read(reading, 1000)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    assert message.startswith(front.CLEAR_LINE) is terminal  # a progress bar on that line is cleared first
    assert front.STOPPING.strip() in message


def test_the_newest_run_is_found_from_subfolders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for age, name in enumerate(["old", "new"]):
        spec = tmp_path / "runs" / name / "spec.yaml"
        spec.parent.mkdir(parents=True)
        spec.touch()
        os.utime(spec, (1e9 + age, 1e9 + age))
    for name, text in (("tune-ams", "name: ams\nspace:\n  a: 1\n"), ("tune-equal", "searches: {}\n")):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "spec.yaml").write_text(text)
    below = tmp_path / "notebooks" / "mine"
    (below / "runs").mkdir(parents=True)  # one without a run does not end the search
    assert driftlab.newest_run(below) == tmp_path / "runs" / "new"
    monkeypatch.chdir(below)
    assert driftlab.newest_run() == tmp_path / "runs" / "new"
    assert driftlab.newest_run(search=True) == tmp_path / "runs" / "tune-ams"
    for name, age in (("older", -1), ("newer", 2)):  # of a notebook, whose folder is the working folder
        spec = below / "runs" / name / "spec.yaml"
        spec.parent.mkdir()
        spec.touch()
        os.utime(spec, (1e9 + age, 1e9 + age))
        assert driftlab.newest_run() == (tmp_path / "runs" / "new" if name == "older" else below / "runs" / "newer")


def test_a_missing_run_is_an_error():
    with pytest.raises(RequestError, match="There is no run in /proc/runs"):
        driftlab.newest_run("/proc")
