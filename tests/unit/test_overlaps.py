"""Channels that domains have in common, recomputed from the table alone, and the memory of stages."""

from __future__ import annotations

import itertools
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from figures_factory import hidden, panel_of, show, texts
from tables_factory import Made, run_row

from benchmarks._updates import Update, compare
from driftlab.platform.core.documents import read_yaml
from driftlab.platform.results.claims.base import every_claim, judge, measure_claim
from driftlab.platform.results.figures import overlaps as figure
from driftlab.platform.results.relations import domains
from driftlab.platform.results.tables.sources import EXPERIMENTS, PACKAGE

SIZES, KEEP, DOMAINS, SEEDS = {"first": 8, "middle": 20, "last": 40}, 0.5, 6, (0, 1)
SPEC = {
    "workloads": [
        {
            "name": "domains:set:digits",
            "alias": "digits",
            "params": {"shifts": ["fog", "contrast", "frost"], "severities": [1, 3]},
        }
    ],
    "systems": [
        {"name": name, "base": "elasticdnn", "scaling": {"name": "surrogate", "gates": gates}}
        for name, gates in (("follows", "domain"), ("static", "static"))
    ],
}


@cache
def made() -> Made:
    """Draw channels for each domain; those of `static` are equal for all domains of a seed."""
    rng, rows = np.random.default_rng(0), []
    for system in ("follows", "static"):
        for seed in SEEDS:
            fixed = {name: rng.choice(size, int(KEEP * size), replace=False) for name, size in SIZES.items()}
            for phase, domain in enumerate((*range(DOMAINS), 2), start=1):  # domain 2 comes back
                place = {"cell": f"{system}/digits/one/seed-{seed}", "device": "d", "app": "a", "phase": phase}
                for name, size in SIZES.items():
                    kept = fixed[name] if system == "static" else rng.choice(size, int(KEEP * size), replace=False)
                    text = " ".join(map(str, sorted(kept)))
                    rows.append({**place, "time_s": float(phase), "domain": domain, "group": name, "kept": text})
    runs = [run_row(name, seed, "digits") for name in ("follows", "static") for seed in SEEDS]
    stages = [
        {"cell": run["cell"], "device": "d", "app": "a", "time_s": 1.0, "stage": stage, "network_bytes": 1000}
        | {"samples_bytes": 500, "memory_bytes": 1000 * number}
        for run in runs
        for number, stage in enumerate(("load", "generate", "retrain"))
    ]
    return Made(SPEC, runs=runs, channels=rows, stages=stages)


def recomputed(system: str, seed: int) -> np.ndarray:
    """Return [group, domain, domain] of common channels, as products of memberships, from the rows alone."""
    rows = made().frame("channels")
    rows = rows[rows["cell"] == f"{system}/digits/one/seed-{seed}"].sort_values("phase")
    member = {name: np.zeros((DOMAINS, size)) for name, size in SIZES.items()}
    for row in rows.itertuples():
        member[row.group][row.domain] = np.isin(np.arange(SIZES[row.group]), [int(k) for k in row.kept.split()])
    return np.stack([one @ one.T / one.sum(axis=1) for one in member.values()])


