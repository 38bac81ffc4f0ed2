"""The documentation does what it says: its commands parse, its links lead somewhere, its example runs as written."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import os
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import typer
from film_factory import put_beside, write_film
from typer.main import get_command
from typer.testing import CliRunner

from driftlab.cli.app import build_app
from driftlab.platform.core.registry import BASES, FAMILIES
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.results.tables.read import open_run

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
METHODS = [page for page in sorted((DOCS / "methods").glob("*.md")) if page.stem != "index"]
FENCE = re.compile(r"^```(\w*)[ ]?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN = DOCS / "your-own-method.md"
DIFFERS = "Differs from the paper:"
NOT_RUN = ("--resume",)  # they need a run that is there
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
each_method = pytest.mark.parametrize("page", METHODS, ids=lambda page: page.stem)


@dataclass(frozen=True)
class Block:
    """A fenced block; one that carries a file's name is that file."""

    language: str
    name: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[str]:
    """Every `driftlab ...` line of a shell block, and every one in the text that gives more than the command's name."""
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    spans = re.findall(r"`(driftlab [^`]+)`", prose(page).replace("\n", " "))
    return [line for line in lines if line.startswith("driftlab ")] + spans


def sections(page: Path) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def command_line() -> typer.core.TyperGroup:
    return get_command(build_app())


def parse(words: list[str]) -> None:
    """Let the command line read its options and do nothing; unknown commands and options raise."""
    group = command_line()
    with contextlib.suppress(typer.Exit), group.make_context("driftlab", list(words)) as context:
        name, command, rest = group.resolve_command(context, context._protected_args + context.args)
        command.make_context(name, rest, parent=context)


