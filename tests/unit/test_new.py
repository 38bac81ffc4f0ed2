"""`driftlab new`: each file works as it is written, and its test passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_factory import run_command

from driftlab.errors import RequestError
from driftlab.platform.lab import contract

ALONE = ("--import-mode=importlib", "--noconftest", "-p", "no:cacheprovider", "-p", "no:faulthandler")
MAX_LINES = 40
MEMBERS = ("adaptation", "streaming", "scaling", "scheduling")


def make(kind: str, name: str = "my_own"):
    return run_command(["new", kind, name])


class Reports:
    """Collects the outcomes of tests and the texts of their failures."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.append(report.longreprtext)
        elif report.when == "call" and report.passed:
            self.passed.append(Path(report.nodeid.partition("::")[0]).name)


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
    for name, value in (("FPS", 4.0), ("LENGTH_S", 5.25), ("POISON_S", 4.2)):  # as in the test of all own members
        monkeypatch.setattr(contract, name, value)
    reports = Reports()
    code = pytest.main(["-q", *ALONE, *tests], plugins=[reports])  # in this process, which has imported the packages
    assert (code, reports.failures) == (0, [])
    assert reports.passed == tests


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
