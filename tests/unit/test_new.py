"""`driftlab new`: each file works as it is written, and its test passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_factory import run_command

from driftlab.errors import RequestError

SHORT_CELLS = "from driftlab.platform.lab import contract\n\ncontract.LENGTH_S, contract.POISON_S = 8.0, 4.7\n"
MAX_LINES = 40
MEMBERS = ("adaptation", "streaming", "scaling", "scheduling")


def make(kind: str, name: str = "my_own"):
    return run_command(["new", kind, name])


@pytest.mark.slow
def test_new_files_are_short_and_pass_their_tests(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tests = []
    for kind in (*MEMBERS, "network", "experiment"):
        there = set(tmp_path.iterdir())
        printed = make(kind, f"own_{kind}")
        assert printed.exit_code == 0, printed.output
        files = sorted(path.name for path in {*tmp_path.iterdir()} - there)
        assert files == [f"own_{kind}.yaml" if kind == "experiment" else f"own_{kind}.py", f"test_own_{kind}.py"]
        for file in files:
            assert file in printed.output
            assert len((tmp_path / file).read_text().splitlines()) <= MAX_LINES
        tests.append(files[1])
    Path("conftest.py").write_text(SHORT_CELLS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]  # imports the packages once
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stdout
    assert f"{len(tests)} passed" in done.stdout


def test_existing_files_are_not_overwritten(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("test_mine.py").write_text("kept")
    refused = make("network", "mine").exception
    assert isinstance(refused, RequestError)
    assert "test_mine.py: there already" in str(refused)
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]


@pytest.mark.parametrize("name", ["Mine", "a-b", "../up", "1a", ""])
def test_names_that_python_cannot_import_are_refused(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "is no name of a file" in str(make("network", name).exception)
