"""Measured figures are in generated blocks of pages only, so that they cannot become outdated.

Outside them a decimal number, a share in percent, points and factors are faults unless they are a setting or a formula,
in backticks; the paper's, as in (paper: 2.6 points) or the paper's 2.6; or a version.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.name != "tables.md"]  # which is generated as a whole
APART = (
    r"<!-- ([a-z][\w ]*?)(?: [A-Z][\w -]*)? -->.*?<!-- end of \1 -->",  # blocks written by a program
    r"^```.*?^```$",
    r"`[^`]*`",
    r"\((?:the )?paper: [^)]*\)",
    r"[Tt]he paper's [−+\d][\d.,]*(?: to [\d.,]+)?",
    r"(?:Python|KubeRay|Torch-Pruning|version) \d[\d.]*",
    r"\d+\.\d+\.\d+\.\d+",  # addresses
)
FIGURE = re.compile(r"[+−-]?\d+\.\d+(?: %)?|[+−-]?\d+ %|[+−-]?\d+ points\b|\b\d+ times\b")


def typed_figures(text: str) -> list[str]:
    """List the figures of a page that no program wrote, with their lines."""
    for pattern in APART:
        text = re.sub(pattern, lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    lines = enumerate(text.splitlines(), 1)
    return [f"{number}: {found}" for number, line in lines for found in FIGURE.findall(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_holds_no_figure_that_was_typed(page: Path):
    assert typed_figures(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It gains 0.12 on dance.", ["1: 0.12"]),
        ("one\n\n−0.5 to +2.0, 11 % of\n", ["3: −0.5", "3: +2.0", "3: 11 %"]),
        ("three points, 3 points, 4 times", ["1: 3 points", "1: 4 times"]),
        ("<!-- claims AMS DELTA-1 -->\n| +0.12 |\n<!-- end of claims -->\n0.5", ["4: 0.5"]),
        ("<!-- claims AMS -->\n0.1\n<!-- end of claims --> 0.2 <!-- claims B -->\n<!-- end of claims -->", ["3: 0.2"]),
        ("```\n0.5\n```\n`x=0.1` (paper: 2.6 points), the paper's 0.55 to 0.85, Python 3.10, 127.0.0.1", []),
        ("2.4 points better (paper: 2.6)", ["1: 2.4"]),
    ],
)
def test_figures_are_distinguished_from_settings(text: str, found: list[str]):
    assert typed_figures(text) == found
