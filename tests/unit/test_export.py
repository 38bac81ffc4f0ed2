"""Exports: every row and score in CSV, and the calls to MLflow and TensorBoard for each cell."""

from __future__ import annotations

import csv
import io
import math
import sys
from types import SimpleNamespace

import pytest
import results_factory as factory
from PIL import Image

from driftlab.cli import app as front
from driftlab.errors import RequestError
from driftlab.platform.results.report.export import export
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.schema import TABLES

FAILED = ("one_time", "w", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    systems = ("no_custom", "one_time")
    return factory.make_run(
        tmp_path_factory.mktemp("run"),
        systems=systems,
        workloads=("w",),
        seeds=(0, 1),
        failed=[FAILED],
        duration_s=10.0,
    )


def read(file):
    with file.open(newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def main(*words, monkeypatch):
    """Call the command as a shell does, which turns errors into exit codes."""
    monkeypatch.setattr(sys, "argv", ["driftlab", *words])
    with pytest.raises(SystemExit) as end:
        front.main()
    return end.value.code


class TestCsv:
    @pytest.mark.slow
    def test_every_table_has_a_file_with_its_rows_and_columns(self, folder, tmp_path):
        assert export(folder, "csv", tmp_path / "out") == tmp_path / "out"
        run = open_run(folder)
        for name in TABLES:
            rows = read(tmp_path / "out" / f"{name}.csv")
            assert len(rows) == run.table(name).num_rows
            assert not rows or list(rows[0]) == TABLES[name].names

    @pytest.mark.slow
    def test_numbers_are_those_of_the_tables_and_missing_ones_are_empty(self, folder, tmp_path):
        export(folder, "csv", tmp_path)
        rows = {row["cell"]: row for row in read(tmp_path / "runs.csv")}
        for row in open_run(folder).table("runs").to_pylist():
            written = rows[row["cell"]]["score"]
            assert written == "" if row["score"] is None else float(written) == row["score"]

    @pytest.mark.slow
    def test_scores_name_their_system_workload_and_seed(self, folder, tmp_path):
        export(folder, "csv", tmp_path)
        rows = read(tmp_path / "scores.csv")
        frames = open_run(folder).table("frames")
        assert len(rows) == frames.num_rows
        assert {(row["system"], row["workload"], row["seed"]) for row in rows} == {
            ("no_custom", "w", "0"),
            ("no_custom", "w", "1"),
            ("one_time", "w", "0"),
        }
        assert math.fsum(float(row["score_frame"]) for row in rows) == pytest.approx(
            math.fsum(frames["score_frame"].to_pylist())
        )

    @pytest.mark.slow
    def test_images_are_files_named_in_rows(self, folder, tmp_path):
        export(folder, "csv", tmp_path)
        rows = read(tmp_path / "snapshots.csv")
        contents = open_run(folder).table("snapshots").to_pylist()
        for row, stored in zip(rows, contents, strict=True):
            assert (tmp_path / row["truth"]).read_bytes() == stored["truth"]
        with Image.open(io.BytesIO((tmp_path / rows[0]["image"]).read_bytes())) as image:
            assert image.size == (96, 48)

    @pytest.mark.slow
    def test_without_a_folder_it_lies_in_the_run(self, folder, monkeypatch):
        assert main("export", str(folder), "--to", "csv", monkeypatch=monkeypatch) == 0
        assert (folder / "export" / "csv" / "scores.csv").is_file()


class TestRequests:
    @pytest.mark.parametrize(
        ("target", "package"), [("mlflow", "mlflow"), ("tensorboard", "tensorboardX"), ("wandb", "'driftlab[wandb]'")]
    )
    def test_an_absent_package_is_named_with_the_command_that_installs_it(
        self, target, package, folder, tmp_path, monkeypatch, capsys
    ):
        monkeypatch.setitem(sys.modules, "wandb" if target == "wandb" else package, None)
        out = tmp_path / "out"
        assert main("export", str(folder), "--to", target, "--out", str(out), monkeypatch=monkeypatch) == 2
        message = capsys.readouterr().err
        assert f"pip install {package}" in message
        assert message.count("\n") == 1
        assert not out.exists()

    def test_an_unknown_format_is_refused(self, folder, monkeypatch):
        with pytest.raises(RequestError, match="'tensorboard'"):
            export(folder, "tensorbord")
        assert main("export", str(folder), "--to", "xlsx", monkeypatch=monkeypatch) == 2


class Client:
    """A client of MLflow that records its calls."""

    def __init__(self, tracking_uri):
        self.uri, self.runs, self.ended = tracking_uri, {}, {}
        Client.last = self

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name, artifact_location):
        return name

    def create_run(self, experiment, start_time, run_name):
        self.runs[run_name] = {"experiment": experiment, "metrics": [], "params": {}}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_batch(self, run, metrics=(), params=()):
        assert len(metrics) <= 1000
        self.runs[run]["metrics"] += metrics
        self.runs[run]["params"].update(params)

    def set_terminated(self, run, status):
        self.ended[run] = status


def test_mlflow_receives_a_run_per_cell_with_numbers_and_the_score_over_time(folder, tmp_path, monkeypatch):
    entities = SimpleNamespace(Metric=lambda *numbers: numbers, Param=lambda key, value: (key, value))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client, entities=entities))
    export(folder, "mlflow", tmp_path)
    client, run = Client.last, open_run(folder)
    assert client.uri == f"sqlite:///{tmp_path}/mlflow.db"
    rows = {row["cell"]: row for row in run.table("runs").to_pylist()}
    assert client.ended == {cell: "FINISHED" if row["status"] == "done" else "FAILED" for cell, row in rows.items()}
    logged = client.runs["one_time/w/two-phones/seed-0"]
    assert logged["params"]["adaptation"] == "distill"
    numbers = {key: value for key, value, *_ in logged["metrics"] if key != "frames.score_live"}
    row = rows["one_time/w/two-phones/seed-0"]
    assert (numbers["score"], numbers["score_live"]) == (row["score"], row["score_live"])
    assert numbers["uplink_bytes"] == row["uplink_bytes"]
    line = [metric for metric in logged["metrics"] if metric[0] == "frames.score_live"]
    assert [(at_ms, step) for _, _, at_ms, step in line] == [(500 * step, step) for step in range(20)]
    frames = run.frame("frames")
    first = frames[(frames["cell"] == row["cell"]) & (frames["frame"] == 0)]
    assert line[0][1] == pytest.approx(first["score_live"].mean())


