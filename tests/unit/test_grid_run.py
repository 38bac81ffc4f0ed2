"""A run folder records its request, so that the run can continue unchanged."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from experiments_factory import each_experiment, loaded

from driftlab.errors import RequestError
from driftlab.platform.core.registry import Member
from driftlab.platform.lab import builds as artefacts
from driftlab.platform.lab import seal as lab
from driftlab.platform.lab.cells import resolved
from driftlab.platform.lab.progress import Log, Progress
from driftlab.platform.lab.read import Experiment, parse
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe
from driftlab.platform.sim.host import GARBAGE
from driftlab.platform.sim.inline import InlineBackend

DOCUMENT: dict[str, Any] = {
    "name": "test",
    "systems": ["no_custom", {"name": "mine", "base": "one_time", "streaming": {"name": "one_time", "sample_s": 5}}],
    "workloads": [{"name": "streets/running", "duration_s": 8, "fps": 2, "height": 32, "width": 48}],
}


def prepare(experiment: Experiment, path: Path) -> Path:
    return lab.paths.new_run(path, resolved(experiment))


@pytest.mark.slow
@each_experiment
def test_a_folder_holds_the_built_in_experiments_whole(tmp_path, name):
    experiment = loaded(name)
    assert lab.open_run(prepare(experiment, tmp_path))[0] == experiment


@pytest.mark.parametrize(
    "override",
    [
        "server.label_s=null",
        "server.step_s=null",
        "server.step_s=1e-5",
        "workloads.0.alias='1e3'",
        "workloads.0.params.pace=2",
        "systems.1.streaming.rate_fps=0.1",
        "summary='a: b # c'",
        "seeds=[9223372036854775807]",
        "fleets.0.devices.0.link={name: wire, up_kbps: .inf, down_kbps: 1}",
    ],
)
def test_overrides_are_read_back(tmp_path, override):
    """A null that was left out came back as the default."""
    experiment = parse(DOCUMENT, [override])
    assert lab.open_run(prepare(experiment, tmp_path))[0] == experiment


def test_a_damaged_spec_names_its_file(tmp_path):
    folder = prepare(parse(DOCUMENT), tmp_path)
    (folder / "spec.yaml").write_text("name: test\nsystems: [no_custm]\nworkloads: [{name: streets/running}]\n")
    with pytest.raises(lab.paths.RequestError) as caught:
        lab.open_run(folder)
    assert str(folder / "spec.yaml") in str(caught.value)
    assert "Did you mean 'no_custom'?" in str(caught.value)


def test_a_run_that_a_module_started_is_repeated_by_the_program_itself(monkeypatch):
    monkeypatch.setattr("sys.argv", ["some/folder/__main__.py", "run", "quick"])
    assert lab.provenance()["command"] == ["driftlab", "run", "quick"]


@pytest.mark.slow
def test_the_backend_is_closed_after_any_error(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(InlineBackend, "close", lambda self: closed.append(self))

    def broken(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lab, "run_grid", broken)
    spec = parse(DOCUMENT)
    with pytest.raises(KeyboardInterrupt):
        lab.execute(spec, prepare(spec, tmp_path), InlineBackend, Progress())
    assert len(closed) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other schedulers")
def test_a_backend_is_opened_and_used_in_batch_and_that_ends_with_the_run(tmp_path):
    found = []

    def opened() -> InlineBackend:
        found.append(os.sched_getscheduler(0))
        return InlineBackend()

    small = ["systems=[no_custom]", "bounds=false", "workloads.0.duration_s=2", "student.pretrain_steps=2"]
    assert lab.run(DOCUMENT, small, out=tmp_path, open_backend=opened).failed == ()
    assert [*found, os.sched_getscheduler(0)] == [os.SCHED_BATCH, os.SCHED_OTHER]


@pytest.mark.slow
def test_the_cells_of_a_run_are_computed_with_rare_searches_for_garbage(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(lab, "run_grid", lambda *given: found.append(gc.get_threshold()))
    spec, before = parse(DOCUMENT), gc.get_threshold()
    try:
        gc.set_threshold(800, 10, 10)
        lab.execute(spec, prepare(spec, tmp_path), InlineBackend, Progress())
        assert [*found, gc.get_threshold()] == [GARBAGE, (800, 10, 10)]
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("out", "there", "left"),
    [(None, "", []), (None, "runs", ["runs"]), ("a/b/c", "", []), ("a/b/c", "a", ["a"]), ("a/b", "a/b", ["a", "a/b"])],
)
def test_a_run_that_is_refused_leaves_no_folder_that_it_made(tmp_path, monkeypatch, out, there, left):
    def refused() -> InlineBackend:
        raise RequestError("no cluster answers")

    monkeypatch.chdir(tmp_path)
    Path(there).mkdir(parents=True, exist_ok=True)
    with pytest.raises(RequestError, match="no cluster answers"):
        lab.run(DOCUMENT, out=out, open_backend=refused)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == left


def test_a_refused_run_leaves_other_runs_in_the_folder(tmp_path):
    def refused() -> InlineBackend:
        (tmp_path / "runs" / "another").mkdir()
        raise RequestError("no cluster answers")

    with pytest.raises(RequestError):
        lab.run(DOCUMENT, out=tmp_path / "runs" / "mine", open_backend=refused)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["another"]


def test_one_that_was_to_be_continued_stays(tmp_path):
    def refused() -> InlineBackend:
        raise RequestError("no cluster answers")

    directory = prepare(parse(DOCUMENT), tmp_path / "run")
    with pytest.raises(RequestError):
        lab.resume(directory, open_backend=refused)
    assert (directory / "spec.yaml").is_file()


def test_log_stores_events_and_passes_them_on(tmp_path):
    heard = []

    class Listener(Progress):
        def begins(self, cells, kept, work_s):
            heard.append(("begins", cells, kept, work_s))

        def building(self, network, number, of):
            heard.append(("building", network, number, of))

        def built(self, network, done, of):
            heard.append(("built", network, done, of))

        def advanced(self, work_s):
            heard.append(("advanced", work_s))

        def finished(self, cell, reason):
            heard.append(("finished", cell, reason))

    path = tmp_path / "log.jsonl"
    with path.open("w") as file:
        log = Log(file, Listener())
        log.begins(2, 1, 30.0)
        log.building("tiny", 1, 1)
        log.built("tiny", 1, 1)
        log.advanced(5.0)
        log.finished("cell", "it broke")
        lines = [json.loads(line) for line in path.read_text().splitlines()]  # every line is there at once
    assert [line["event"] for line in lines] == ["begins", "built", "finished"]
    assert lines[2]["reason"] == "it broke"
    assert [name for name, *_ in heard] == ["begins", "building", "built", "advanced", "finished"]


def test_a_network_is_named_while_it_is_built_and_while_it_is_waited_for():
    heard = []

    class Listener(Progress):
        def building(self, network, number, of):
            heard.append(f"building {number}/{of}: {network}")

        def built(self, network, done, of):
            heard.append(f"built {done}/{of}: {network}")

    class Builders:
        """A session that records its calls and the results that are read."""

        def place(self, node):
            pass

        def call(self, node, method, recipe, limit_s):
            heard.append(method)

        def result(self, job):
            heard.append("result")
            return SimpleNamespace(facts=SimpleNamespace(profile=(1, 2, 3), digest=""))

    recipe, plain, nested = Recipe("tiny", height=32, width=48), Member("scaling", "fixed"), Member("scaling", "nested")
    recipes = {"a": FamilyRecipe(recipe, plain), "b": FamilyRecipe(recipe, nested)}
    artefacts._build(recipes, Builders(), Listener(), 60.0)
    named = ["building 1/2: tiny 32x48", "building 2/2: tiny 32x48, by nested"]
    ready = ["built 1/2: tiny 32x48", "built 2/2: tiny 32x48, 3 by nested"]
    assert heard[:4] == [named[0], "build", named[1], "build"]
    assert heard[4:] == [named[0], "result", ready[0], named[1], "result", ready[1]]


@pytest.mark.parametrize("per_seed", [False, True])
def test_seeds_share_their_networks_unless_they_are_trained_per_seed(per_seed):
    asked = []

    class Builders:
        def open(self, _):
            return self

        def place(self, node):
            pass

        def call(self, node, method, recipe, limit_s):
            asked.append(recipe.network.seed)
            return recipe.network.seed

        def result(self, job):
            return SimpleNamespace(facts=SimpleNamespace(profile=(), digest=""))

    apps = [{"name": name, "pretrain_seed": number} for number, name in enumerate("ab")]
    student = {"network": "tiny_classifier", "per_seed": per_seed}
    workload = {"name": "signs/depot", "run_networks": False, "apps": apps}
    document = DOCUMENT | {"systems": ["no_custom"], "seeds": [0, 7, 8], "student": student, "workloads": [workload]}
    settings = artefacts.settings_of(parse(document, []), Builders(), Progress())
    assert len(settings) == 3
    used = [(setting.apps["a"].student.weights, setting.apps["b"].student.weights) for setting in settings.values()]
    assert set(asked) == {seed for seeds in used for seed in seeds}
    assert len(asked) == len(set(asked)) == (6 if per_seed else 2)
    assert per_seed or asked == [0, 1]
