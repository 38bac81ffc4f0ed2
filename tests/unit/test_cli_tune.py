"""`driftlab tune` on the command line: an invalid request has exit code 2 before a search starts."""

from __future__ import annotations

import json
import sys
from typing import get_args

import pytest
import tuning_factory as factory
import yaml

from driftlab.cli.app import main
from driftlab.cli.tune import SearcherName
from driftlab.platform.tune.samplers import SAMPLERS
from driftlab.tune_spaces import loggers


@pytest.fixture
def space(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(yaml.safe_dump(factory.raw()))
    return file


def tune(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["driftlab", "tune", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_dry_run_lists_the_settings(space, monkeypatch, capsys):
    assert tune(monkeypatch, space, "--dry-run", "--trials", 7, "--searcher", "tpe", "--seed", 3) in (0, None)
    message = capsys.readouterr().out
    assert factory.RATE in message
    assert "7 trials by tpe" in message
    assert tune(monkeypatch, space, "--dry-run", "--json", "--trials", 7) in (0, None)
    assert json.loads(capsys.readouterr().out)["trials"] == 7


@pytest.mark.parametrize(("seconds", "idle"), [(3, True), (4, False)])  # a batch of Tent has 32 frames, at 10 a second
def test_defaults_that_cannot_act_are_announced(seconds, idle, space, monkeypatch, capsys):
    tune(monkeypatch, space, "--dry-run", "--set", f"workloads.0.duration_s={seconds}")
    assert ("acts after the end of every session" in capsys.readouterr().err) is idle


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("tnet",),
        ("streaming/local",),
        ("quick",),
        ("ams", "--set", "seeds=[0]"),
        ("ams", "--set", "objectives={scroe: max}"),
        ("ams", "--set", "space.systems.0.streaming.x.values=[1]"),
        ("best_static", "--early-stopping"),
        ("ams", "--log", "mflow"),
        ("ams", "--log", "mflow", "--dry-run"),
        ("ams", "--resume", "nowhere"),
        ("--resume", "nowhere"),
        ("--equal", "tnet"),
        ("--equal", ""),
        ("--equal", "tent", "--early-stopping"),
        ("--equal", "tent", "--set", "seeds=[0]"),
        ("--equal", "tent", "--set", "system=shot"),
        ("--equal", "tent", "--set", "space.systems.0.adaptation.learning_rate.to=1"),
        ("ams", "--equal", "ams,shot"),
        ("--equal", "tent", "--resume", "nowhere"),
    ],
)
def test_an_invalid_request_has_exit_code_2_and_writes_no_files(words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert tune(monkeypatch, *words) == 2
    assert capsys.readouterr().err.startswith("Error: ")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_lists_the_settings_of_each_system(space, monkeypatch, capsys):
    words = (space, "--equal", "tent,no_custom,onda", "--trials", 7, "--dry-run")
    assert tune(monkeypatch, *words) in (0, None)
    message = capsys.readouterr().out
    assert message.count("7 trials by random") == 2
    assert "no_custom: nothing to tune" in message
    assert tune(monkeypatch, *words, "--json") in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert found["no_custom"] is None and found["onda"]["trials"] == 7


def test_a_logger_without_its_package_is_refused(space, monkeypatch, capsys):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    assert tune(monkeypatch, space, "--log", "wandb") == 2
    assert "pip install wandb" in capsys.readouterr().err


def test_mlflow_writes_a_database(tmp_path):
    assert loggers.LOGGERS["mlflow"].options(tmp_path)["tracking_uri"] == f"sqlite:///{tmp_path}/mlflow.db"


def test_the_command_line_offers_every_searcher():
    offered, _ = get_args(get_args(SearcherName)[0])
    assert set(get_args(offered)) == set(SAMPLERS)
