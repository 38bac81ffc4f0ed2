"""Runs stay readable within a major version without importing a member; others are refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import documents_factory as documents
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import results_factory as factory
import yaml
from command_factory import run_command

from driftlab.errors import DataError, RequestError
from driftlab.platform.core.registry import FAMILIES, Member, member_class, parameters
from driftlab.platform.lab.cells import cells_of, resolved
from driftlab.platform.lab.read import load, parse
from driftlab.platform.results.tables import recorder, schema
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.integrity import warnings_of
from driftlab.platform.results.tables.origin import Seal, seal_of, with_seal
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.recorder import Recorder
from driftlab.platform.results.tables.search import SEARCH_TABLES
from driftlab.platform.results.tables.systems import NESTED, Slot, every_system, slots_of


@pytest.mark.slow
def test_a_run_is_reported_without_importing_a_member(run):
    code = (
        "import sys; from driftlab.platform.results.tables.diff import differences;"
        "from driftlab.platform.results.report.page import write_report; path = sys.argv[1];"
        "write_report(path); assert differences(path, path) == []; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {f"driftlab.platform.results.{part}" for part in ("report.page", "claims.base")} <= loaded
    assert "<title>demo" in (run / "report.html").read_text()
    members = {place.partition(":")[0] for family in FAMILIES.values() for place in family.values()}
    assert loaded & {*members, "torch", "torchvision", "ray"} == set()


# --- tables that change


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    return factory.make_run(folder, systems=("no_custom", "one_time"), workloads=("w",), seeds=(0,))


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def rewrite(run, table, change, version=None):
    """Write files of a table as another version would have."""
    for file in (run / "tables" / table).glob("*.parquet"):
        content = change(pq.read_table(file))
        metadata = dict(content.schema.metadata)
        if version:
            metadata[b"driftlab.schema"] = version.encode()
        pq.write_table(content.replace_schema_metadata(metadata), file)


@pytest.mark.slow
def test_a_column_that_may_be_null_is_null_where_it_is_missing(run):
    rewrite(run, "updates", lambda table: table.drop_columns(["phi", "loss_last"]))
    found = open_run(run).table("updates")
    assert found.schema.equals(schema.TABLES["updates"])
    assert found["loss_last"].null_count == len(found) == 2
    assert found["loss_first"].null_count == 0
    assert open_run(run).frame("updates")["loss_last"].isna().all()


def test_a_run_without_live_scores_names_the_command_that_repeats_it(run):
    assert not any("live score" in warning for warning in warnings_of(open_run(run)))
    rewrite(run, "runs", lambda table: table.drop_columns(["score_live"]))
    (warning,) = (warning for warning in warnings_of(open_run(run)) if "live score" in warning)
    assert "2 cells have no live score" in warning
    assert f"driftlab run --resume {run}" in warning


def test_a_column_that_is_never_null_is_missed(run):
    rewrite(run, "updates", lambda table: table.drop_columns(["uploads"]))
    with pytest.raises(DataError, match="column 'uploads' is missing"):
        open_run(run).table("updates")


@pytest.mark.slow
def test_a_table_unknown_to_the_writer_is_empty_and_a_deleted_one_is_an_error(run):
    shutil.rmtree(run / "tables/updates")
    with pytest.raises(DataError, match="is missing though its cell is complete"):
        open_run(run).table("updates")
    for file in (run / "tables/runs").iterdir():
        seal = seal_of(file)
        others = {name: digest for name, digest in seal.files.items() if name != "updates"}
        pq.write_table(with_seal(pq.read_table(file), Seal(seal.origin, others)), file)
    found = open_run(run).table("updates")
    assert (len(found), found.schema) == (0, schema.TABLES["updates"])


@pytest.mark.slow
def test_an_unknown_column_is_omitted(run):
    rewrite(run, "devices", lambda table: table.append_column("colour", pa.array(["red"] * len(table))), "5.99")
    found = open_run(run).table("devices")
    assert found.schema.equals(schema.TABLES["devices"])
    assert len(found) == 4


@pytest.mark.parametrize("version", ["3", "4", "4.4", "6.2"])
def test_other_major_versions_are_refused_with_any_spec(run, version):
    rewrite(run, "runs", lambda table: table, version)
    message = (
        f"'{run}' has tables of schema version {version}, and this driftlab reads 5.x. "
        "Read them with the driftlab that wrote them; its version and commit are in run.json."
    )
    for read in (lambda: open_run(run), lambda: factory.finished_cells(str(run))):
        with pytest.raises(DataError, match=re.escape(message)):
            read()
    (run / "spec.yaml").write_text("name: x\nsystems: [ams]\n")
    for words in (["report", run], ["claims", run], ["diff", run, run], ["run", "--resume", run]):
        result = run_command([str(word) for word in words])
        assert isinstance(result.exception, DataError)
        assert str(result.exception) == message
    with pytest.raises(DataError, match=re.escape(message)):
        recorder.read_file(next((run / "tables/runs").iterdir()), "runs")


def test_searches_of_other_major_versions_are_refused(tmp_path):
    trials = SEARCH_TABLES["trials"].empty_table().replace_schema_metadata({b"driftlab.schema": b"4.4"})
    (tmp_path / "tables/trials").mkdir(parents=True)
    pq.write_table(trials, tmp_path / "tables/trials/search-000000.parquet")
    with pytest.raises(DataError, match=r"schema version 4\.4, and this driftlab reads 5\.x"):
        open_run(tmp_path)


@pytest.mark.slow
def test_cells_of_another_minor_version_run_again(run):
    (one, other) = sorted((run / "tables/runs").iterdir())
    rewrite(run, "runs", lambda table: table, "5.99")
    assert factory.finished_cells(str(run)) == set()
    cell = "no_custom/w/two-phones/seed-0"
    Recorder(str(run)).write(cell, factory.rows("no_custom", "w", 0, 4.0, 1.0, False))
    assert factory.finished_cells(str(run)) == {cell}
    assert open_run(run).versions() == [schema.SCHEMA_VERSION, "5.99"]
    assert len(open_run(run).table("runs")) == len({one, other})


def test_cells_with_other_columns_run_again(run):
    cells = factory.finished_cells(str(run))
    assert len(cells) == 2
    (first, second) = sorted(cells)
    rewrite(run, "runs", lambda table: table.drop_columns(["tuned"]) if first in table["cell"].to_pylist() else table)
    assert recorder.reason_to_repeat(run / "tables", first) == "its tables have other columns than the present schema"
    assert factory.finished_cells(str(run)) == {second}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["x", "5.x", ""])
def test_an_invalid_version_counts_as_damage(run, version):
    rewrite(run, "runs", lambda table: table, version or "-")
    with pytest.raises(DataError, match="--resume"):
        open_run(run).table("runs")


def test_a_column_of_another_type_is_damage(run):
    rewrite(run, "frames", lambda table: table.set_column(1, "device", pa.array(range(len(table)))))
    with pytest.raises(DataError, match="column 'device' is int64"):
        open_run(run).table("frames")


@pytest.mark.slow
def test_versions_that_had_other_columns_do_not_differ_by_them(run, tmp_path):
    older = Path(shutil.copytree(run, tmp_path / "older"))
    rewrite(older, "updates", lambda table: table.drop_columns(["loss_first"]), "5.99")
    assert differences(older, run) == []
    assert differences(run, older) == []


# --- specs that hold every parameter


@pytest.mark.parametrize("document", [documents.TINY | {"bounds": True}, documents.SHARING], ids=["bounds", "nested"])
def test_a_spec_holds_every_parameter_and_means_the_same(document):
    experiment = parse(document)
    document = resolved(experiment)
    again = parse(yaml.safe_load(yaml.safe_dump(document)))
    assert [cell.system for cell in cells_of(again)] == [cell.system for cell in cells_of(experiment)]
    assert again == experiment
    for part in (*document["systems"], *(document["bound_rows"] or ())):
        for family in FAMILIES:
            slot = dict(part[family])
            held = {*slot.pop("defaults"), *slot}
            assert held == {"name", *parameters(member_class(family, slot["name"]))}
    listed = {part["name"] for part in every_system(document)}
    assert listed == {cell.system.name for cell in cells_of(experiment)}


def test_members_keep_their_names_and_their_given_parameters():
    systems = parse(resolved(parse(documents.TINY))).systems
    ams = next(part for part in systems if part.name == "ams")
    assert (ams.streaming, ams.scaling) == ({"name": "ams", "interval_s": 2}, {"name": "fixed"})
    table = load("ams-table1")
    cell, same = (
        next(cell for cell in cells_of(each) if cell.system.name == "just_in_time")
        for each in (table, parse(resolved(table)))
    )
    assert (
        str(same.system.adaptation) == str(cell.system.adaptation) == "distill(learning_rate=0.003, optimiser=momentum)"
    )


def test_a_recorded_default_overrides_a_changed_one():
    document = resolved(parse(documents.TINY))
    row = next(part for part in document["systems"] if part["name"] == "ams")
    row["adaptation"]["defaults"]["batch"] = 7
    (cell,) = (cell for cell in cells_of(parse(document)) if cell.system.name == "ams")
    assert cell.system.adaptation == Member("adaptation", "distill", (("batch", 7), ("iterations", 3)))
    row["adaptation"]["defaults"]["gone"] = 1
    with pytest.raises(RequestError, match="unknown parameter 'gone'"):
        parse(document)


def test_bounds_keep_their_recorded_parameters():
    experiment = parse({**documents.TINY, "bounds": True, "systems": ["ams"]})
    document = resolved(experiment)
    assert [row["name"] for row in document["bound_rows"]] == ["no_custom", "best_static", "oracle"]
    document["bound_rows"][1]["streaming"]["iterations"] = 5
    found = {cell.system.name: cell.system for cell in cells_of(parse(document))}
    assert list(found) == ["ams", "no_custom", "best_static", "oracle"]
    assert dict(found["best_static"].streaming.params)["iterations"] == 5
    assert found["best_static"].bound == "best_static"
    assert len(cells_of(parse(document, ["bounds=false"]))) == 1


def test_different_parameters_are_reported_unless_one_version_lacks_them(tmp_path):
    plain = resolved(parse(documents.TINY))
    other = json.loads(json.dumps(plain))
    row = next(part for part in other["systems"] if part["name"] == "ams")
    row["streaming"]["defaults"]["newer"] = 1
    row["adaptation"]["defaults"]["batch"] = 7
    for name, document in (("a", plain), ("b", other)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spec.yaml").write_text(yaml.safe_dump(document))
    assert differences(tmp_path / "a", tmp_path / "b") == ["spec 'systems.ams.adaptation.batch': 4 vs 7"]
    assert differences(tmp_path / "b", tmp_path / "a") == ["spec 'systems.ams.adaptation.batch': 7 vs 4"]


def test_slots_of_a_spec_hold_given_parameters_and_defaults():
    spec = resolved(parse({**documents.TINY, "bounds": True}))
    spec["systems"][2]["streaming"]["defaults"]["horizon_s"] = 7.0
    found = slots_of(spec, ["ams", "best_static"])
    assert (found["ams"]["streaming"]["interval_s"], found["ams"]["streaming"]["horizon_s"]) == (2, 7.0)
    assert found["best_static"]["streaming"]["span"] == "stream"
    assert found["ams"]["streaming"]["unheard_of"] is None
    assert not found["ams"]["scaling"].nested
    assert Slot("nested").nested
    assert Slot("x", (("a", 1), ("b", 2))).without("a") == Slot("x", (("b", 2.0),))


@pytest.mark.parametrize("name", FAMILIES["scaling"])
def test_nested_members_are_known_by_name(name):
    assert member_class("scaling", name).nested == (name in NESTED)
