"""Networks that users have measured, from an experiment's text to the tables of its run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tables_factory import numbers_in

from driftlab.cli.app import main
from driftlab.errors import RequestError
from driftlab.platform.lab.cells import measured_of
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.report.page import write_report
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.sim.inline import InlineBackend

MEASURED = os.environ.get("DRIFTLAB_MEASURED")  # a folder of profiles that users have measured on real devices
BOARDS = """board,net,top1,ms,mb
nano,small,70,10,1
nano,large,90,40,4
orin,small,70,2,1
orin,large,90,8,4
"""
READ = {"rename": {"net": "variant", "top1": "accuracy_percent", "ms": "latency_ms", "mb": "memory_mb"}}


def sharing(*apps: dict[str, Any], **more: Any) -> dict[str, Any]:
    workload = {"name": "streets/running", "duration_s": 4, "fps": 2, "height": 32, "width": 48, "run_networks": False}
    return {
        "name": "sharing",
        "systems": [{"name": "shared", "base": "no_custom", "scheduling": "nestdnn"}],
        "bounds": False,
        "window_s": 2,
        "student": {"pretrain_steps": 0},
        "workloads": [{**workload, "apps": list(apps), **more}],
    }


@pytest.fixture
def boards(tmp_path) -> str:
    (tmp_path / "boards.csv").write_text(BOARDS)
    return str(tmp_path / "boards.csv")


def faults(document: dict[str, Any]) -> list[str]:
    with pytest.raises(RequestError) as refused:
        parse(document)
    first, *lines = str(refused.value).splitlines()
    assert first == f"experiment: {len(lines)} fault{'s' if len(lines) > 1 else ''}"
    return [line.removeprefix("  - ") for line in lines]


def test_a_file_with_names_of_its_own_is_read_for_one_board(boards, tmp_path):
    apps = [
        {"name": board, "latency_goal_s": 0.01, "variants": {"file": boards, **READ, "only": {"board": board}}}
        for board in ("nano", "orin")
    ]
    outcome = run(sharing(*apps), out=tmp_path / "run", open_backend=InlineBackend)
    assert not outcome.failed
    tables = open_run(outcome.directory)
    could = tables.frame("variants")[["app", "network", "accuracy", "memory_bytes", "latency_ms"]]
    assert could.to_numpy().tolist() == [
        ["nano", "small", pytest.approx(0.7), 10**6, pytest.approx(10)],
        ["nano", "large", pytest.approx(0.9), 4 * 10**6, pytest.approx(40)],
        ["orin", "small", pytest.approx(0.7), 10**6, pytest.approx(2)],
        ["orin", "large", pytest.approx(0.9), 4 * 10**6, pytest.approx(8)],
    ]
    shares = tables.frame("shares")
    assert set(shares["network"]) <= {"small", "large"}
    assert shares.groupby("time_s")["inference_share"].sum().to_numpy() == pytest.approx(1.0)
    spec = yaml.safe_load((outcome.directory / "spec.yaml").read_text())
    assert spec["workloads"][0]["apps"][1]["variants"] == {"file": boards, **READ, "only": {"board": "orin"}}


def test_a_path_and_a_mapping_with_only_a_file_are_equal(tmp_path):
    path = tmp_path / "plain.csv"
    both = (("a", str(path)), ("b", {"file": str(path)}))
    path.write_text("variant,accuracy,latency_ms\nsmall,0.7,10\nlarge,0.9,40\n")
    (workload,) = parse(sharing(*({"name": name, "variants": given} for name, given in both))).workloads
    alone, inside = map(measured_of, workload.apps)
    assert alone == inside
    assert [one.name for one in alone] == ["small", "large"]


def test_an_override_may_choose_another_board(boards):
    only = "workloads.0.apps.0.variants.only.board=orin"
    variants = {"file": boards, **READ, "only": {"board": "nano"}}
    (app,) = parse(sharing({"name": "a", "variants": variants}), [only]).workloads[0].apps
    assert app.variants.only == {"board": "orin"}


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({"only": {"board": "nano"}}, ["file is missing"]),
        ({"file": "a.csv", "renam": {}}, ["renam is not known here. Did you mean 'rename'? Known: file, rename, only"]),
        ({"file": "a.csv", "rename": ["net"]}, ["rename is ['net']: give a mapping, such as {key: value}"]),
        ({"file": "a.csv", "rename": {"net": 3}}, ["rename.net is 3: input should be a valid string"]),
        ({"file": "a.csv", "only": "nano"}, ["only is 'nano': give a mapping, such as {key: value}"]),
        ({"file": 3, "onyl": {}}, ["file is 3: input should be a valid string", "onyl is not known here."]),
    ],
)
def test_mistyped_keys_are_refused_with_their_place(variants, message):
    found = faults(sharing({"name": "a", "variants": variants}))
    assert len(found) == len(message)
    for fault, part in zip(found, message, strict=True):
        assert fault.startswith(f"workloads.0.apps.0.variants.{part}")


@pytest.mark.parametrize("variants", [3, ["a.csv"], True])
def test_variants_are_a_path_or_a_mapping(variants):
    (fault,) = faults(sharing({"name": "a", "variants": variants}))
    assert fault == f"workloads.0.apps.0.variants is {variants!r}: input should be a valid string"


def test_all_missing_columns_of_a_file_are_reported_with_the_other_faults(boards):
    wrong = {"rename": {**READ["rename"], "tops": "acuracy"}, "only": {"board": "nanno", "boad": "orin"}}
    first = {"name": "a", "network": "tinny", "variants": {"file": boards, **wrong}}
    second = {"name": "b", "variants": {"file": "nowhere.csv"}}
    network, columns, nowhere = faults(sharing(first, second))
    assert network.startswith("workloads.0.apps.0: Unknown network 'tinny'. Did you mean 'tiny'?")
    assert columns.startswith(f"workloads.0.apps.0.variants: {boards}: ")
    assert re.findall(r"(rename|only)\.(\w+): \D*?'(\w+)'[^']*'(\w+)'", columns) == [
        ("rename", "tops", "tops", "top1"),
        ("rename", "tops", "acuracy", "accuracy"),
        ("only", "board", "nanno", "nano"),
        ("only", "boad", "boad", "board"),
    ]
    assert nowhere.startswith("workloads.0.apps.1.variants: nowhere.csv cannot be read as csv")


def test_networks_of_other_names_do_not_run(boards, tmp_path):
    variants = {"file": boards, **READ, "only": {"board": "nano"}}
    asked = sharing({"name": "a", "variants": variants}, run_networks=True)
    with pytest.raises(RequestError, match="'a': the measured networks are small, large, but those that run are tiny;"):
        run(asked, out=tmp_path / "run", open_backend=InlineBackend)


def test_a_system_that_learns_on_its_stream_runs_no_measured_networks(boards):
    document = sharing(
        {"name": "a", "variants": {"file": boards, **READ, "only": {"board": "nano"}}}, run_networks=True
    )
    (fault,) = faults({**document, "systems": ["tent"]})
    assert fault.startswith("workloads.0.apps.0.variants: system 'tent' learns on its stream")


@pytest.mark.slow
def test_measured_networks_run_at_their_measured_times(tmp_path):
    """At 2 frames/s a network of 700 ms processes every other frame; a frame costs 100 mJ."""
    (tmp_path / "mine.csv").write_text("variant,accuracy,latency_ms,energy_mj,memory_mb\ntiny,0.5,700,100,3\n")
    document = sharing({"name": "a", "variants": str(tmp_path / "mine.csv")}, run_networks=True)
    outcome = run({**document, "systems": ["no_custom"]}, out=tmp_path / "run", open_backend=InlineBackend)
    found = open_run(outcome.directory)
    frames = found.table("frames").sort_by("time_s").to_pydict()
    assert frames["processed"] == [True, False] * 4
    assert [ms for ms in frames["latency_ms"] if ms] == pytest.approx([700] * 4)
    (row,) = found.table("runs").to_pylist()
    assert row["inference_j"] == pytest.approx(4 * 0.1)
    (share,) = {(one["latency_ms"], one["memory_bytes"]) for one in found.table("shares").to_pylist()}
    assert share == (pytest.approx(700), 3_000_000)


def test_on_the_terminal_a_mistyped_column_is_one_message_and_no_traceback(boards, tmp_path, monkeypatch, capsys):
    document = sharing({"name": "a", "variants": {"file": boards, "rename": {"topp1": "accuracy"}}})
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(document))
    monkeypatch.setattr("sys.argv", ["driftlab", "run", str(tmp_path / "asked.yaml"), "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Did you mean 'top1'?" in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.slow
def test_where_no_time_at_all_is_allowed_everything_is_late_and_runs(boards, tmp_path, few_claims):
    variants = {"file": boards, **READ, "only": {"board": "nano"}}
    hurried = {"name": "hurried", "variants": variants, "latency_goal_s": 0}
    document = sharing(hurried, {"name": "calm", "variants": variants})
    names = ("nestdnn", "exact", "mcdnn", "status_quo")
    document["systems"] = [{"name": name, "base": "no_custom", "scheduling": name} for name in names]
    outcome = run(document, out=tmp_path / "run", open_backend=InlineBackend)
    assert not outcome.failed
    assert write_report(outcome.directory).exists()
    cells = open_run(outcome.directory).frame("shares").groupby("cell")
    assert {cell.partition("/")[0] for cell, _ in cells} == set(names)
    for _, own in cells:
        shares = own.set_index("app")
        assert (shares.loc["hurried", "latency_goal_ms"] == 0).all()
        assert (shares["latency_ms"] >= 10).all()
        assert {tuple(numbers_in(note)) for note in shares.loc[["hurried"], "note"]} == {(0, 0.01)}
        assert shares.loc[["calm"], "note"].isna().all()
        assert (shares["inference_share"] >= 0.01).all()


@pytest.mark.skipif(MEASURED is None, reason="DRIFTLAB_MEASURED names no folder of measured profiles")
def test_profiles_of_real_devices_are_shared_by_an_experiment(tmp_path):
    fronts = {
        "file": str(Path(MEASURED) / "adaptivenet_searched.csv"),
        "rename": {"model": "app", "acc_top1": "accuracy_percent"},
        "only": {"device": "jetson"},
    }
    trials = {
        "file": str(Path(MEASURED) / "ekya_sweep.csv"),
        "rename": {"test_acc": "accuracy", "train_sec": "latency_s"},
        "only": {"net": "resnet18", "sweep": "sweep1", "batch_size": 128},
    }
    apps = [{"name": name, "variants": fronts, "latency_goal_s": 0.2} for name in ("mbv2", "res50", "res101")]
    document = sharing(*apps, {"name": "training", "variants": trials, "latency_goal_s": 100})
    tables = open_run(run(document, out=tmp_path / "run", open_backend=InlineBackend).directory)
    could = tables.frame("variants").groupby("app").size()
    assert could.drop("training").to_dict() == {"mbv2": 11, "res50": 11, "res101": 11}
    assert 0 < could["training"] < 135
    shares = tables.frame("shares")
    assert set(shares["app"]) == {"mbv2", "res50", "res101", "training"}
    assert shares.groupby("time_s")["inference_share"].sum().to_numpy() == pytest.approx(1.0)
    assert shares["accuracy"].between(0.2, 0.9).all()
