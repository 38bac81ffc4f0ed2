"""Published values: defaults of members on the methods' pages, and figures of papers in claims."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from driftlab.platform.core.documents import read_yaml
from driftlab.platform.core.parameters import parameters_of
from driftlab.platform.core.registry import FAMILIES, member_class
from driftlab.platform.results.claims import base

METHODS = Path(__file__).resolve().parents[2] / "docs/methods"
ROW = re.compile(r"^\| `([\w.]+)` \| [^|]+ \| `([^`]+)` \| [^|]+ \|$", re.MULTILINE)
HEAD = "| parameter | published | default here | why |"
SCHEDULERS = ("Ekya", "RECL", "AFS", "Synergy", "Muri")
CHOOSERS = ("LegoDNN", "AdaptiveNet", "AdaSpring", "AdaDeep")
NAMES = {
    "Adaptation": ("adaptation", "elasticdnn"),
    "Scheduler of ElasticDNN": ("scheduling", "elasticdnn"),
    "Scheduler of NestDNN": ("scheduling", "nestdnn"),
    **{head: ("scheduling", head.lower()) for head in SCHEDULERS},
    **{head: ("scaling", head.lower()) for head in CHOOSERS},
}
PAGES = ("label-free.md", "feature-alignment.md", "elasticdnn.md", "schedulers.md", "nestdnn.md", "adascale.md")


def sections() -> dict[str, str]:
    """Return the sections of all pages with a table of published values, by heading."""
    whole = "\n".join((METHODS / page).read_text(encoding="utf-8") for page in PAGES)
    parts = re.split(r"^## (.+)$", whole, flags=re.MULTILINE)[1:]
    return {head: text for head, text in zip(parts[::2], parts[1::2], strict=True) if HEAD in text}


@pytest.mark.parametrize("head", sections())
def test_defaults_on_the_page_are_those_of_the_member(head):
    family, name = NAMES.get(head, ("adaptation", head.lower()))
    rows = ROW.findall(sections()[head].partition(HEAD)[2].partition("\n\n")[0])
    assert rows
    for parameter, stated in rows:
        of, _, own = parameter.rpartition(".")
        found = parameters_of(member_class(*(("scaling", of) if of else (family, name))))[own].default
        value = yaml.safe_load(stated)
        found = list(found) if isinstance(found, tuple) else found
        assert found == (None if stated == "none" else float(value) if isinstance(found, float) else value), parameter


def test_every_label_free_method_of_a_paper_has_a_table():
    named = [NAMES.get(head, ("adaptation", head.lower())) for head in sections()]
    ours = {"frozen", "distill", "sparse", "elasticdnn_cua", "elasticdnn_teacher"}
    assert {name for family, name in named if family == "adaptation"} == set(FAMILIES["adaptation"]) - ours


def test_every_scheduler_of_a_paper_has_a_table():
    """The status quo, MCDNN and the exact scheduler have no parameter that a paper publishes."""
    named = {NAMES[head][1] for head in sections() if NAMES.get(head, ("", ""))[0] == "scheduling"}
    ours = {"uniform", "uniform_learning", "joint", "exact", "status_quo", "mcdnn"}
    assert named == set(FAMILIES["scheduling"]) - ours


# Values of papers in claims and tables of cells, where the texts of the papers are available

PAPERS = next((folder / "shared/papers" for folder in METHODS.parents if (folder / "shared/papers").is_dir()), None)
CLAIMS = Path(base.__file__).parent
NAMED = ("AMS", "NestDNN", "AdaScale", "ElasticDNN")
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e\d+)?")
PLACE = re.compile(r"\b(?:Tables?|Figures?|[Ss]ections?|Appendix|Eq\.) [\w.-]+(?: and [\w.-]+)?(?: \(\w+\))?")
OURS = "the limit is ours"
NEUTRAL = (0.0, 1.0)  # no difference, all, equal: bounds of a direction
DERIVED = {  # numbers that a paper does not print, computed from those that it prints
    "AS-1": {480: "1000 * 0.48", 106_000: "1e5 * 1.06", 1_680_000: "1e6 * 1.68"},
    "AS-8": {1.09: "(5185.79 + 4399.88 + 412.08 + 120.61) / 4 / ((1285.17 + 2584.63 + 2692.62 + 2758.59) / 4)"},
    "AS-14b": {2.56: "91.17 - 88.61"},
    "AMS-22": {1.1: "74.26 - 73.14", 0.1: "69.31 - 69.23", 1.7: "67.38 - 65.70"},
    "AMS-27": {
        15.8: "(89.98 - 71.91 + 86.41 - 72.80) / 2",
        1.3: "(69.94 - 69.59 + 66.26 - 66.48 + 61.32 - 57.57) / 3",
    },
    "adascale-table2": {
        480: "1000 * 0.48",
        106_000: "1e5 * 1.06",
        432_000: "1e5 * 4.32",
        1_680_000: "1e6 * 1.68",
        117_600: "1000 * 117.6",
        64_800_000: "18.0 * 3600 * 1000",
        705_600_000: "196.0 * 3600 * 1000",
    },
    "nestdnn-table4": {1.3: "13 / 10"},  # the text was scanned without the point
    "nestdnn-table5": {1.3: "13 / 10"},
}


def numbers_of(text: str) -> list[float]:
    return [float(found) for found in NUMBER.findall(re.sub(r"(?<=\d)[ ,](?=\d{3}\b)", "", text))]


@cache
def printed_in(paper: str) -> frozenset[float]:
    """Return all numbers of a paper's text."""
    assert PAPERS is not None
    text = (PAPERS / f"{paper.lower()}.md").read_text(encoding="utf-8")
    return frozenset([*numbers_of(re.sub(r"[$\\~]", " ", text)), *map(float, NUMBER.findall(text))])


