"""Resume keeps a cell only if its files are those that today's spec and code would write."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import documents_factory as documents
import pyarrow.parquet as pq
import pytest
import yaml
from command_factory import run_command

from driftlab.errors import DataError, RequestError
from driftlab.platform.core.registry import member_class
from driftlab.platform.lab import paths, plan
from driftlab.platform.lab import seal as lab
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.plan import origins_of, plan_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import parse
from driftlab.platform.results.tables.integrity import mixes_versions, warnings_of
from driftlab.platform.results.tables.origin import KEY
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.recorder import Recorder, table_file

DOCUMENT = {**documents.TINY, "systems": documents.TINY["systems"][:2]}
CELLS = ["no_custom/running/one/seed-0", "one_time/running/one/seed-0"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("resume") / "run"
    assert lab.run(DOCUMENT, out=folder).done == 2
    return folder


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def planned(run):
    """Plan as `--resume` does: cells to do, and those of them that run again by reason."""
    found = plan_of(lab.open_run(run)[0], run)
    return [cell.id for cell in found.todo], dict(found.again)


def edit(run, **changes):
    file = run / "spec.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}))


@pytest.mark.slow
def test_a_finished_run_is_kept_whole(run):
    assert planned(run) == ([], {})
    assert warnings_of(open_run(run)) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"window_s": 4.0}, ["window_s", "3.0 vs 4.0"]),
        ({"student": {"network": "half", "pretrain_steps": 3}}, ["student.pretrain_steps", "2 vs 3"]),
        ({"workloads": [{**DOCUMENT["workloads"][0], "duration_s": 9}]}, ["workload.duration_s", "8.0 vs 9.0"]),
        (
            {"snapshots": 3, "limits": {"training_batch_s": 1}},
            ["snapshots", "2 vs 3", "limits.training_batch_s", "60.0 vs 1.0"],
        ),
    ],
)
def test_an_edited_spec_is_refused_and_reported(run, changes, named):
    edit(run, **changes)
    with pytest.raises(RequestError) as caught:
        planned(run)
    (warning,) = warnings_of(open_run(run))
    for part in named:
        assert part in str(caught.value)
        assert part in warning or "spec.yaml" in warning


@pytest.mark.slow
def test_the_report_of_an_edited_spec_warns(run, few_claims):
    edit(run, window_s=4.0)
    result = run_command(["report", str(run)])
    assert (result.exit_code, "spec.yaml was edited after the cells ran" in result.stderr) == (0, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": "other"},
        {"clock": "wall"},
        {"compute": {"torch_device": "cpu", "gpus_per_actor": 0.5, "placement": "nodes"}},
    ],
)
def test_settings_that_change_no_row_may_be_edited(run, changes):
    edit(run, **changes)
    assert planned(run) == ([], {})


def test_cells_may_be_added_and_none_taken_away(run):
    edit(run, seeds=[0, 1])
    assert planned(run) == ([cell.replace("seed-0", "seed-1") for cell in CELLS], {})
    edit(run, seeds=[1])
    with pytest.raises(RequestError, match="does not list"):
        planned(run)


def test_a_system_added_by_name_is_written_with_its_parts(run):
    systems = yaml.safe_load((run / "spec.yaml").read_text())["systems"]
    edit(run, systems=[*systems, "oracle"])
    with pytest.raises(DataError, match=r"systems\.2 is 'oracle': give a system"):
        open_run(run)
    assert planned(run)[0] == ["oracle/running/one/seed-0"]
    assert open_run(run).spec["systems"][2]["streaming"]["name"] == "foresight"
    assert open_run(run).spec["systems"][:2] == systems


def damage_by(kind, run):
    tables = run / "tables"
    own, other = (table_file(tables, "frames", cell) for cell in CELLS)
    if kind == "other rows":
        shutil.copy(other, own)
    elif kind == "cut":
        own.write_bytes(own.read_bytes()[:-40])
    elif kind == "rewritten":
        content = pq.read_table(own)
        pq.write_table(content.slice(0, 3), own)
    elif kind == "gone":
        own.unlink()
    elif kind == "other cell":
        shutil.copy(table_file(tables, "runs", CELLS[1]), table_file(tables, "runs", CELLS[0]))
    else:
        file = table_file(tables, "runs", CELLS[0])
        content = pq.read_table(file)
        metadata = {key: value for key, value in content.schema.metadata.items() if key != KEY}
        if kind == "forged":
            seal = json.loads(content.schema.metadata[KEY])
            seal["origin"]["spec"]["snapshots"] = 9
            metadata[KEY] = json.dumps(seal).encode()
        pq.write_table(content.replace_schema_metadata(metadata), file)


@pytest.mark.parametrize("kind", ["other rows", "cut", "rewritten", "gone", "other cell", "unsealed", "forged"])
def test_a_cell_whose_files_are_not_as_written_runs_again_with_a_reason(run, kind):
    damage_by(kind, run)
    todo, again = planned(run)
    assert todo == CELLS[:1]
    assert list(again.values()) == [CELLS[:1]]


@pytest.mark.parametrize("kind", ["other rows", "rewritten"])
def test_exchanged_files_cause_a_warning(run, kind):
    damage_by(kind, run)
    (warning,) = warnings_of(open_run(run))
    assert CELLS[0] in warning


@pytest.mark.slow
def test_a_report_warns_of_files_that_were_exchanged(run, few_claims):
    damage_by("other rows", run)
    assert "changed after they were written" in (lab_report(run))


def lab_report(run):
    result = run_command(["report", str(run)])
    assert result.exit_code == 0
    return (run / "report.md").read_text()


@pytest.mark.parametrize("package", ["driftlab", "torch"])
def test_cells_of_another_version_run_again(run, monkeypatch, package):
    real = plan.version_of
    monkeypatch.setattr(plan, "version_of", lambda name: "99" if name == package else real(name))
    todo, again = planned(run)
    assert todo == CELLS
    ((reason, cells),) = again.items()
    assert (cells, f"{package} was {real(package)[:12]}, now 99" in reason) == (CELLS, True)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [("streaming", "one_time"), ("adaptation", "distill")])
def test_another_version_of_a_member_concerns_its_cells_only(run, monkeypatch, family, name):
    monkeypatch.setattr(member_class(family, name), "version", 2)
    todo, again = planned(run)
    assert todo == [cell for cell in CELLS if cell.startswith("one_time/")]
    assert 0 < len(todo) < len(CELLS)
    ((reason, cells),) = again.items()
    assert (cells, f"{family}/{name} was None, now 2" in reason) == (todo, True)


@pytest.mark.slow
def test_reasons_are_logged_and_reported(run):
    damage_by("cut", run)
    reports = []

    class Listener(Progress):
        def repeats(self, cells, reason):
            reports.append((list(cells), reason))

    assert lab.resume(run, progress=Listener()).done == 1
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    logged = [(line["cells"], line["reason"]) for line in lines if line["event"] == "repeats"]
    assert reports == logged
    assert [cells for cells, _ in reports] == [CELLS[:1]]
    assert planned(run) == ([], {})


def test_a_member_file_is_part_of_the_origin_of_its_rows(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from driftlab.platform.streaming.local import Local\nclass Mine(Local):\n    pass\n")
    document = {**DOCUMENT, "systems": [{"name": "mine", "streaming": f"{file}:Mine"}]}
    experiment = parse(document)
    (origin,) = origins_of(experiment, cells_of(experiment)).values()
    file.write_text(file.read_text() + "# another\n")
    (later,) = origins_of(experiment, cells_of(experiment)).values()
    assert origin.digest == later.digest
    assert origin.versions["mine.py:Mine"] != later.versions["mine.py:Mine"]


@pytest.mark.parametrize(("name", "named"), [("ams", False), ("nestdnn", False), ("ams+nested", True)])
def test_rounds_that_may_train_several_networks_have_a_separate_version(name, named):
    experiment = parse({**DOCUMENT, "systems": [{"name": name}]})
    (origin,) = origins_of(experiment, cells_of(experiment)).values()
    assert ("loop/rounds" in origin.versions) is named


LATER = {"torch": "2", "scheduling/joint": 2}


@pytest.mark.parametrize(
    ("cells", "differ"),
    [
        ([("afs", {"torch": "2"}), ("joint", LATER), ("joint", LATER)], False),
        ([("joint", {"torch": "2"}), ("joint", LATER)], True),  # one was made before the member had a second version
        ([("afs", {"torch": "1"}), ("joint", LATER)], True),
        ([("mine", {"mine.py": "a"}), ("mine+ams", {"mine.py": "b"})], True),
    ],
)
def test_systems_may_have_different_members_and_cells_of_a_system_may_not(cells, differ):
    assert mixes_versions(cells) is differ


def test_duplicate_cells_cause_a_warning(run):
    file = table_file(run / "tables", "runs", CELLS[0])
    shutil.copy(file, file.with_name("copy.parquet"))
    assert len(warnings_of(open_run(run))) == 1


def test_the_seal_leaves_the_table_as_it_was(run, tmp_path):
    rows = {"runs": [open_run(run).table("runs").slice(0, 1).to_pylist()[0]]}
    for folder, origin in (("a", None), ("b", origins_of(parse(DOCUMENT), cells_of(parse(DOCUMENT)))[CELLS[0]])):
        Recorder(str(tmp_path / folder)).write(CELLS[0], rows, origin)
    files = [table_file(tmp_path / folder / "tables", "runs", CELLS[0]) for folder in "ab"]
    assert pq.read_table(files[0]).equals(pq.read_table(files[1]))


@pytest.mark.parametrize("folder", ["tables", "tables/runs"])
def test_a_folder_that_leads_to_itself_is_not_taken_for_an_empty_one(run, folder):
    shutil.rmtree(run / folder)
    (run / folder).symlink_to(run / folder)
    with pytest.raises(DataError, match="is a link"):
        planned(run)


def test_drafts_that_a_killed_run_left_are_removed(run):
    draft = table_file(run / "tables", "frames", CELLS[0]).with_name(".frames.parquet.1.tmp")
    draft.write_bytes(b"half")
    assert lab.resume(run).kept == len(CELLS)
    assert not draft.exists()


def test_a_dry_run_of_a_resume_lists_the_cells_and_writes_nothing(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    paths.add_info(run, "placement", "nodes")
    for file in run.glob(f"tables/*/{Path(table_file(run, 'runs', CELLS[1])).name}"):
        file.unlink()
    before = {file: file.stat().st_mtime_ns for file in sorted(run.rglob("*"))}
    result = run_command(["run", "--resume", str(run), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert CELLS[1] in result.output
    assert CELLS[0] not in result.output
    assert "1 cell left, 1 finished; nothing was run." in result.output
    assert "placement  nodes: the run began so" in result.output
    assert {file: file.stat().st_mtime_ns for file in sorted(run.rglob("*"))} == before


def test_the_files_of_a_cell_that_runs_again_are_kept(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    plan.keep_replaced(run, CELLS[:1])
    assert table_file(run / "tables", "frames", CELLS[0]).exists() is False
    kept = table_file(run / plan.REPLACED, "frames", CELLS[0])
    assert pq.read_table(kept).equals(pq.read_table(table_file(finished / "tables", "frames", CELLS[0])))
