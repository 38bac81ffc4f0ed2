"""`driftlab demo` plans and runs its acts, and prints one sentence for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pages_factory import invoke

import driftlab
from driftlab.cli import demo
from driftlab.platform.lab import read
from driftlab.platform.results.report import page

SHORT = ("student.pretrain_steps=2", "snapshots=0", "workloads.0.duration_s=3", "workloads.0.fps=2", "seeds=[0, 1]")
SMALL = {  # the method and the baseline of each act, in settings that compute for seconds
    "demo-streaming": (
        "systems=[no_custom, {name: one_time, streaming: {name: one_time, sample_s: 1, iterations: 2}}, ams]",
    ),
    "demo-adaptation": (
        "workloads.0.params.domain_s=1",
        "workloads.0.params.shifts=[fog]",
        "systems=[no_custom, {name: elasticdnn, scaling: fixed}, {name: cut+adabn, base: adabn}]",
    ),
    "demo-scaling": (
        "systems=[{name: whole, base: no_custom}, {name: adascale, scaling: fixed},"
        " {name: exit-1, base: adascale, scaling: fixed}]",
    ),
    "demo-sharing": ("workloads.0.params.domain_s=3", "window_s=1"),
}
load = read.load


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def short(name: str, overrides: Any, choice: Any) -> Any:
        return load(name, [*overrides, *SHORT, *SMALL[name]], choice)

    monkeypatch.setattr(read, "load", short)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_it_prints_a_sentence_for_each_act_and_each_has_a_run(small: None, few_claims: None, few_figures: None):
    printed = invoke(["demo", "--backend", "inline", "--out", "all"]).splitlines()
    sentences = [line for line in printed if line.endswith(".") and "(" in line]
    assert [line.partition(":")[0] for line in sentences] == [
        "Streaming", "Adaptation on the device", "Scaling", "Sharing"
    ]  # fmt: skip
    assert next(line for line in printed if "?" in line).startswith("streaming: ")
    for name in demo.ACTS:
        assert any(line.endswith(f"all/{name}/report.html") for line in printed)
        assert driftlab.open_run(f"all/{name}").spec["name"] == f"demo-{name}"
        assert Path("all", name, "report.html").is_file()


@pytest.mark.slow
def test_one_act_runs_alone_and_is_one_document_with_json(small: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page, "write_report", lambda folder: folder / "report.html")  # as the test above shows
    printed = invoke(["demo", "--act", "streaming", "--backend", "inline", "--json", "--out", "one"])
    (act,) = json.loads(printed[printed.index("{") :])["acts"]
    assert act["act"] == "streaming"
    assert act["verdict"] in ("better", "worse", "inconclusive")
    assert act["sentence"].startswith("Streaming: ")
    assert (act["failed"], act["failures"]) == (False, [])
    assert [path.name for path in Path("one").iterdir()] == ["streaming"]


def test_the_plan_lists_the_cells_of_every_act():
    acts = json.loads(invoke(["demo", "--dry-run", "--json", "--seed", "7"]))["acts"]
    assert [act["experiment"] for act in acts] == [f"demo-{name}" for name in demo.ACTS]
    assert all(cell.endswith("seed-7") for act in acts for cell in act["cells"])
    assert invoke(["demo", "--act", "sharing", "--dry-run"]).count("nothing was run") == 1
