"""Each command of the documentation parses, and is planned or run where that is cheap."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest
import typer
from pages_factory import ROOT, commands, invoke, prose, shell_lines, write_files
from typer.main import get_command

from driftlab.cli.app import build_app

LISTED = subprocess.check_output(["git", "ls-files", "*.md"], cwd=ROOT, text=True).split()
DOCUMENTS = [ROOT / path for path in LISTED if path != "CHANGELOG.md" and (ROOT / path).is_file()]
NOT_PLANNED = ("--resume", "--help")  # one needs a run that is there
NOT_RUN = ("--film", "--video")  # to draw one takes half a minute
PLANNED, RUN = ("run", "tune", "demo"), ("list", "show")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|…")
each_document = pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def command_line() -> typer.core.TyperGroup:
    return get_command(build_app())


def parse(words: list[str]) -> None:
    """Read the options of a command without running it; unknown commands and options raise."""
    group = command_line()
    with contextlib.suppress(typer.Exit), group.make_context("driftlab", list(words)) as context:
        name, command, rest = group.resolve_command(context, context._protected_args + context.args)
        command.make_context(name, rest, parent=context)


@cache
def planned(words: tuple[str, ...]) -> str:
    """Plan a run; many pages name the same one."""
    return invoke([*words, *(() if "--dry-run" in words else ("--dry-run",))])


def complete_commands(page: Path) -> list[str]:
    """List the commands of a page that have no placeholder such as EXPERIMENT or DIR."""
    return [command for command in commands(page) if not PLACEHOLDER.search(command)]


def other_commands(page: Path, program: str) -> list[list[str]]:
    """List the commands of a program, in shell blocks and in the text."""
    spans = re.findall(rf"`({program} [^`]+)`", prose(page).replace("\n", " "))
    return [shlex.split(line) for line in [*shell_lines(page), *spans] if line.startswith(f"{program} ")]


@each_document
def test_commands_are_those_of_the_command_line(page: Path):
    assert page != ROOT / "README.md" or len(commands(page)) > 5
    for command in commands(page):
        words = shlex.split(command)[1:]
        parse(words if len(words) > 1 else [*words, "--help"])  # alone in the text it is the command's name


@pytest.mark.parametrize("wrong", ["rnu quick", "run quick --sytem a", "run --workers many", "diff one"])
def test_a_command_that_is_wrong_would_be_seen(wrong: str):
    with pytest.raises(Exception, match=r"(?i)no such|valid|missing"):
        parse(wrong.split())


@each_document
def test_runs_and_searches_can_be_planned(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    for command in complete_commands(page):
        words = shlex.split(command)[1:]
        is_run = words[0] in PLANNED and len(words) > 1 and not words[1].startswith("-")
        if is_run and not set(words) & set(NOT_PLANNED):
            own = re.search(r"\.ya?ml|\.py|video:", command)  # files of this page alone
            assert "nothing was run" in (planned.__wrapped__ if own else planned)(tuple(words)), command


@each_document
def test_lists_and_descriptions_are_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    for command in complete_commands(page):
        words = shlex.split(command)[1:]
        if words[0] in RUN and (len(words) > 1 or words[0] == "list") and not set(words) & set(NOT_RUN):
            assert invoke(words), command


@each_document
def test_make_and_python_commands_name_targets_and_files_that_exist(page: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {words[1] for words in other_commands(page, "make")} <= targets
    for words in other_commands(page, "python") + other_commands(page, r".venv/bin/python"):
        if words[1] == "-m":
            assert importlib.util.find_spec(words[2]) is not None, words
        elif not PLACEHOLDER.search(words[1]) and words[1] != "-c":
            assert (ROOT / words[1]).is_file(), words