@pytest.mark.parametrize("system", ["follows", "static"])
def test_overlap_is_recomputed_from_the_channels_alone(system):
    rows = domains.overlaps(made())
    own = rows[rows["system"] == system]
    assert len(own) == len(SEEDS) * DOMAINS * (DOMAINS - 1) / 2
    for row in own.itertuples():
        by_group = recomputed(system, row.seed)[:, row.first, row.second]
        assert row.overlap == pytest.approx(by_group.mean()) and row.last == pytest.approx(by_group[-1])
        assert row.similar == (row.first // 2 == row.second // 2)


def test_the_map_has_the_mean_overlap_of_each_two_domains():
    shown = show(figure, made())
    axis = panel_of(shown, "digits: channels that domains of follows have in common")
    expected = np.mean([recomputed("follows", seed).mean(axis=0) for seed in SEEDS], axis=0)
    assert [cell.get_alpha() for cell in axis.patches] == pytest.approx(list(figure.DARKEST * expected.ravel()))
    assert [text.get_text() for text in axis.texts] == [f"{100 * value:.0f}" for value in expected.ravel()]
    common, memory = shown.grids
    assert texts(common)["static"] == ["100.0 %"] * 4
    last = [recomputed("follows", seed)[-1] for seed in SEEDS]
    similar = np.mean([one[k, k + 1] for one in last for k in (0, 2, 4)])
    assert texts(common)["follows"][1] == f"{100 * similar:.1f} %"
    assert texts(memory)["follows"] == ["1.5", "2.5", "3.5", "–", "–"]


def test_a_run_without_cuts_has_no_such_figure():
    assert hidden(figure, Made(SPEC, runs=[run_row("follows", 0, "digits")]))


def test_masters_are_compared_by_workload_and_system():
    accuracy = {("twice", "keeps-third"): 0.8, ("half", "keeps-most"): 0.7, ("twice", "keeps-most"): 0.1}
    rows = [
        {"workload": workload, "system": system, "seed": seed, "after": value + 0.01 * seed * (workload == "twice")}
        for (workload, system), value in accuracy.items()
        for seed in SEEDS
    ]
    tables: Any = SimpleNamespace(once=lambda _: pd.DataFrame(rows))
    found = domains.accuracy_of_masters(tables, ["twice", "keeps-third"], ["half", "keeps-most"])
    assert (found["ours"] - found["theirs"]).tolist() == pytest.approx([0.1, 0.11])
    assert domains.accuracy_of_masters(tables, ["twice", "keeps-third"], ["none", "keeps-most"]).empty


GATES = {  # accuracy after adapting, by system of `elasticdnn-gates`
    "usual": 0.80,
    "follows": 0.75,
    "static": 0.78,
    "frozen": 0.70,
    "drawn": 0.79,
    "by-weights": 0.85,
    "cut-once": 0.80,
}


@pytest.mark.parametrize(
    ("claim", "gain", "result"),
    [
        ("E-29", 0.75 - 0.79, "not reproduced"),
        ("E-30", 0.75 - 0.78, "not reproduced"),
        ("E-31", 0.80 - 0.70, "reproduced"),
        ("E-32", 0.80 - 0.85, "not reproduced"),
        ("E-33", 0.80 - 0.80, "not reproduced"),  # undecided: the interval has zero
        ("E-34", 0.80 - 0.79, "reproduced"),
    ],
)
def test_gates_are_compared_with_each_control(claim, gain, result):
    wobble = dict(zip(GATES, itertools.cycle((0.0, 0.001, 0.002)), strict=False))
    wobble["cut-once"] = -0.002
    systems = read_yaml((PACKAGE / EXPERIMENTS / "elasticdnn-gates.yaml").read_text(encoding="utf-8"))["systems"]
    tables = Made({"systems": systems}, runs=[run_row(name, seed, "digits") for name in GATES for seed in SEEDS])
    after = [
        {"workload": "digits", "system": name, "seed": seed, "after": value + wobble[name] * (seed - 0.5)}
        for name, value in GATES.items()
        for seed in SEEDS
    ]
    tables._results[domains.stretches, (), ()] = pd.DataFrame(after)
    found = judge(every_claim()[claim], every_claim()[claim].measure(tables))
    assert found.measured is not None and found.measured.value == pytest.approx(gain)
    assert found.result == result


def test_a_missing_control_is_named():
    tables = Made(SPEC, runs=[run_row("usual", seed, "digits") for seed in SEEDS])
    tables._results[domains.stretches, (), ()] = pd.DataFrame(columns=["workload", "system", "seed", "after"])
    assert "'usual'" in judge(every_claim()["E-31"], measure_claim(every_claim()["E-31"], tables)).note


def test_updates_of_joint_filters_are_compared_by_size_and_angle():
    """Both domains keep filters 1 and 2; filter 1 is changed alike, filter 2 the other way round."""
    kept = np.ones((4, 2), dtype=bool)
    first = Update(np.array([[8.0, 8], [1, 0], [0, 1], [0, 0]]), kept & [[True], [True], [True], [False]])
    second = Update(np.array([[0.0, 0], [2, 1], [1, -2], [4, 4]]), kept & [[False], [True], [True], [True]])
    expected = {"joint": 2 / 3, "acute": 1 / 2, "by_chance": 1.0, "later": 1.5 / 0.5, "others": 1.5 / 4}
    assert compare(first, second) == pytest.approx(expected)
    apart = compare(Update(first.change, kept & [[True], [False], [False], [False]]), second)
    assert apart["joint"] == 0 and np.isnan([apart[name] for name in ("acute", "by_chance", "later")]).all()
