"""The tables of published values on the methods' pages state the defaults that members have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from driftlab.platform.core.parameters import parameters_of
from driftlab.platform.core.registry import FAMILIES, member_class

METHODS = Path(__file__).resolve().parents[2] / "docs/methods"
ROW = re.compile(r"^\| `([\w.]+)` \| [^|]+ \| `([^`]+)` \| [^|]+ \|$", re.MULTILINE)
HEAD = "| parameter | published | default here | why |"
NAMES = {"Adaptation": ("adaptation", "elasticdnn"), "Ekya": ("scheduling", "ekya")}
LABEL_FREE = ("label-free.md", "feature-alignment.md", "elasticdnn.md", "schedulers.md")


def sections() -> dict[str, str]:
    """Return the sections of all pages with a table of published values, by heading."""
    whole = "\n".join((METHODS / page).read_text(encoding="utf-8") for page in LABEL_FREE)
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
        assert found == (None if stated == "none" else float(value) if isinstance(found, float) else value), parameter


def test_every_label_free_method_of_a_paper_has_a_table():
    present = {NAMES.get(head, ("adaptation", head.lower()))[1] for head in sections()}
    ours = {"frozen", "distill", "sparse", "elasticdnn_cua", "elasticdnn_teacher"}
    assert present - {"ekya"} == set(FAMILIES["adaptation"]) - ours
