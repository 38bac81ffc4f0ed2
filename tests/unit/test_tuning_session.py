"""A session: every trial has rows, an interrupted search resumes, and the best settings are shown."""

from __future__ import annotations

import json

import pytest
import tuning_factory as factory
import yaml
from spec_factory import stored

from driftlab.errors import DataError, RequestError
from driftlab.platform.results.figures.searches import summarise_search
from driftlab.platform.results.relations.searches import open_search
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.trials import read_trials
from driftlab.platform.tune.samplers import SAMPLERS
from driftlab.platform.tune.session import begin_search, continue_search, write_best

RATE, BATCH = factory.RATE, factory.BATCH


def run_whole(folder, document=None, **how):
    with begin_search(document or factory.document(), folder) as session:
        factory.play(session, **how)
        assert session.over
    return session


@pytest.mark.slow
def test_every_trial_has_a_row_and_the_best_runs_on_held_out_seeds(tmp_path):
    session = run_whole(tmp_path / "run", factory.document(searcher="evolution", trials=30))
    trials = open_run(session.directory).frame("trials")
    assert trials[trials["stage"] == "search"]["trial"].tolist() == list(range(30))
    assert set(trials["stage"]) == {"search", "best", "defaults"}
    assert trials[trials["stage"] != "search"]["seeds"].tolist() == ["200,201"] * 2
    found = open_search(session.directory)
    assert found.best.number == trials[trials["stage"] == "search"]["score"].idxmax() - 0 or found.best.metrics[
        "score"
    ] == max(trials[trials["stage"] == "search"]["score"])
    (score, energy) = found.held_out()
    assert score.verdict == "better"
    assert score.difference.mean == pytest.approx(score.best - score.defaults)
    assert energy.better == "min"
    budget = found.budget
    assert (budget.trials, budget.failed, budget.streamed_s) == (30, 0, 90.0)


@pytest.mark.slow
def test_settings_and_measures_have_separate_rows(tmp_path):
    session = run_whole(tmp_path / "run")
    run = open_run(session.directory)
    settings = run.frame("settings")
    trial = run.frame("trials").query("stage == 'search' and trial == 4").iloc[0]
    own = settings.query("stage == 'search' and trial == 4").set_index("path")
    assert json.loads(trial["settings"]) == {path: json.loads(value) for path, value in own["value"].items()}
    assert own.loc[RATE, "number"] == json.loads(trial["settings"])[RATE]
    measures = run.frame("measures").query("stage == 'search' and trial == 4")
    assert sorted(measures["metric"]) == ["energy_j", "score"]
    assert measures.set_index("metric").loc["score", "value"] == trial["score"]
    assert run.sql("select count(*) as n from trials where stage = 'search'").to_pylist() == [{"n": 10}]


