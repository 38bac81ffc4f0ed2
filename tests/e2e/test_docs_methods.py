"""Each member and system has a section that agrees with its docstring on departures."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages_factory import DOCS, METHODS, Section, blocks, commands, invoke, method_sections

from driftlab.cli.kinds import KINDS
from driftlab.platform.core.registry import FAMILIES
from driftlab.platform.core.system_table import SYSTEMS

DIFFERS = "Differs from the paper:"
SECTIONS = method_sections()
MAX_COMMAND_S = 120  # of the first command of a page, with an empty cache of networks
SHORT = [
    word
    for setting in ("student.pretrain_steps=2", "workloads.0.duration_s=6", "bounds=false", "seeds=[0]")
    for word in ("--set", setting)
]
FAMILIES_OF_NETWORKS = ("adascale", "elasticdnn")  # pages whose first command builds one, which takes half a minute
each_page = pytest.mark.parametrize("page", METHODS, ids=lambda page: page.stem)
each_section = pytest.mark.parametrize("section", SECTIONS, ids=lambda one: f"{one.page}-{one.anchor}")


def docstrings(names: tuple[str, ...]) -> Iterator[str]:
    """Read the docstrings of the modules of members."""
    for name in names:
        family, _, member = name.partition("/")
        if family in FAMILIES:
            spec = importlib.util.find_spec(FAMILIES[family][member].partition(":")[0])
            assert spec is not None
            assert spec.origin is not None
            yield ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def first_command(page: Path) -> list[str]:
    return shlex.split(commands(page)[0])[1:]


def test_every_member_and_every_system_has_one_section():
    members = {name: f"{family}/{name}" for family, names in FAMILIES.items() for name in names}
    expected = {f"{family}/{name}" for family, names in FAMILIES.items() for name in names}
    linked = [name for section in SECTIONS for name in section.covers]
    assert sorted(name for name in linked if not name.startswith("systems/")) == sorted(expected)
    assert {name for name in SYSTEMS if name not in members} <= {name.removeprefix("systems/") for name in linked}


@each_section
def test_a_section_names_its_members_and_systems(section: Section):
    words = re.sub(r"[\W_]", "", f"{section.anchor} {section.text}".lower())
    names = [name.partition("/")[2].removesuffix("+sizes") for name in section.covers]
    assert [name for name in names if re.sub(r"[\W_]", "", name) not in words] == []


def test_show_names_the_section_of_a_member():
    assert invoke(["show", "adaptation/tent"]).splitlines()[-1] == f"More: {DOCS}/methods/label-free.md#tent"


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_system_has_a_section(name: str):
    page = Path(KINDS["systems"].describe(name).page)
    assert page.with_name(page.name.partition("#")[0]) in METHODS


@each_section
def test_sections_and_docstrings_agree_on_whether_a_method_departs(section: Section):
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section.differences, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert bool(numbers) == any(DIFFERS in text for text in docstrings(section.covers))
    assert bool(numbers) != section.differences.startswith(".** None")


@each_section
def test_names_of_a_docstrings_departures_are_in_its_section(section: Section):
    for text in docstrings(section.covers):
        departures = text.partition(DIFFERS)[2].partition("\n\n")[0]
        named = re.findall(r"`(\w+)`", departures) + re.findall(r"\d[\d.]*\d", departures)
        assert [name for name in named if name not in section.differences] == []


@each_page
def test_a_page_opens_with_a_command_of_a_minute(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert re.match(r"# .+\n\n```sh\ndriftlab run ", page.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    number, unit = re.search(
        r"^time +about ([\d.]+) (\w+?)s? on", invoke([*first_command(page), "--dry-run"]), re.M
    ).groups()
    assert float(number) * {"second": 1, "minute": 60}[unit] <= MAX_COMMAND_S


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims")
@pytest.mark.parametrize(
    "page", [page for page in METHODS if page.stem not in FAMILIES_OF_NETWORKS], ids=lambda page: page.stem
)
def test_the_first_command_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    invoke([*first_command(page), "--backend", "inline", *SHORT, "--out", "run"])
    assert (tmp_path / "run/report.html").is_file()


@each_page
def test_a_page_has_a_figure_of_its_method(page: Path):
    assert any(block.language in ("mermaid", "text") for block in blocks(page))
