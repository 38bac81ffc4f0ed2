"""Schema, recorder and reader: rows are read as written, and incomplete writes never count."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import results_factory as factory
import yaml
from spec_factory import stored

import driftlab
from driftlab.errors import DataError, RequestError
from driftlab.platform.lab.paths import new_run
from driftlab.platform.results.tables import schema
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.recorder import Recorder, as_table, table_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return factory.make_run(folder, systems=("no_custom", "one_time"), workloads=("streets/driving_la",), seeds=(0, 1))


@pytest.fixture
def run(made, tmp_path):
    """Copy a run, so that a test may damage it."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_a_run_prints_as_one_line_and_shows_its_scores_in_a_notebook(made):
    opened = driftlab.open_run(made)
    assert "\n" not in repr(opened)
    assert len(repr(opened)) < len(str(made)) + 100
    assert "2 systems, 1 workloads, 2 seeds, 4 complete cells" in repr(opened)
    assert f"{opened.frame('runs').groupby('system')['score_live'].mean()['one_time']:.4f}" in opened._repr_html_()


# --- schema


def test_every_column_has_type_unit_and_meaning():
    for name, table in schema.TABLES.items():
        assert table.metadata[b"driftlab.schema"] == str(schema.SCHEMA_VERSION).encode()
        assert table.names[0] == "cell"
        for field in table:
            assert field.metadata[b"meaning"], (name, field.name)
            assert b"unit" in field.metadata
            assert (b"host" in field.metadata) == field.name.startswith("host_")
            if field.name.endswith(("_s", "_ms", "_bytes", "_j", "_kbps")):
                assert field.metadata[b"unit"], (name, field.name)


def test_the_page_of_tables_is_current():
    assert (ROOT / "docs/tables.md").read_text(encoding="utf-8") == schema.page()


# --- chunks to Arrow


def devices(**changes):
    return factory.rows("no_custom", "w", 0, 4.0, 1.0, False)["devices"][0] | changes


def test_a_scalar_fills_the_whole_chunk_and_order_is_kept():
    chunks = [devices(device=["b", "a"], frames=np.array([2, 1])), devices(device=("c",), score=np.float64(0.5))]
    table = as_table("devices", "x", chunks)
    assert table["device"].to_pylist() == ["b", "a", "c"]
    assert table["frames"].to_pylist() == [2, 1, 4]
    assert table["cell"].to_pylist() == ["x"] * 3
    assert table.schema.equals(schema.TABLES["devices"], check_metadata=True)


def test_chunks_of_many_kinds_join_in_order():
    chunks = [
        devices(device=["a", "b"], score=np.array([0.5, np.nan])),
        devices(device="c", score=None),
        devices(device=np.array(["d", "e"]), score=[1, None], frames=pa.array([7, 8])),
        devices(device=[]),
    ]
    table = as_table("devices", "x", chunks)
    assert table["device"].to_pylist() == list("abcde")
    assert table["score"].to_pylist() == [0.5, None, None, 1.0, None]
    assert table["frames"].to_pylist() == [4, 4, 4, 7, 8]
    with pytest.raises(ValueError, match="column 'device'"):
        as_table("devices", "x", [devices(device=np.array(["a"])), devices(device=np.array([1.0]))])


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (devices(colour="red"), "no column colour"),
        ({k: v for k, v in devices().items() if k != "hardware"}, "'hardware': a value is missing"),
        (devices(frames=1.5), "column 'frames'"),
        (devices(busy_s="long"), "column 'busy_s'"),
        (devices(working_memory_bytes=float("nan")), "'working_memory_bytes': a value is missing"),
        (devices(device=["a", "b"], frames=[1, 2, 3]), "differ in length"),
        (devices(cell="y"), "another cell"),
    ],
)
def test_a_wrong_chunk_is_named(chunk, message):
    with pytest.raises(ValueError, match=message):
        as_table("devices", "x", [chunk])


# --- recorder