def is_printed(value: float, paper: str, name: str = "") -> bool:
    """Return whether a paper prints a value, as it is or in percent, or all parts of its formula."""
    if formula := DERIVED.get(name, {}).get(value):
        parts = [float(part) for part in re.findall(r"\d+\.\d+", formula)]
        return all(is_printed(part, paper) for part in parts)
    return any(math.isclose(scale * abs(value), found) for scale in (1, 100) for found in printed_in(paper))


def faults_of(claim: dict[str, Any]) -> list[str]:
    """List the values of a claim that its paper does not print, and does not imply by two printed numbers."""
    head, _, said = claim["source"].partition(":")
    paper = re.split(r"[,:]", head)[0]
    if paper not in NAMED:
        return []
    numbers = numbers_of(PLACE.sub("", said))
    wrong = [f"{number:g}" for number in numbers if not is_printed(number, paper, claim["id"])]
    value, rule = claim["paper"]["value"], claim["paper"]["rule"]
    if value is None or value in NEUTRAL or OURS in claim["source"] or is_printed(value, paper, claim["id"]):
        return wrong
    pairs = [(a, b) for a in numbers for b in numbers]
    implied = [*(abs(a - b) for a, b in pairs), *(a + b for a, b in pairs), *(100 * a / b for a, b in pairs if b)]
    if any(math.isclose(abs(value) * scale, one, rel_tol=1e-3) for scale in (1, 100) for one in implied):
        return wrong
    return [*wrong, f"{value:g} ({rule})"]


HEADING = re.compile(r"^(\d+(?:\.\d+)*|[IVX]+(?:-[A-Z])?|[A-Z])\.? [A-Z].{1,80}$")
SCANNED = {"3.34": "3.3.4"}  # headings without a point
SECTION = re.compile(r"[Ss]ections? ([\dIVX][\w.-]*)(?: and ([\d.]+))?:")


@cache
def sections_of(paper: str) -> dict[str, str]:
    """Map the numbers of recognised sections (4.2, IV-C) to their texts, parts included."""
    assert PAPERS is not None
    found, chapter, here = dict[str, str](), "", ""
    for line in (PAPERS / f"{paper.lower()}.md").read_text(encoding="utf-8").splitlines():
        if heading := HEADING.match(line):
            label = SCANNED.get(heading[1], heading[1])
            if label.isalpha() and label.strip("IVX"):
                here = f"{chapter}-{label}"
            else:
                chapter = here = label
        for whole in {here, here.partition("-")[0], *(here[: cut.start()] for cut in re.finditer(r"\.", here))}:
            found[whole] = f"{found.get(whole, '')}\n{line}"
    return found


def outside_section(claim: dict[str, Any]) -> list[float]:
    """List the numbers of a claim's source that the section it names does not print."""
    paper, cited = re.split(r"[,:]", claim["source"])[0], SECTION.search(claim["source"])
    if paper not in NAMED or cited is None:
        return []
    known = sections_of(paper)
    names = [re.sub(r"(?<=[A-Z])\d$", "", name) for name in cited.groups() if name]
    if any(name not in known for name in names):
        return []
    printed = {number for name in names for number in numbers_of(re.sub(r"[$\\~]", " ", known[name]))}
    said = numbers_of(PLACE.sub("", claim["source"].partition(":")[2]))
    return [number for number in said if not {number, number / 100} & printed]


@pytest.fixture(scope="module")
def papers() -> Path:
    if PAPERS is None:
        pytest.skip("there are no texts of the papers")
    return PAPERS


def entries(folder: Path) -> list[dict[str, Any]]:
    return [entry for file in sorted(folder.glob("*.yaml")) for entry in read_yaml(file.read_text(encoding="utf-8"))]


def test_claims_print_only_figures_of_their_paper(papers):
    assert {claim["id"]: found for claim in entries(CLAIMS) if (found := faults_of(claim))} == {}


def test_a_claim_with_an_invented_figure_is_found(papers):
    claim = {
        "id": "X",
        "source": "ElasticDNN, section IV-D: larger fluctuations",
        "paper": {"value": 0.9, "rule": "sign"},
    }
    assert faults_of(claim) == ["0.9 (sign)"]
    assert faults_of({**claim, "source": "ElasticDNN, Table II: 35.68 times"}) == ["35.68", "0.9 (sign)"]
    assert outside_section({"source": "ElasticDNN, section IV-D: +15.43 points"}) == [15.43]  # it is in IV-E


def test_cells_of_tables_are_printed_in_their_paper(papers):
    found = {
        (table["id"], row["name"], value)
        for table in entries(CLAIMS / "papers")
        for row in table["rows"]
        for value in row["paper"]
        if value and not is_printed(value, table["source"].split(",")[0], table["id"])
    }
    assert not found


def test_numbers_stand_in_the_section_that_a_claim_names(papers):
    assert {claim["id"]: found for claim in entries(CLAIMS) if (found := outside_section(claim))} == {}