def invoke(words: list[str]) -> str:
    result = CliRunner().invoke(build_app(), words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@cache
def planned(words: tuple[str, ...]) -> str:
    """Plan a run; many pages name the same one."""
    return invoke([*words, *(() if "--dry-run" in words else ("--dry-run",))])


def write_files(page: Path, folder: Path) -> None:
    """Put the files of a page, the examples that it links, and their films, where its commands find them."""
    linked = re.findall(r"\]\(examples/([^)]+)\)", prose(page))
    texts = {name: (DOCS / "examples" / name).read_text(encoding="utf-8") for name in linked}
    texts |= {block.name: block.text for block in blocks(page) if block.name}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for film in {film for text in texts.values() for film in re.findall(r'name: "video:([\w.]+)"', text)}:
        put_beside(write_film(folder / film))


def covered(page: Path) -> list[str]:
    found = re.search(r"^Covers: (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{page.name} does not say what it covers"
    return re.findall(r"`([^`]+)`", found[1])


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def docstrings(names: list[str]) -> Iterator[str]:
    """The docstrings of the modules behind members."""
    for name in names:
        family, _, member = name.partition("/")
        if family in FAMILIES:
            spec = importlib.util.find_spec(FAMILIES[family][member].partition(":")[0])
            assert spec is not None
            assert spec.origin is not None
            yield ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_those_of_the_command_line(page: Path):
    assert page in PAGES or len(commands(page)) > 5
    for command in commands(page):
        words = shlex.split(command)[1:]
        parse(words if len(words) > 1 else [*words, "--help"])  # alone in the text it is the command's name


@pytest.mark.parametrize("wrong", ["rnu quick", "run quick --sytem a", "run --workers many", "diff one"])
def test_a_command_that_is_wrong_would_be_seen(wrong: str):
    with pytest.raises(Exception, match=r"(?i)no such|valid|missing"):
        parse(wrong.split())


@each_page
def test_runs_can_be_planned(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    for command in commands(page):
        words = shlex.split(command)[1:]
        is_run = words[0] == "run" and len(words) > 1 and not words[1].startswith("-")
        if is_run and not set(words) & set(NOT_RUN):
            own = re.search(r"\.ya?ml|\.py|video:", command)  # files of this page alone
            assert "nothing was run" in (planned.__wrapped__ if own else planned)(tuple(words))


@each_page
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"https?:", target):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target


def test_every_page_can_be_reached_from_the_first():
    seen, todo = set(), [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        seen.add(page)
        targets = re.findall(r"\]\(([^)#\s]+\.md)", prose(page))
        todo += [file for target in targets if (file := (page.parent / target).resolve()) not in seen]
    assert set(PAGES) - seen == set()


def test_files_that_pages_name_are_there():
    text = "".join(prose(page) for page in PAGES)
    named = set(re.findall(r"`((?:platform|actors|datasets|docs|tests)/[\w./]+)`", text))
    assert {name for name in named if not (ROOT / name).exists()} - {"platform/streaming/every_minute.py"} == set()


def in_a_row() -> list[str]:
    """The members and systems with a row in the index and no separate page."""
    rows = [line for line in (DOCS / "methods/index.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    return [name for row in rows for name in re.findall(r"`(\w+/[^`]+)`", row)]


def test_every_member_and_every_system_has_a_page_or_a_row():
    there = {f"{family}/{name}" for family, members in FAMILIES.items() for name in members}
    there |= {f"systems/{name}" for name in SYSTEMS}
    assert sorted([*in_a_row(), *(name for page in METHODS for name in covered(page))]) == sorted(there)


def test_a_method_that_departs_from_its_paper_has_a_page():
    assert [text for text in docstrings(in_a_row()) if DIFFERS in text] == []


@each_method
def test_pages_and_docstrings_agree_on_whether_a_method_departs(page: Path):
    section = sections(page)["Differences from the paper"]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert bool(numbers) == any(DIFFERS in text for text in docstrings(covered(page)))
    assert bool(numbers) != section.strip().startswith("None")


@each_method
def test_what_a_docstring_names_in_its_departures_stands_on_the_page(page: Path):
    section = sections(page)["Differences from the paper"]
    for text in docstrings(covered(page)):
        departures = text.partition(DIFFERS)[2].partition("\n\n")[0]
        named = re.findall(r"`(\w+)`", departures) + re.findall(r"\d[\d.]*\d", departures)
        assert [name for name in named if name not in section] == []


@each_method
def test_a_page_says_how_to_run_its_method(page: Path):
    assert any(block.language == "sh" for block in blocks(page))
    assert "driftlab run" in sections(page)["Run it"]


def test_the_picture_is_whole():
    picture = ElementTree.parse(DOCS / "how-a-run-works.svg").getroot()
    words = "".join(picture.itertext())
    for word in ("Driver", "Device", "Application", "Teacher", "Learner", "Recorder", "uplink", "downlink", "Report"):
        assert word in words


def test_the_example_files_are_those_of_the_pages():
    written = {block.name: block.text for block in blocks(OWN) if block.name}
    kept = {file.name: file.read_text(encoding="utf-8") for file in (DOCS / "examples").iterdir() if file.is_file()}
    assert written == {name: text for name, text in kept.items() if name in written}
    linked = {target for page in PAGES for target in re.findall(r"\]\(examples/([^)]+)\)", prose(page))}
    assert linked | set(written) == set(kept)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(BASES))
def test_the_table_of_families_names_all_that_a_member_must_have(family: str):
    (row,) = (line for line in OWN.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {family} |"))
    module, _, name = BASES[family].partition(":")
    base = getattr(importlib.import_module(module), name)
    needed = {*base.__abstractmethods__, *(flag for flag in base.__annotations__ if not hasattr(base, flag))}
    assert needed <= set(re.findall(r"`(\w+)`", row))


def test_each_family_has_an_example_that_runs_and_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_files(OWN, tmp_path)
    monkeypatch.chdir(tmp_path)
    (command,) = (command for command in commands(OWN) if "families.yaml" in command and "inline" in command)
    invoke(shlex.split(command)[1:])
    run = open_run(tmp_path / "runs/families")
    batches = run.frame("adaptations")
    assert set(batches["cell"]) == {"contrast/town/one/seed-0"}
    assert (batches["iterations"] == 1).all()
    shares = run.frame("shares").set_index("cell")
    by_priority = shares.loc["by_priority/town/one/seed-0"].groupby("app")["inference_share"].mean()
    assert by_priority.to_dict() == pytest.approx({"front": 0.9 * 3 / 4, "side": 0.9 / 4})
    variants = run.frame("variants").query("cell.str.startswith('thrifty')")
    assert set(shares.loc["thrifty/town/one/seed-0"]["variant"].dropna()) <= set(variants["variant"])
    energy = run.frame("runs").set_index("system")["energy_j"]
    assert energy["thrifty"] < 0.9 * energy["by_priority"]
    for name in (
        "adaptation/contrast.py:Contrast",
        "scaling/thrifty.py:Thrifty",
        "scheduling/by_priority.py:ByPriority",
    ):
        assert "in [0, " in invoke(["show", name])


def test_a_plain_class_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_files(OWN, tmp_path)
    first, shown = (command for command in commands(OWN) if "sharpen" in command)
    invoke(shlex.split(first)[1:])
    rows = open_run(tmp_path / "runs/plain").frame("adaptations").query("cell.str.startswith('sharpen')")
    assert (rows["iterations"] == 1).all() and (rows["isolated_s"] > 0).all() and rows["skipped"].isna().all()
    assert re.search(r"learning_rate.*\n.*power", invoke(shlex.split(shown)[1:]))


def test_the_example_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """The files, the command and the Python of the page; then the Python of the first page, on the same tables."""
    monkeypatch.chdir(tmp_path)
    write_files(OWN, tmp_path)
    tiny = [command for command in commands(OWN) if "--backend inline" in command and "every_minute" in command]
    assert len(tiny) == 1
    output = invoke(shlex.split(tiny[0])[1:])
    assert re.search(r"^driving_la +every_minute ", output, re.MULTILINE), output
    assert (tmp_path / "runs/tiny/report.html").is_file()
    os.symlink("tiny", tmp_path / "runs/first")
    for page in (OWN, DOCS / "getting-started.md"):
        for block in blocks(page):
            if block.language == "python" and not block.name:
                exec(compile(block.text, str(page), "exec"), {})
    printed = capsys.readouterr().out
    updates = re.findall(r"^\d+ +20 +(\d+) +60 +\d+ +\d+ +[\d.]+ +True", printed, re.MULTILINE)
    assert updates == ["20", "40"], printed  # one in 20 s, and the last one would have left with the stream
    assert "period_s" in invoke(["show", "streaming/every_minute.py:EveryMinute"])
