"""Mistyped commands: one error that names the next step, before anything is started or written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from command_factory import run_command

from driftlab.cli.app import MISNAMED, _run
from driftlab.errors import RequestError

TOKEN = "0123456789abcdef"
SERVER = f"--server http://127.0.0.1:9 --token {TOKEN}"  # no server listens on this port


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files that are none of those that the commands read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRIFTLAB_TOKEN", raising=False)
    Path("notes.txt").write_text("hello")
    Path("empty.yaml").write_text("")
    Path("list.yaml").write_text("- a\n")
    Path("binary.yaml").write_bytes(b"\x93\xff\x00")
    Path("folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("new adaptation torch", "Use my_torch"),  # the file would hide the package from Ray's processes and from tests
        ("new network json", "Use my_json"),
        ("new adaptation class", "Use my_class"),
        ("new adaptation my-own", "such as my_method"),
        ("show systems", "`driftlab list systems`"),
        ("show loads/none.csv", "`driftlab list loads`"),
        ("run notes.txt", "must end in .yaml"),
        ("run folder", "must end in .yaml"),
        ("run empty.yaml", "holds nothing, expected a mapping that begins with 'name:'"),
        ("run list.yaml", "holds ['a'], expected a mapping"),
        ("run quick --tuned none.yaml", "Give the best.yaml"),
        ("run quick --tuned notes.txt", "Give the best.yaml"),
        ("compare a b", "`driftlab diff DIR DIR`"),
        ("board --out folder folder", "such as board.html"),
        ("device", "Use --server URL"),
        ("device --server x", "Use --token or $DRIFTLAB_TOKEN"),
        ("fleet --server x", "Use --token or $DRIFTLAB_TOKEN"),
        (f"device --server x --token {TOKEN}", "Use http://HOST:PORT"),
        (f"device {SERVER} --workload video:none.mp4", "as in video:clips/a.mp4"),
        (f"device {SERVER} --workload folder:folder", "holds no PNG or JPEG pictures"),
        ("device --resume none", "`driftlab device` wrote"),
        ("device --resume none --workload streets/running --server x", "leave out --server, --workload"),
        (f"device {SERVER} --out notes.txt", "'notes.txt' is no folder; choose another --out"),
        ("device --app binary.yaml", "'binary.yaml' cannot be read"),
        ("serve --state-dir notes.txt", "Use another folder"),
        ("serve --state-dir /proc/driftlab", "Use another folder"),
        ("boxes none.json none.mp4", "then the video"),
    ],
)
def test_a_mistyped_command_names_the_next_step(folder: Path, line: str, step: str):
    before = sorted(folder.rglob("*"))
    result = run_command(shlex.split(line))
    assert isinstance(result.exception, RequestError), result.output
    assert step in str(result.exception)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("line", [f"device {SERVER}", f"devices list {SERVER}"])
def test_a_server_that_does_not_respond_may_have_to_be_started(folder: Path, line: str):
    assert "start the server with `driftlab serve`" in str(run_command(line.split()).exception)


def test_an_experiment_may_be_named_as_a_package(folder: Path):
    assert run_command(["new", "experiment", "numpy"]).exit_code == 0
    assert Path("numpy.yaml").is_file()


def test_a_board_without_runs_says_so(folder: Path):
    assert "There is no run in 'folder'" in run_command(["board", "folder"]).output


@pytest.mark.parametrize("line", ["notes.txt:Mine", ":", "no_such_package:Mine"])
def test_a_module_that_cannot_be_imported_may_be_a_file(folder: Path, line: str):
    found = run_command(["check", line])
    assert (found.exit_code, "Give FILE.py:Class" in found.output) == (1, True)


@pytest.mark.parametrize("error", [*MISNAMED, PermissionError])
def test_the_fix_of_a_file_error_depends_on_its_kind(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def fail(**_: object) -> None:
        raise error(1, "cannot be used", "here")

    monkeypatch.setattr("driftlab.cli.app.build_app", lambda: fail)
    assert _run() == 1
    assert ("use another name" in capsys.readouterr().err) is (error is not PermissionError)