@pytest.mark.slow
def test_rows_are_read_as_written(run):
    opened = open_run(run)
    frames = opened.table("frames")
    assert len(frames) == 4 * 2 * 240
    expected = factory.rows("one_time", "streets/driving_la", 1, 120.0, 2.0, False)["frames"][1]["score_window"]
    ours = opened.frame("frames").query("cell == 'one_time/streets/driving_la/two-phones/seed-1' and device == 'cam-1'")
    assert np.array_equal(ours["score_window"].to_numpy(), expected)
    assert Recorder(str(run)).write("z", {"runs": [runs_row()]}).facts["runs"] == 1


def runs_row(status="done"):
    return factory.identity("no_custom", "w", 9) | {"status": status}


def test_unknown_table_and_missing_run_row_are_refused(tmp_path):
    recorder = Recorder(str(tmp_path))
    with pytest.raises(ValueError, match="no such table: frame;"):
        recorder.write("x", {"frame": [], "runs": [runs_row()]})
    with pytest.raises(ValueError, match="0 rows for table 'runs'"):
        recorder.write("x", {})
    assert not (tmp_path / "tables").exists()


@pytest.mark.slow
def test_same_rows_same_bytes(tmp_path):
    for name in ("a", "b"):
        factory.make_run(tmp_path / name, systems=("one_time",), seeds=(0,))
    files = sorted(file.relative_to(tmp_path / "a") for file in (tmp_path / "a/tables").rglob("*.parquet"))
    assert len(files) == 2 * len(schema.TABLES)
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.slow
def test_an_interruption_at_any_file_leaves_a_folder_that_opens(tmp_path, monkeypatch):
    from driftlab.platform.core import files
    from driftlab.platform.results.tables import recorder

    class ProcessKilled(BaseException):
        pass

    whole = factory.make_run(tmp_path / "whole", systems=("one_time",), workloads=("w",), seeds=(0,), duration_s=20.0)
    before = open_run(whole).table("frames")
    for survive in range(len(schema.TABLES)):
        folder = Path(shutil.copytree(whole, tmp_path / str(survive)))
        written = []

        @contextmanager
        def stop(file, written=written, survive=survive, write=files.atomic_write):
            with write(file) as draft:
                if len(written) == survive:
                    draft.write_bytes(b"half")
                    raise ProcessKilled
                written.append(file)
                yield draft

        with monkeypatch.context() as patch:
            for module in (files, recorder):
                patch.setattr(module, "atomic_write", stop)
            with pytest.raises(ProcessKilled):
                Recorder(str(folder)).write("one_time/w/two-phones/seed-0", {"runs": [runs_row("failed")]})
            with pytest.raises(ProcessKilled):
                written.clear()
                Recorder(str(folder)).write("new", {"runs": [runs_row()]})
        assert len(open_run(folder).table("runs")) == 0
        assert len(open_run(folder).table("frames")) == 0
        assert factory.finished_cells(str(folder)) == set()
        Recorder(str(folder)).write("one_time/w/two-phones/seed-0", factory.rows("one_time", "w", 0, 20.0, 2.0, True))
        assert open_run(folder).table("frames").equals(before)
        assert factory.finished_cells(str(folder)) == {"one_time/w/two-phones/seed-0"}


@pytest.mark.slow
def test_writing_a_cell_again_replaces_all_its_rows(run):
    cell = "one_time/streets/driving_la/two-phones/seed-0"
    Recorder(str(run)).write(cell, {"runs": [runs_row("failed") | {"error": "broken"}]})
    opened = open_run(run)
    assert cell not in opened.table("frames")["cell"].to_pylist()
    assert opened.table("runs")["cell"].to_pylist().count(cell) == 1
    assert len(factory.finished_cells(str(run))) == 3


def test_cells_never_share_a_file(tmp_path):
    names = ["a/b", "a_b", "a b", "a:b", ".a", "_a", "a" * 300, "a" * 301, "é", "ü", ""]
    files = {table_file(tmp_path, "runs", name).name.lower() for name in names}
    assert len(files) == len(names)
    assert all(len(file) < 130 and file[0] not in "._" for file in files)


