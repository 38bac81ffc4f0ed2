"""A damaged or forged run folder is refused by one short message with its file, without a traceback."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import results_factory as factory
import yaml
from command_factory import run_command

from driftlab.errors import DataError
from driftlab.platform.lab import seal as lab
from driftlab.platform.results.tables.read import open_run

DEEP = "[" * 100_000
WAIT_S = 60.0  # on a busy computer; a pipe would be waited for without an end


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    return factory.make_run(folder, systems=("no_custom", "one_time"), workloads=("w",), seeds=(0,))


@pytest.fixture
def run(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def refused(run, file, *, resume=True):
    """Ask every command that opens a run, and check that each gives one short message that names the file."""
    for words in (
        ["report", run],
        ["claims", run],
        ["diff", run, run],
        *([["run", "--resume", run]] if resume else []),
    ):
        begun_s = time.perf_counter()
        result = run_command([str(word) for word in words])
        assert time.perf_counter() - begun_s < WAIT_S
        assert isinstance(result.exception, DataError | lab.RequestError), result.exception
        assert file in str(result.exception)
        assert len(str(result.exception)) < 1500


SPECS = {
    "workloads": {"workloads": 5},
    "workload": {"workloads": [5]},
    "systems": {"systems": {"a": 1}},
    "system": {"systems": [{"streaming": "ams"}]},
    "slot": {"systems": [{"name": "ams", "streaming": {"interval_s": 5}}]},
    "slot as list": {"systems": [{"name": "ams", "streaming": [1]}]},
    "fleets": {"fleets": [{"name": "one", "devices": 3}]},
    "server": {"server": "fast"},
    "seeds": {"seeds": "all"},
    "name": {"name": ["x"]},
    "student": {"student": 7},
    "apps": {"workloads": [{"name": "w", "apps": [1, 2]}]},
    "long": {"workloads": "x" * 100_000},
}


@pytest.mark.parametrize("which", SPECS)
def test_a_stored_spec_of_another_shape_is_refused(run, which):
    file = run / "spec.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **SPECS[which]}))
    refused(run, "spec.yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["name: " + "[" * 600 + "]" * 600, "name: " + "1" * 5000, "name: &a [*a]", "name: 2020-02-31", "? [a]\n: b"],
    ids=["deep", "digits", "itself", "date", "key"],
)
def test_a_stored_spec_that_cannot_be_read_is_refused(run, text):
    (run / "spec.yaml").write_text(text)
    refused(run, "spec.yaml")


@pytest.mark.parametrize(
    "info",
    [
        DEEP,
        "[" * 900 + "]" * 900,
        '{"a": ' + "[" * 500 + "]" * 500 + "}",
        json.dumps({"command": 5}),
        json.dumps({"command": [["x"]]}),
        json.dumps({"packages": ["torch"]}),
        json.dumps({"packages": {"torch": {"a": 1}}}),
        json.dumps({"git_commit": 5}),
        '{"cores": ' + "1" * 5000 + "}",
    ],
    ids=["deep", "deep list", "deep value", "command", "command list", "packages", "package", "commit", "digits"],
)
def test_a_run_json_of_another_shape_is_refused(run, info):
    (run / "run.json").write_text(info)
    refused(run, "run.json", resume=False)


@pytest.mark.parametrize("name", ["spec.yaml", "run.json"])
def test_a_pipe_is_not_waited_for(run, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    refused(run, name, resume=False)


@pytest.mark.parametrize("table", ["runs", "frames"])
def test_a_pipe_in_place_of_a_table_is_not_waited_for(run, table):
    file = sorted((run / "tables" / table).glob("*.parquet"))[0]
    file.unlink()
    os.mkfifo(file)
    begun_s = time.perf_counter()
    with pytest.raises(DataError, match="no regular file"):
        open_run(run).table(table)
    assert len(factory.finished_cells(str(run))) == 1
    assert time.perf_counter() - begun_s < WAIT_S


def test_a_folder_of_tables_that_leads_to_itself_is_refused(run):
    shutil.rmtree(run / "tables/runs")
    (run / "tables/runs").symlink_to(run / "tables/runs")
    with pytest.raises(DataError, match="is a link"):
        open_run(run).table("runs")
    refused(run, "runs", resume=False)
