"""The documentation is right: its links lead somewhere, its example runs as written."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shlex
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pytest
from pages_factory import DOCS, PAGES, ROOT, anchors, blocks, commands, invoke, prose, write_files

from driftlab.platform.adaptation.base import Adapted, Batch, Phase, Predicted
from driftlab.platform.core.plugins import heading
from driftlab.platform.core.records import Passes, Stored, Trained
from driftlab.platform.core.registry import BASES, Member, import_class
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.module_utils import copy_entries
from driftlab.platform.networks.tasks.tasks import TASKS
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.scheduling.base import Allocation, Demand, Grant, SchedulerInput, TrainingConfig, TrainingOffer
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts

OWN = DOCS / "your-own-method.md"
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))


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


def test_files_named_on_pages_exist():
    text = "".join(prose(page) for page in PAGES)
    named = set(re.findall(r"`((?:platform|actors|datasets|docs|tests)/[\w./]+)`", text))
    assert {name for name in named if not (ROOT / name).exists()} - {"platform/streaming/every_minute.py"} == set()


def test_the_diagram_has_all_its_words():
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "types"),
    [
        ("adaptation", (Batch, Phase, Adapted, Predicted, Passes)),
        ("streaming", (StreamFacts, Seen, Sampling, Stored, DownlinkPlan, Trained)),
        ("scheduling", (SchedulerInput, Demand, TrainingOffer, TrainingConfig, Allocation, Grant)),
    ],
)
def test_the_tables_of_members_have_every_method_and_field(family: str, types: tuple[type, ...]):
    rows = [line.split(" | ")[:2] for line in OWN.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    table = {first.removeprefix("| `").removesuffix("`"): second.removesuffix(" |") for first, second in rows}
    base = import_class(BASES[family])
    assert {heading(getattr(base, name)) for name in base.__abstractmethods__} <= set(table)
    assert {name for name in table if "(" in name} <= {
        heading(verb) for one in BASES.values() for _, verb in inspect.getmembers(import_class(one), inspect.isfunction)
    }
    for one in types:
        needed = [field.name for field in fields(one) if field.default is field.default_factory is MISSING]
        others = [field.name for field in fields(one) if field.name not in needed]
        listed = "; ".join(", ".join(f"`{name}`" for name in names) for names in (needed, others) if names)
        assert table[one.__name__] == listed


@pytest.mark.usefixtures("few_claims", "few_figures")
def test_each_family_has_an_example_that_runs_as_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


@pytest.mark.usefixtures("few_claims", "few_figures")
def test_a_plain_class_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_files(OWN, tmp_path)
    first, shown = (command for command in commands(OWN) if "sharpen" in command)
    invoke(shlex.split(first)[1:])
    rows = open_run(tmp_path / "runs/plain").frame("adaptations").query("cell.str.startswith('sharpen')")
    assert (rows["iterations"] == 1).all() and (rows["isolated_s"] > 0).all() and rows["skipped"].isna().all()
    assert re.search(r"learning_rate.*\n.*power", invoke(shlex.split(shown)[1:]))
    rows = open_run(tmp_path / "runs/plain").frame("adaptations").query("cell.str.startswith('balance')")
    assert (rows["iterations"] == 1).all() and rows["loss"].notna().all() and rows["skipped"].isna().all()


@pytest.mark.slow
def test_an_adaptation_hands_its_state_to_the_next_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_files(OWN, tmp_path)
    monkeypatch.chdir(tmp_path)
    member = Member("adaptation", "balance.py:Balance", (("decay", 0.75), ("stream_batch", 8))).make()
    model = build("tiny_classifier", 4, seed=0).eval()
    before = copy_entries(model, model.state_dict())
    generator = np.random.default_rng(0)
    first = member.prepare(model)
    states, task = [first], TASKS["classification"]
    for level in (40, 200):
        images = generator.integers(level - 40, level + 40, (8, 24, 24, 3), np.uint8)
        done = member.adapt(model, states[-1], Batch(images, None, generator, task), Phase(on_stream=True))
        assert done.changed.any() and len(done.predictions) == 8 and done.passes.backward == (8,)
        states.append(done.state)
    once = member.adapt(model, first, Batch(images, None, generator, task), Phase(on_stream=True)).state.classes
    assert states[1].classes.sum() == pytest.approx(1) and states[2].classes.sum() == pytest.approx(1)
    assert not np.allclose(states[2].classes, once, atol=1e-3)
    assert len(member.reset(model, states[-1]).classes) == 0
    assert all((value == before[name]).all() for name, value in copy_entries(model, model.state_dict()).items())


@pytest.mark.usefixtures("few_claims", "few_figures")
@pytest.mark.slow
def test_a_scheduler_trains_the_application_of_the_lowest_observed_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_files(OWN, tmp_path)
    (command,) = (command for command in commands(OWN) if "neediest.yaml" in command)
    invoke(shlex.split(command)[1:])
    run = open_run(tmp_path / "runs/neediest")
    cell = "cell == 'neediest/town/one/seed-0'"
    assert run.frame("updates").query(cell)["iterations"].gt(0).all()  # no offer is declined
    assert run.frame("updates").query(cell)["app"].nunique() == 2
    assert run.frame("shares").query(cell)["training_share"].max() == pytest.approx(0.4)
    monkeypatch.syspath_prepend(tmp_path)
    demands = [
        Demand(app, fps=1, variants=(), observed=observed, learning=TrainingOffer(state))
        for app, observed, state in [("best", 0.9, "offered"), ("worst", 0.2, "offered"), ("new", None, "running")]
    ]
    for offers, trained in (demands, 2), (demands[:2], 1):
        window = SchedulerInput(0, 10, 1, tuple(offers))
        grants = importlib.import_module("neediest").Neediest().allocate(window).grants
        assert [grant.training_share for grant in grants].index(0.4) == trained
        assert {grant.config for grant in grants} == {0}


@pytest.mark.slow
def test_the_check_of_a_method_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "process_time", lambda: 0.0)  # no test depends on measured time
    write_files(OWN, tmp_path)
    (command,) = (command for command in commands(OWN) if " check " in command)
    lines = invoke(shlex.split(command)[1:]).splitlines()
    assert [line.split() for line in lines] == [
        [name, "ok"] for name in re.findall(r"^\| `(\w+)` \| [a-z]", OWN.read_text("utf-8"), re.MULTILINE)
    ]


@pytest.mark.usefixtures("few_claims", "few_figures")
def test_the_example_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Run the page's files, command and Python, then the Python of the first page on the same tables."""
    monkeypatch.chdir(tmp_path)
    write_files(OWN, tmp_path)
    tiny = [command for command in commands(OWN) if "--backend inline" in command and "every_minute" in command]
    assert len(tiny) == 1
    output = invoke(shlex.split(tiny[0])[1:])
    assert re.search(r"^every_minute +0", output, re.MULTILINE), output
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