@pytest.mark.slow
def test_a_failed_trial_has_a_row_with_its_reason_and_the_search_continues(tmp_path):
    session = run_whole(tmp_path / "run", failing=(0, 3))
    trials = open_run(session.directory).frame("trials")
    failed = trials[trials["status"] == "failed"]
    assert failed["trial"].tolist() == [0, 3]
    assert set(failed["reason"]) == {"it broke"}
    assert open_search(session.directory).budget.failed == 2
    assert session.best.number not in (0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("searcher", [name for name in SAMPLERS if name != "cmaes"])
def test_a_search_that_is_killed_again_and_again_has_the_same_trials(tmp_path, searcher):
    document = factory.document(searcher=searcher, trials=12)
    whole = run_whole(tmp_path / "whole", document)
    cuts = 0
    with begin_search(document, tmp_path / "cut") as session:
        played = factory.play(session, 1)
    while not session.over:
        with continue_search(tmp_path / "cut") as session:
            session.next()  # a trial that was given out and never ends
        with continue_search(tmp_path / "cut") as session:
            played += factory.play(session, 2)
            cuts += 1
    assert cuts >= 6
    assert factory.settings_by_number(session) == factory.settings_by_number(whole)
    keys = [(one.stage, one.number) for one in played]
    assert len(set(keys)) == len(keys)
    assert read_trials(tmp_path / "cut").equals(read_trials(whole.directory))


@pytest.mark.slow
def test_rows_without_the_last_file_of_a_trial_do_not_count(tmp_path):
    session = run_whole(tmp_path / "run")
    (session.directory / "tables/trials/search-000004.parquet").unlink()
    assert 4 not in read_trials(session.directory)["trial"].to_pylist()
    assert 4 not in read_trials(session.directory, "measures")["trial"].to_pylist()
    with continue_search(session.directory) as again:
        (played,) = factory.play(again)
    assert (played.stage, played.number) == ("search", 4)


@pytest.mark.slow
def test_a_damaged_file_is_named(tmp_path):
    session = run_whole(tmp_path / "run")
    file = session.directory / "tables/trials/search-000004.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="search-000004"):
        continue_search(session.directory).__enter__()


def test_a_folder_that_is_no_search_is_refused(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(stored({"name": "a", "systems": ["no_custom"]})))
    with pytest.raises(DataError, match="driftlab run --resume"):
        continue_search(tmp_path).__enter__()
    with pytest.raises(DataError, match="does not exist"):
        continue_search(tmp_path / "none").__enter__()


@pytest.mark.parametrize("changes", [{"space": 5}, {"trials": "many"}, {"experiment": {"name": "a"}}])
def test_a_damaged_spec_is_refused(tmp_path, changes):
    with begin_search(factory.document(), tmp_path / "run"):
        pass
    spec = yaml.safe_load((tmp_path / "run" / "spec.yaml").read_text())
    (tmp_path / "run" / "spec.yaml").write_text(yaml.safe_dump({**spec, **changes}))
    with pytest.raises(RequestError, match=r"spec\.yaml|settings"):
        continue_search(tmp_path / "run").__enter__()


def test_two_at_once_are_refused(tmp_path):
    with begin_search(factory.document(), tmp_path / "run"), pytest.raises(RequestError, match="Another driftlab"):
        continue_search(tmp_path / "run").__enter__()


@pytest.mark.slow
def test_defaults_are_recommended_if_no_trial_is_better(tmp_path):
    default = {RATE: {"from": 1e-4, "to": 2e-4}, BATCH: [5]}  # far worse
    session = run_whole(tmp_path / "run", factory.document(space=default))
    assert session.best.number == 0
    stages = open_run(session.directory).frame("trials")["stage"]
    assert "best" not in set(stages)
    assert yaml.safe_load(write_best(session.directory).read_text())["trial"] == 0


@pytest.mark.slow
def test_defaults_are_recommended_if_held_out_seeds_do_not_support_the_best_trial(tmp_path):
    lucky = {200: 0.0, 201: -1.0}  # held-out seeds on which the best settings gain nothing
    with begin_search(factory.document(), tmp_path / "run") as session:
        while (assignment := session.next()) is not None:
            outcome = factory.made_up(assignment)
            if assignment.stage == "best":
                for cell in outcome.cells:
                    cell["metrics"] = {"score": lucky[cell["seed"]], "energy_j": 1.0}
            session.ended(assignment, outcome)
    found = open_search(session.directory)
    assert found.best.number != 0
    assert found.recommended.number == 0
    assert yaml.safe_load(write_best(session.directory).read_text())["settings"] == session.defaults
    assert "Held-out seeds do not show that it is better" in " ".join(summarise_search(found))


@pytest.mark.slow
def test_a_constraint_decides_before_the_objective(tmp_path):
    bounded = run_whole(tmp_path / "run", factory.document(constraints=["energy_j <= 0.06"], trials=20))
    assert bounded.best.settings[BATCH] in (20, 32)
    missed = run_whole(tmp_path / "missed", factory.document(constraints=["energy_j <= 0.001"], trials=20))
    assert not open_search(missed.directory).feasible
    assert missed.best.settings[BATCH] == 32
    assert yaml.safe_load(write_best(missed.directory).read_text())["keeps_constraints"] is False


@pytest.mark.slow
def test_no_settings_are_recommended_where_all_fail(tmp_path):
    session = run_whole(tmp_path / "run", failing=tuple(range(10)))
    assert write_best(session.directory) is None
    assert read_trials(session.directory).num_rows == 10


@pytest.mark.slow
def test_best_settings_are_written_with_their_seeds_and_budget(tmp_path):
    session = run_whole(tmp_path / "run")
    best = yaml.safe_load(write_best(session.directory).read_text())
    assert best["settings"] == dict(session.best.settings)
    assert best["seeds"] == [100, 200, 201]
    assert best["budget"] == {"trials": 10, "streamed_s": 30.0, "searcher": "random"}
    assert best["held_out"]["score"]["verdict"] in ("better", "worse", "inconclusive")
