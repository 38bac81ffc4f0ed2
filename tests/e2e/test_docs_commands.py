"""Each command of the documentation parses, and is planned or run unless it needs a file or a server."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import shlex
import subprocess
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest
import typer
from command_factory import command_line
from pages_factory import ROOT, SHELLS, blocks, commands, invoke, prose, shell_lines, write_files

from driftlab.errors import DriftlabError

LISTED = subprocess.check_output(["git", "ls-files", "*.md"], cwd=ROOT, text=True).split()
DOCUMENTS = [ROOT / path for path in LISTED if path != "CHANGELOG.md" and (ROOT / path).is_file()]
PLANNED, PRINTED = ("run", "tune", "demo"), ("list", "show")
PARSED = {  # commands that are parsed only, with the reason
    "board": "reads runs",
    "boxes": "reads annotations; its formats are tested",
    "check": "runs four cells; its page is tested",
    "claims": "reads a run",
    "device": "needs a server; its names are tested",
    "devices": "needs a server",
    "diff": "reads two runs",
    "doctor": "checks the host",
    "export": "reads a run",
    "fleet": "needs a server; its names are tested",
    "new": "writes files; each kind is tested",
    "profile": "measures networks for minutes",
    "report": "reads a run",
    "serve": "is a server",
}
EXEMPT = {  # words of commands that are parsed only, with the reason
    "cifar10c.yaml": "reads an archive; it is planned on a reduced one",
    "--resume": "continues a run",
    "--video": "renders for half a minute",
    "runs/field/lab.yaml": "is written by a device",
}
KINDS = {"--workload": "workloads", "--system": "systems", "--network": "networks"}
LOCAL_STREAM = re.compile(r"(video|folder|camera):")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|…")
each_document = pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))


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


def is_complete(words: list[str]) -> bool:
    """Return whether a command names its subject; `driftlab run --portable` in the text does not."""
    return words == ["list"] or (len(words) > 1 and not words[1].startswith("-"))


def complete_commands(page: Path, programs: Collection[str]) -> list[list[str]]:
    """List the words of commands with arguments, without placeholders such as DIR or exempt words."""
    split = [shlex.split(command)[1:] for command in commands(page) if not PLACEHOLDER.search(command)]
    return [words for words in split if words[0] in programs and is_complete(words) and not EXEMPT.keys() & set(words)]


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


@pytest.mark.parametrize("wrong", ["show systems/amz", "run quik --dry-run", "tune amz --dry-run"])
def test_a_name_that_is_wrong_would_be_seen(wrong: str):
    with pytest.raises(DriftlabError, match=r"amz|quik"):
        invoke(wrong.split())


@each_document
def test_runs_and_searches_can_be_planned(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    for words in complete_commands(page, PLANNED):
        own = any(re.search(r"\.ya?ml|\.py|video:", word) for word in words)  # files of this page
        assert "nothing was run" in (planned.__wrapped__ if own else planned)(tuple(words)), words


@each_document
def test_lists_and_descriptions_are_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    for words in complete_commands(page, PRINTED):
        assert invoke(words), words


@each_document
def test_devices_name_workloads_systems_and_networks_that_exist(page: Path):
    for words in (shlex.split(command)[1:] for command in commands(page)):
        for option, name in itertools.pairwise(words):
            if words[0] in ("device", "fleet") and option in KINDS and not LOCAL_STREAM.match(name):
                assert invoke(["show", f"{KINDS[option]}/{name}"]), words


def test_every_command_is_planned_or_printed_or_has_a_reason():
    everywhere = [shlex.split(command)[1:] for page in DOCUMENTS for command in commands(page)]
    named = {words[0] for words in everywhere if words[0][0] != "-"}
    assert PARSED.keys() <= named <= {*PLANNED, *PRINTED, *PARSED}
    assert EXEMPT.keys() <= {word for words in everywhere for word in words}


def test_commands_are_in_shell_blocks():
    elsewhere = [
        (page.name, line)
        for page in DOCUMENTS
        for block in blocks(page)
        if block.language not in SHELLS
        for line in block.text.splitlines()
        if re.match(r"(\$ )?(\.venv/bin/)?driftlab [a-z]", line)
    ]
    assert elsewhere == []


@each_document
def test_make_and_python_commands_name_targets_and_files_that_exist(page: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {words[1] for words in other_commands(page, "make")} <= targets
    for words in other_commands(page, "python") + other_commands(page, r".venv/bin/python"):
        if words[1] == "-m":
            assert importlib.util.find_spec(words[2]) is not None, words
        elif not PLACEHOLDER.search(words[1]) and words[1] != "-c":
            assert (ROOT / words[1]).is_file(), words
