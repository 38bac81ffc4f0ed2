"""The pictures and sentences of the README: the script that makes them, and the stored files."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from PIL import Image
from results_factory import make_run

from driftlab.platform.results.tables.read import open_run

ROOT = Path(__file__).resolve().parents[2]
MADE = runpy.run_path(str(ROOT / "docs/media/make.py"))
FILES = {"report.png": MADE["REPORT_BYTES"], "street.webp": MADE["CLIP_BYTES"]}


@pytest.mark.slow
def test_the_clip_has_a_picture_per_snapshot(tmp_path):
    make_run(tmp_path / "run", systems=("no_custom", "ams"), workloads=("streets/interview",), seeds=(0,))
    run, target = open_run(tmp_path / "run"), tmp_path / "clip.webp"
    MADE["clip_street"](run, target)
    snapshots = run.frame("snapshots").merge(run.frame("runs")[["cell", "system"]], on="cell")
    with Image.open(target) as clip:
        assert clip.n_frames == (snapshots["system"] == "ams").sum() > 1
        assert clip.width == 3 * MADE["TILE"][0] + 2 * MADE["GAP"]


def test_sentences_replace_those_of_the_readme(tmp_path, monkeypatch):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- demo -->\n* old\n<!-- end of demo -->\nafter\n")
    monkeypatch.setitem(MADE["write_sentences"].__globals__, "README", readme)
    MADE["write_sentences"](["one", "word " * 40])
    lines = readme.read_text().splitlines()
    assert lines[:3] == ["before", "<!-- demo -->", "* one"]
    assert lines[-2:] == ["<!-- end of demo -->", "after"]
    assert max(map(len, lines)) <= MADE["COLUMNS"]
    assert "old" not in readme.read_text()


def test_the_readme_shows_small_pictures_and_a_sentence_per_act():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, most in FILES.items():
        assert f"(docs/media/{name})" in text
        assert (ROOT / "docs/media" / name).stat().st_size <= most
    block = MADE["BLOCK"].search(text)[0]
    assert len(re.findall(r"^\* ", block, re.MULTILINE)) == len(MADE["ACTS"])