class Events:
    """A writer of TensorBoard that records its calls."""

    def __init__(self, folder):
        self.own = self.written.setdefault(folder, [])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.own.append("closed")

    def add_text(self, *_):
        pass

    def add_scalar(self, *scalar):
        self.own.append(scalar)


def test_tensorboard_receives_a_folder_per_cell_in_virtual_time(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Events))
    monkeypatch.setattr(Events, "written", {}, raising=False)
    export(folder, "tensorboard", tmp_path)
    rows = open_run(folder).table("runs").to_pylist()
    assert set(Events.written) == {str(tmp_path / row["cell"]) for row in rows}
    own = Events.written[str(tmp_path / "no_custom/w/two-phones/seed-1")]
    assert own[-1] == "closed"
    line = [scalar for scalar in own[:-1] if scalar[0] == "frames.score_live"]
    assert [(step, time_s) for _, _, step, time_s in line] == [(step, step / 2) for step in range(20)]
    assert (
        "cell/score",
        next(r["score"] for r in rows if r["cell"].endswith("no_custom/w/two-phones/seed-1")),
        0,
        0,
    ) in own


class Wandb:
    """The module wandb, which records its runs."""

    def __init__(self):
        self.runs = []

    def Settings(self, **settings):
        return settings

    def init(self, **facts):
        self.runs.append(SimpleNamespace(facts=facts, logged=[], summary={}, ended=None))
        one = self.runs[-1]
        one.log = lambda values, step: one.logged.append((step, values))
        one.finish = lambda exit_code: setattr(one, "ended", exit_code)
        return one


def test_wandb_receives_an_offline_run_per_cell(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", Wandb())
    export(folder, "wandb", tmp_path / "out")
    rows = {row["cell"]: row for row in open_run(folder).table("runs").to_pylist()}
    runs = {one.facts["name"]: one for one in sys.modules["wandb"].runs}
    assert set(runs) == set(rows)
    assert {one.facts["mode"] for one in runs.values()} == {"offline"}
    assert {one.facts["dir"] for one in runs.values()} == {str(tmp_path / "out")}
    assert {cell: one.ended for cell, one in runs.items()} == {
        cell: 0 if row["status"] == "done" else 1 for cell, row in rows.items()
    }
    done, row = (which["one_time/w/two-phones/seed-0"] for which in (runs, rows))
    assert done.summary["score_live"] == row["score_live"]
    assert done.facts["config"]["adaptation"] == "distill"
    assert [(step, values["time_s"]) for step, values in done.logged] == [(step, step / 2) for step in range(20)]


def test_tensorboard_files_are_written_by_the_real_package(folder, tmp_path):
    pytest.importorskip("tensorboardX")
    export(folder, "tensorboard", tmp_path)
    assert len(list(tmp_path.rglob("events.out.tfevents.*"))) == 4