# --- reading


def test_an_empty_run_has_empty_tables_of_the_right_shape(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(stored({"name": "x", "systems": ["no_custom"]})))
    (tmp_path / "run.json").write_text("{}")
    opened = open_run(tmp_path)
    for name, expected in schema.TABLES.items():
        assert opened.table(name).schema.equals(expected)
        assert len(opened.table(name)) == 0
    assert opened.sql("select count(*) as n from frames")["n"].to_pylist() == [0]
    assert factory.finished_cells(str(tmp_path)) == set()


def test_sql_joins_tables(run):
    result = open_run(run).sql(
        "select system, count(*) as n from frames join runs using (cell) group by system order by system"
    )
    assert isinstance(result, pa.Table)
    assert result.to_pylist() == [{"system": "no_custom", "n": 960}, {"system": "one_time", "n": 960}]


def test_a_wrong_question_is_a_request_error(run):
    with pytest.raises(RequestError, match="colour"):
        open_run(run).sql("select colour from runs")
    with pytest.raises(RequestError, match="Did you mean 'frames'"):
        open_run(run).table("frame")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("select answering_j from runs", "inference_j"),
        ("select r.answering_j from runs r", "inference_j"),
        ("select sum(inference_j) from runs where learning_j > 1", "training_j"),
        ("select share from shares", "inference_share"),
        ("select way, place from updates", "training_config"),
        ("select * from pictures", "snapshots"),
    ],
)
def test_an_old_name_in_sql_is_refused_with_the_new_one(run, query, name):
    with pytest.raises(RequestError, match=rf" It is now '{name}'\.$"):
        open_run(run).sql(query)


def test_an_old_name_of_a_table_or_column_is_refused_with_the_new_one(run):
    with pytest.raises(RequestError, match=r"Unknown table 'pictures'\. It is now 'snapshots'"):
        open_run(run).table("pictures")
    renamed = {"answering_j": "inference_j", "updates.work_s": "isolated_s", "pictures.scene": "snapshots"}
    for asked, name in renamed.items():
        with pytest.raises(RequestError, match=f"It is now '{name}'"):
            driftlab.open_run(run).compare("one_time", "no_custom", asked)


@pytest.mark.parametrize(
    ("place", "message"), [("nowhere", "does not exist"), ("run/spec.yaml", "a file"), (".", "not a run folder")]
)
def test_a_folder_that_is_no_run_is_refused(tmp_path, run, place, message):
    with pytest.raises(DataError, match=message):
        open_run(tmp_path / place)


def test_a_run_that_was_killed_before_it_knew_where_it_runs_opens(tmp_path):
    """Between the two files driftlab calls git, which can take seconds."""
    folder = new_run(tmp_path / "run", stored({"name": "x", "systems": ["no_custom"]}))
    opened = open_run(folder)
    assert (opened.spec["name"], dict(opened.info)) == ("x", {})
    assert len(opened.table("frames")) == 0


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "gone"])
@pytest.mark.parametrize("table", ["frames", "runs"])
def test_a_damaged_file_is_named_with_its_fix(run, table, damage):
    file = sorted((run / "tables" / table).glob("*.parquet"))[0]
    content = file.read_bytes()
    if damage == "gone" and table == "runs":
        return  # a cell without its last file was never complete
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        middle = 60 if table == "runs" else len(content) // 4
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "foreign":
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"a": [1]}), file)
    else:
        file.unlink()
    with pytest.raises(DataError) as caught:
        open_run(run).table(table)
    assert file.name in str(caught.value)
    assert f"driftlab run --resume {run}" in str(caught.value)
    assert len(factory.finished_cells(str(run))) == 3  # resuming repeats this cell and no other


@pytest.mark.parametrize("file", ["spec.yaml", "run.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe\x00"])
def test_a_damaged_record_of_the_request_is_named(run, file, content):
    (run / file).write_bytes(content)
    with pytest.raises(DataError, match=file.replace(".", r"\.")):
        open_run(run)
