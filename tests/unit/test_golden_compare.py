"""The golden net finds each kind of difference of two recordings; its experiments run every member."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden_compare
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from golden import FAMILIES, members_without_cell
from golden_compare import Renames, read_renames
from golden_record import DEFINITIONS, HERE
from golden_requests import WHOLE, faulty, stored
from PIL import Image

from driftlab.cli.kinds import kind_of
from driftlab.platform.lab.cells import systems_of
from driftlab.platform.lab.read import load
from driftlab.platform.tune.samplers import SAMPLERS

CELL = "ams/depot/one/seed-0"
FRAMES = {"cell": [CELL] * 3, "score": [0.25, None, 1.0], "count": [1, 2, 3], "note": ["a", None, "c"]}
RECIPE = {"network": "tiny", "steps": 4, "digest": "abc"}
NONE = Renames()
SPEC = (
    "name: first\nsystems: [{name: ams, streaming: {name: ams, interval_s: 2}}]\nseeds: [0]\nstudent: {network: tiny}\n"
)


def write_table(recording: Path, name: str, columns: dict[str, Any] | pa.Table) -> None:
    folder = recording / "runs" / "first" / "tables" / name
    folder.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, folder / "ams-1.parquet")


def write_recording(folder: Path) -> Path:
    """A recording of one run with two tables, a spec, a report, a picture and a key of the cache."""
    for part in ("texts", "pictures", "cache"):
        (folder / part).mkdir(parents=True)
    write_table(folder, "runs", {"cell": [CELL], "system": ["ams"], "host_seconds": [1.0]})
    write_table(folder, "frames", FRAMES)
    run = folder / "runs" / "first"
    (run / "spec.yaml").write_text("name: first\nwindow_s: 2\nseeds: [0]\n")
    (run / "report.md").write_text(f"# First\n\nScore 0.5 in {folder}.\n\n## Where it comes from\n\n| cores | 2 |\n")
    (run / "run.json").write_text(json.dumps({"git_commit": str(folder)}))
    (folder / "texts" / "claims.json").write_text(json.dumps({"commit": str(folder), "claims": [{"id": "A-1"}]}))
    (folder / "tree.txt").write_text(str(folder / "tree"))
    (folder / "cache" / "tiny-123.json").write_text(json.dumps(RECIPE))
    Image.new("RGB", (4, 4)).save(folder / "pictures" / "world.png")
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write_recording(tmp_path / "old")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_recording(tmp_path / "new")


def compared(old: Path, new: Path, renames: Renames = NONE) -> list[str]:
    return list(golden_compare.compare(old, new, renames))


def test_equal_recordings_have_no_difference(old: Path, new: Path):
    write_table(new, "runs", {"cell": [CELL], "system": ["ams"], "host_seconds": [9.0]})
    assert compared(old, new) == []


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"score": [0.25, None, 1.5]}, "column score: in 1 of 1 cells, first ams/depot/one/seed-0: row 2: 1.0 vs 1.5"),
        ({"score": [0.25, 0.0, 1.0]}, "row 1: None vs 0.0 (1 of 3 rows differ)"),
        (
            {"count": pa.array([1, 2, 3], pa.int32())},
            "type of column count: in 1 of 1 cells, first ams/depot/one/seed-0: int64 vs int32",
        ),
        ({"note": ["a", None, "d"]}, "column note: in 1 of 1 cells, first ams/depot/one/seed-0: row 2: c vs d"),
        ({"more": [1, 2, 3]}, "column 'more': in 1 of 1 cells, first ams/depot/one/seed-0: only in the new recording"),
    ],
)
def test_a_column_that_differs_is_named(old: Path, new: Path, columns: dict[str, Any], line: str):
    write_table(new, "frames", {**FRAMES, **columns})
    (found,) = compared(old, new)
    assert found.startswith("run first, table frames, ")
    assert line in found


def test_floats_are_compared_by_their_bits(old: Path, new: Path):
    for recording, zero in ((old, 0.0), (new, -0.0)):
        write_table(recording, "frames", {**FRAMES, "score": [zero, float("nan"), 1.0]})
    (found,) = compared(old, new)
    assert "row 0: 0.0 vs -0.0 (1 of 3 rows differ)" in found


def test_the_order_of_columns_and_the_number_of_rows_are_named(old: Path, new: Path):
    write_table(new, "frames", pa.table(FRAMES).select(["cell", "count", "score", "note"]))
    (found,) = compared(old, new)
    assert "order of columns: in 1 of 1 cells" in found
    assert "score vs count" in found
    write_table(new, "frames", pa.table(FRAMES).slice(0, 2))
    (found,) = compared(old, new)
    assert "number of rows: in 1 of 1 cells, first ams/depot/one/seed-0: 3 vs 2" in found


def test_notes_and_nullable_columns_are_compared(old: Path, new: Path):
    plain = pa.table(FRAMES)
    described = plain.schema.field("count").with_metadata({"unit": "frames"}).with_nullable(False)
    write_table(new, "frames", plain.cast(plain.schema.set(2, described)))
    found = compared(old, new)
    assert [line.partition(": ")[0] for line in found] == [
        "run first, table frames, nullable of column count",
        "run first, table frames, notes of column count",
    ]


def test_a_seal_is_compared_without_hashes_of_files(old: Path, new: Path):
    for recording, digest, fps in ((old, "1", 4), (new, "2", 5)):
        origin = {"spec": {"fps": fps}, "versions": {"driftlab": "0.1.0"}, "hash": digest}
        sealed = pa.table({"cell": [CELL]}).replace_schema_metadata(
            {"driftlab.seal": json.dumps({"origin": origin, "files": {"frames": digest}})}
        )
        write_table(recording, "runs", sealed)
    (found,) = compared(old, new)
    assert "seal, origin.spec.fps: in 1 of 1 cells, first ams/depot/one/seed-0: 4 vs 5" in found


def described(version: str, **columns: Any) -> pa.Table:
    """A table with the metadata of a schema version, and a description of its last column by that version."""
    origin = {"spec": {"fps": 4, "pictures" if version == "4.4" else "snapshots": 0}, "versions": {}}
    notes = {"driftlab.schema": version, "driftlab.table": "frames", "driftlab.seal": json.dumps({"origin": origin})}
    table = pa.table({"cell": [CELL], **columns})
    last = table.schema.field(len(columns)).with_metadata({"meaning": version}).with_nullable(version == "4.4")
    return table.cast(table.schema.set(len(columns), last)).replace_schema_metadata(notes)


def test_names_keys_of_seals_and_versions_of_schemas_are_renamed(old: Path, new: Path):
    write_table(old, "frames", described("4.4", way=["a"]))
    write_table(new, "frames", described("5.0", training_config=["a"]))
    versions = {"4.4": "5.0"}
    whole = Renames(columns={"frames.way": "training_config"}, keys={"pictures": "snapshots"}, versions=versions)
    assert compared(old, new, whole) == []
    assert len(compared(old, new, replace(whole, versions={}))) == 3  # the version, a description, and null
    assert len(compared(old, new, replace(whole, keys={}))) == 1  # the key of the seal
    assert len(compared(old, new, replace(whole, versions={"4.4": "6.0"}))) == 1
    assert len(compared(old, new, replace(whole, columns={"shares.way": "training_config"}))) == 2


def test_columns_and_values_of_an_exported_table_are_renamed(old: Path, new: Path):
    for folder, text in ((old, '"way","time_s"\n"share/way",1\n'), (new, '"training_config","time_s"\n"share/x",1\n')):
        (folder / "csv").mkdir()
        (folder / "csv" / "updates.csv").write_text(text)
    assert compared(old, new, Renames(columns={"updates.way": "training_config"}, values={"way": "x"})) == []
    (found,) = compared(old, new, Renames(columns={"shares.way": "training_config"}, values={"way": "x"}))
    assert "-way,time_s | +training_config,time_s" in found


def test_missing_parts_are_named(old: Path, new: Path):
    write_table(old, "shares", {"cell": [CELL]})
    (new / "texts" / "more.txt").write_text("more")
    (new / "runs" / "first" / "tables" / "frames" / "ams-1.parquet").unlink()
    assert sorted(compared(old, new)) == [
        "run first, table 'shares': only in the old recording",
        "run first, table frames, cell 'ams/depot/one/seed-0': only in the old recording",
        "texts 'more.txt': only in the new recording",
    ]


def test_documents_texts_and_images_are_compared(old: Path, new: Path):
    (new / "runs" / "first" / "spec.yaml").write_text("window_s: 2.0\nname: first\nseeds: [0]\n")
    report = new / "runs" / "first" / "report.md"
    report.write_text(report.read_text().replace("0.5", "0.6"))
    Image.new("RGB", (4, 4), "white").save(new / "pictures" / "world.png")
    assert compared(old, new) == [
        "runs/first/report.md: text differs: -Score 0.5 in RECORDING. | +Score 0.6 in RECORDING.",
        "runs/first/spec.yaml: document: keys in another order: ['name', 'window_s', 'seeds'] vs "
        "['window_s', 'name', 'seeds']",
        "runs/first/spec.yaml: window_s: 2 vs 2.0",
        "pictures/world.png: 16 of 16 pixels differ",
    ]


def test_a_changed_cache_key_is_named_with_its_recipe(old: Path, new: Path):
    (new / "cache" / "tiny-123.json").unlink()
    (new / "cache" / "tiny-456.json").write_text(json.dumps({**RECIPE, "steps": 5}))
    assert compared(old, new) == ["cache key tiny-123: tiny-456 for the same weights; steps: 4 vs 5"]


def test_renamed_things_are_no_difference(old: Path, new: Path):
    changed = {"cell": ["stream/depot/one/seed-0"] * 3, "score": FRAMES["score"], "total": [1, 2, 3]}
    folder = new / "runs" / "first" / "tables"
    (folder / "frames").rename(folder / "views")
    write_table(new, "views", {**changed, "note": FRAMES["note"]})
    write_table(new, "runs", {"cell": ["stream/depot/one/seed-0"], "system": ["stream"]})
    (new / "runs" / "first" / "spec.yaml").write_text("title: first\nwindow_s: 2\nseeds: [0]\n")
    report = new / "runs" / "first" / "report.md"
    report.write_text(report.read_text().replace("Score", "Accuracy"))
    (new / "cache" / "tiny-123.json").rename(new / "cache" / "small-123.json")
    (new / "cache" / "small-123.json").write_text(json.dumps({**RECIPE, "network": "small"}))
    renames = Renames(
        tables={"frames": "views"},
        columns={"frames.count": "total"},
        values={"ams": "stream", "tiny": "small"},
        keys={"name": "title"},
        texts={"Score": "Accuracy"},
        files={"tiny-": "small-"},
    )
    assert compared(old, new) != []
    assert compared(old, new, renames) == []


def test_a_key_is_renamed_below_its_parent_only():
    renames = Renames(keys={"churn.start": "arrival_prob", "like": "extends"})
    churn, scaling = {"start": 0.1}, {"start": "pruned", "like": 1}
    changed = renames.document({"workloads": [{"churn": churn}], "scaling": scaling})
    link = Renames(values={"link.null": "zero-delay"})
    assert (link.value("null"), link.value("null", "link")) == ("null", "zero-delay")
    assert renames.value("shot(like=1, start=2)") == "shot(extends=1, start=2)"
    assert changed == {"workloads": [{"churn": {"arrival_prob": 0.1}}], "scaling": {"start": "pruned", "extends": 1}}


RENAMED_PARAMS = Renames(
    values={"tent": "entropy", "kept": "other"},
    keys={"plain": "simple"},
    params={"tent": {"every": "steps", "pace": "rate", "on=now": "at=frame", "on": "at"}, "eata": {"edge": "margin"}},
)


@pytest.mark.parametrize(
    ("old_text", "new_text"),
    [
        ("tent(alpha=1, every=2, pace=3)", "entropy(alpha=1, rate=3, steps=2)"),
        ("lame(every=2)", "lame(every=2)"),
        ("tent(on=now)", "entropy(at=frame)"),
        ("tent(every=2, params=('edge=0.9', 'every=3'))", "entropy(params=('margin=0.9', 'every=3'), steps=2)"),
        ("tent(member=tent, params=['every=3'])", "entropy(member=entropy, params=['steps=3'])"),
    ],
)
def test_parameters_of_a_member_have_new_names_in_texts(old_text: str, new_text: str):
    assert RENAMED_PARAMS.value(old_text) == new_text


def test_parameters_of_a_member_have_new_names_in_documents_and_seals(old: Path, new: Path):
    ours = {"systems": [{"name": "tent", "every": 2, "on": "now", "plain": 1, "params": ["edge=1"]}], "every": 3}
    theirs = {
        "systems": [{"name": "entropy", "steps": 2, "at": "frame", "simple": 1, "params": ["margin=1"]}],
        "every": 3,
    }
    assert RENAMED_PARAMS.document(ours) == theirs
    for recording, spec in ((old, ours), (new, theirs)):
        seal = json.dumps({"origin": {"spec": spec}}, sort_keys=True)
        write_table(recording, "frames", pa.table(FRAMES).replace_schema_metadata({"driftlab.seal": seal}))
    assert any("seal, origin.spec" in line for line in compared(old, new))
    assert compared(old, new, RENAMED_PARAMS) == []


def test_a_file_of_renames_is_read(tmp_path: Path):
    (tmp_path / "renames.yaml").write_text("columns: {frames.count: total}\nvalues:\n")
    assert read_renames(tmp_path / "renames.yaml") == Renames(columns={"frames.count": "total"})
    read_renames(HERE / "renames.yaml")


def test_a_recording_without_a_member_is_refused(old: Path):
    rows = {family: [{"name": "plain"}, {"name": f"rich-{family}"}] for family in FAMILIES}
    (old / "texts" / "list.json").write_text(json.dumps(rows))
    write_table(old, "runs", {"cell": [CELL], **{family: [f"rich-{family}(a=1)"] for family in FAMILIES}})
    assert members_without_cell(old) == [f"{family}/plain" for family in FAMILIES]


@pytest.mark.slow
def test_every_member_and_sampler_is_in_the_experiments():
    plan = yaml.safe_load((DEFINITIONS / "plan.yaml").read_text())
    systems = [one for name in plan["runs"] for one in systems_of(load(str(DEFINITIONS / f"{name}.yaml")))]
    for family in FAMILIES:
        assert {getattr(one, family).name for one in systems} == set(kind_of(family).summaries())
    assert set(plan["searchers"]) == set(SAMPLERS)


def test_the_faulty_requests_are_many_and_each_has_one_name():
    made = [(name, repr(document)) for name, document in faulty()]
    spoilt = [(name, repr([document, info])) for name, document, info in stored(yaml.safe_load(SPEC))]
    for listed in (made, spoilt):
        assert len({name for name, _ in listed}) == len(listed)
        assert len({text for _, text in listed}) > 0.9 * len(listed)
    assert len(made) > 200
    assert repr(dict(WHOLE)) not in dict(made).values()
    assert made == [(name, repr(document)) for name, document in faulty()]
