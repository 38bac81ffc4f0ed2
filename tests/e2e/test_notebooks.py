"""Notebooks run from top to bottom on a run, draw figures, and read tables only."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import domains_factory
import paths_factory
import pytest
import results_factory
import sharing_factory
import tuning_factory

import driftlab

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
READS = {"driftlab", "driftlab.platform.results.figures"}
READS |= {"driftlab.platform.results.figures.base", "driftlab.platform.results.figures.notebook"}
READS |= {"driftlab.platform.results.relations.searches", "driftlab.platform.results.report.clip", "os"}
PICTURES = {
    "tour": 1,  # accuracy
    "ams": 4,  # gains, and rates of two workloads and of all streams
    "tune": 6,  # the front, progress by trials and compute, settings, importance for two objectives
    "many_apps": 4,  # who learns when under four schedulers
    "nestdnn": 11,  # a pruned layer, two applications' networks, accuracy and energy, three timelines, switches
    "adascale": 3,  # accuracy against missed deadlines under two loads, networks by latency
    "domains": 9,  # each domain, accuracy against time and against energy, forgetting; five figures of time
}
ONCE = "%config InlineBackend.print_figure_kwargs = {'bbox_inches': None}"  # to crop figures draws each of them twice
TINY = [  # of the run of the tour
    *("workloads.0.height=16", "workloads.0.width=24", "workloads.0.duration_s=10", "workloads.0.fps=1"),
    *("student.pretrain_steps=2", "systems.1.streaming.iterations=1", "systems.1.streaming.sample_s=4"),
    *("systems.2.streaming.iterations=1", "systems.3.streaming.iterations=1", "seeds=[0, 1]", "snapshots=4"),
]


def make_run(notebook, folder):
    """Make a run with the tables that the notebook reads."""
    if notebook == "tune":
        return tuning_factory.make_search(folder)
    if notebook == "domains":
        return domains_factory.make_run(folder)
    if notebook == "adascale":
        return paths_factory.make_run(folder)
    if notebook == "nestdnn":
        return sharing_factory.make_run(folder)
    if notebook == "many_apps":
        return sharing_factory.make_run(folder, learns=True)
    return results_factory.make_run(folder, systems=("no_custom", "one_time", "ams"), duration_s=60.0)


@pytest.fixture(scope="module")
def kernel():
    """Start one kernel for all notebooks, because start and imports take longer than most notebooks."""
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3")
    environment = {name: value for name, value in os.environ.items() if name != "DRIFTLAB_RUN"}
    manager.start_kernel(
        env=environment | {"PYTHONPATH": os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])}
    )
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_draws_figures(path, tmp_path, kernel):
    jupytext = pytest.importorskip("jupytext")
    nbclient = pytest.importorskip("nbclient")
    v4 = pytest.importorskip("nbformat").v4
    (tmp_path / "notebooks").mkdir()
    notebook = jupytext.read(path)
    if path.stem == "tour":
        assert len(notebook.cells) == 10
        notebook.cells[1].source = re.sub("CHANGES = .*", f"CHANGES = {TINY}", notebook.cells[1].source)
    else:
        make_run(path.stem, tmp_path / "runs" / "made")
    begin = f"%reset -f\n{ONCE}\nimport os\nos.chdir({str(tmp_path / 'notebooks')!r})\ndel os"
    notebook.cells.insert(0, v4.new_code_cell(begin))
    nbclient.NotebookClient(notebook, timeout=120, km=kernel).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    images = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(images) == PICTURES[path.stem]
    pages = "".join(output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {}))
    assert ("<video" in pages and "8/8 cells done" in pages) == (path.stem == "tour")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_jupyterlab_saves_an_unchanged_notebook_as_it_was(path):
    jupytext = pytest.importorskip("jupytext")
    text = path.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata["kernelspec"]["display_name"] = "Python 3 (ipykernel)"  # as ipykernel names it
    assert jupytext.writes(notebook, fmt="py:percent") == text


def test_make_notebook_opens_the_tour_as_a_notebook():
    settings = json.loads((ROOT / "notebooks/settings/labconfig/default_setting_overrides.json").read_text())
    assert settings["@jupyterlab/docmanager-extension:plugin"]["defaultViewers"]["python"] == "Jupytext Notebook"
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nnotebook:")[2].partition("\n\n")[0]
    assert "cd notebooks" in recipe and 'JUPYTER_CONFIG_PATH="$$PWD/settings"' in recipe
    assert "jupyter lab tour.py" in recipe


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("opened_from", [".", "notebooks"])
def test_a_notebook_finds_its_run_from_the_root_and_from_its_folder(path, opened_from, tmp_path, monkeypatch):
    made = {"run": tmp_path / "runs" / "made", "search": tmp_path / "runs" / "searched"}
    for kind, folder in made.items():
        folder.mkdir(parents=True)
        (folder / "spec.yaml").write_text("space: {}\n" if kind == "search" else "name: made\n")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / opened_from)
    monkeypatch.delenv("DRIFTLAB_RUN", raising=False)

    def stop(folder):
        raise StopIteration(Path(folder))

    # As items, since the package makes these names when they are read, and the undoing would leave them as attributes.
    monkeypatch.setitem(vars(driftlab), "open_run", stop)
    monkeypatch.setitem(vars(driftlab), "run", lambda *_: SimpleNamespace(directory=made["run"]))
    cells = path.read_text(encoding="utf-8").split("# %%\n")[1:]
    code = "\n".join(cell.partition("# %%")[0] for cell in cells)
    with pytest.raises(StopIteration) as opened:
        exec(compile(code, path.name, "exec"), {})
    assert opened.value.value == made["search" if path.stem == "tune" else "run"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_reads_only_tables(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= READS
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {func.id if isinstance(func, ast.Name) else getattr(func, "attr", "") for func in called}
    assert "open_run" in names
    assert not names & {"open", "read_csv", "read_parquet", "read_table", "read_text", "read_bytes", "load"}
