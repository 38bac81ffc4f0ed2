"""Every benchmark runs at its smallest size; `make bench` runs all, also after a failure."""

from __future__ import annotations

import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from browser import needs_chromium

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
NAMES = sorted(file.stem for file in FOLDER.glob("[a-z]*.py"))
APART = {"devices", "messages"}  # each starts Ray in a separate process
STARTING = {"identity", "startup", "workers"}  # start such processes themselves
MARKS = {"report_opening": needs_chromium, **dict.fromkeys(STARTING, pytest.mark.ray)}
HERE = [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES if name not in APART]


def numbers(value):
    """Give every number of a JSON document."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers(part)
    elif isinstance(value, int | float):
        yield value


def paths():
    """Return where processes that a benchmark starts look for modules."""
    return os.pathsep.join([str(ROOT), str(FOLDER), os.environ["PYTHONPATH"]])


def check(printed):
    lines = [json.loads(line) for line in printed.splitlines()]
    assert lines
    for line in lines:
        assert line["benchmark"]
        assert len(line) > 2
        assert all(math.isfinite(number) for number in numbers(line))


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_it_runs_in_this_process(name, monkeypatch, capfd):
    """Run a benchmark where most modules are imported already; only processes that it starts import them."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick"])
    monkeypatch.syspath_prepend(str(FOLDER))
    with mock.patch.dict(os.environ, PYTHONPATH=paths()):  # some of them set other variables
        try:
            runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        except SystemExit as end:
            assert not end.code
    check(capfd.readouterr().out)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", sorted(APART))
def test_it_runs_in_a_separate_process(name):
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick"]
    environment = {**os.environ, "PYTHONPATH": paths()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check(done.stdout)


@pytest.fixture
def checkout(tmp_path):
    """A folder with this Makefile, and an environment that counts as set up."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / ".venv/bin/python").chmod(0o755)
    for name in (".driftlab-ready", ".driftlab-ready-all"):
        (tmp_path / ".venv" / name).touch()
    return tmp_path


def make(folder, *targets):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(["make", *targets], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("faulty", "code"), [(("b",), 1), ((), 0), (("a", "c"), 1)])
def test_make_bench_continues_after_a_failure_and_fails_at_the_end(checkout, faulty, code):
    (checkout / "benchmarks").mkdir()
    (checkout / "benchmarks/_shared.py").write_text("raise SystemExit('this is no benchmark')")
    for name in "abc":
        (checkout / f"benchmarks/{name}.py").write_text("raise ValueError" if name in faulty else f"print('{name}')")
    done = make(checkout, "bench")
    assert done.stdout.split() == [name for name in "abc" if name not in faulty]
    assert re.findall(r"failed: benchmarks/(\w+)\.py", done.stderr) == list(faulty)
    assert re.findall(r"bench\] Error (\d+)", done.stderr) == ([str(code)] if code else [])
    assert bool(done.returncode) == bool(code)


def test_make_help_names_every_public_target(checkout):
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()
    assert {"test", "test-fast", "bench"} <= set(targets)
    listed = [line.split()[1] for line in make(checkout, "help").stdout.splitlines()]
    assert sorted(listed) == sorted(targets)
    for file in ("README.md", ".ci/run"):
        named = re.findall(r"make ([a-z-]+)", (ROOT / file).read_text(encoding="utf-8"))
        assert named
        assert set(named) <= set(targets)


def test_benchmarks_named_on_pages_and_in_comments_exist():
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "platform").rglob("*.py"), *FOLDER.glob("*.py")]
    named = {name for file in files for name in re.findall(r"python benchmarks/(\w+)\.py", file.read_text())}
    assert len(named) >= 4
    assert named <= set(NAMES)
