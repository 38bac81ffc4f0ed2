"""The report of a search, and of a run that takes its settings."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import results_factory as results
import tuning_factory as factory
import yaml
from matplotlib.figure import Figure as MatplotlibFigure

from driftlab.errors import RequestError
from driftlab.platform.core.space import OneOf, Range, Space, Trial
from driftlab.platform.lab.read import load, parse
from driftlab.platform.lab.seal import run
from driftlab.platform.lab.tuned import read_tuned
from driftlab.platform.results.figures.searches import SEARCH_FIGURES, compared, progress, summarise_search
from driftlab.platform.results.relations.comparison import compare
from driftlab.platform.results.relations.searches import importance, open_search
from driftlab.platform.results.relations.tuned import how_chosen, origins, unequal_budgets
from driftlab.platform.results.report import page as pages
from driftlab.platform.results.report.page import compose, write_report
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.read import Tables, open_run
from driftlab.platform.tune.session import begin_search, write_best


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return factory.make_search(tmp_path_factory.mktemp("search") / "run", failing=(3,))


@pytest.fixture(scope="module")
def best(folder):
    return write_best(folder)


@pytest.mark.slow
def test_the_report_shows_every_figure_and_loads_no_other_file(folder):
    page = write_report(folder).read_text(encoding="utf-8")
    for figure in SEARCH_FIGURES:
        assert f"<h2>{figure.title}</h2>" in page
    assert page.count('<svg class="plot"') == 6
    assert not re.search(r'(src|href)="https?:', page)
    assert "it broke" in page
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "driftlab tune" in text
    assert repr(open_run(folder)) == f"Run({str(folder)!r}: search small, 26 trials)"
    assert "score" in open_run(folder)._repr_html_()


@pytest.mark.slow
def test_words_agree_with_the_held_out_seeds(folder):
    found = open_search(folder)
    score, energy = found.held_out()
    text = " ".join(summarise_search(found))
    assert f"Trial {found.best.number} is the best" in text
    assert "24 trials" in text
    assert "1 failed" in text
    for row in (score, energy):
        known = {"better": "better than", "worse": "worse than"}
        phrase = known.get(row.verdict, "not significantly different from")
        assert f"{row.metric} is {phrase}" in text


@pytest.mark.slow
def test_a_search_of_two_trials_that_still_runs_has_a_report(tmp_path):
    with begin_search(factory.document("trials=40"), tmp_path / "run") as session:
        factory.play(session, 2)
    page = write_report(session.directory).read_text(encoding="utf-8")
    assert "<h2>Pareto front</h2>" in page
    assert "2 of 40" in page
    assert "0.0001 to 0.1, by orders of magnitude" in page


@pytest.fixture(scope="module")
def shorter(folder, tmp_path_factory):
    """The same search with early stopping: trials but the first and the best saw a third of the stream."""
    target, best = tmp_path_factory.mktemp("shorter") / "stopped", open_search(folder).best.number
    shutil.copytree(folder, target)
    for file in (target / "tables/trials").glob("*.parquet"):
        (row,) = pq.read_table(file).to_pylist()
        if row["stage"] == "search" and row["status"] == "done" and row["trial"] not in (0, best):
            row |= {"status": "stopped", "streamed_s": 1.0}
            pq.write_table(pa.Table.from_pylist([row], pq.read_schema(file)), file)
    return target


@pytest.mark.slow
def test_two_searches_have_their_best_scores_over_compute_on_one_page(folder, shorter):
    full, stopped = open_search(folder), open_search(shorter)
    assert stopped.best == full.best
    content = compared({"full": full, "stopped": stopped})
    (grid,) = content.grids
    rows = {name: [entry.text for entry in row] for name, row in grid.rows.items()}
    streamed_s = [3.0 * 23, 3.0 * 2 + 21]  # of one cell of three seconds each; the failed one has seen nothing
    assert [rows[name][:4] for name in rows] == [["24", "0", "69", "100%"], ["24", "21", "27", "39%"]]
    assert [found.budget.streamed_s for found in (full, stopped)] == streamed_s
    assert rows["full"][5:] == rows["stopped"][5:]
    page = write_report(folder, shorter).read_text(encoding="utf-8")
    assert "<h2>Searches side by side</h2>" in page
    assert ">stopped</" in page
    (picture,) = content.panels
    axis = drawn(picture)
    assert [line.get_xdata()[-1] for line in axis.get_lines()] == streamed_s
    assert axis.get_lines()[0].get_ydata()[-1] == axis.get_lines()[1].get_ydata()[-1] == full.best.metrics["score"]


def drawn(panel):
    axis = MatplotlibFigure().subplots()
    panel.draw(axis)
    return axis


@pytest.mark.slow
def test_the_curve_over_compute_counts_all_trials_until_then(shorter):
    found = open_search(shorter)
    by_trial, by_compute = (drawn(panel).get_lines()[0] for panel in progress(found).panels)
    best = found.best.number
    assert [*by_trial.get_xdata()] == [0, best]
    streamed_s = found.searched["streamed_s"].tolist()
    assert [*by_compute.get_xdata()] == [streamed_s[0], sum(streamed_s[: best + 1])]
    assert [*by_trial.get_ydata()] == [*by_compute.get_ydata()]


@pytest.mark.slow
def test_searches_that_nothing_relates_are_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "compose_search", lambda run: None)
    energy = factory.make_search(tmp_path / "energy", trials=2, objectives={"energy_j": "min"})
    with pytest.raises(RequestError, match=r"objectives of these searches differ: score \(max\) and energy_j \(min\)"):
        write_report(folder, energy)
    plain = results.make_run(tmp_path / "plain", systems=("no_custom",), workloads=("w",), seeds=(0,))
    with pytest.raises(RequestError, match=r"Only '.*run' is a search\. Compare two searches, or two runs"):
        write_report(folder, plain)


@pytest.mark.slow
def test_a_search_whose_trials_all_failed_has_a_report(tmp_path):
    failed = factory.make_search(tmp_path / "run", trials=4, failing=(0, 1, 2, 3))
    assert "No trial completed" in write_report(failed).read_text(encoding="utf-8")


# --- importance


def trials_of(function, space, count=60, seed=0):
    rng = np.random.default_rng(seed)
    drawn = [space.draw(rng) for _ in range(count)]
    return [Trial(k, settings, {"v": function(settings, rng)}) for k, settings in enumerate(drawn)]


SPACE = Space({"a": Range(0.0, 1.0), "b": Range(1e-4, 1.0, log=True), "c": OneOf(("x", "y", "z"))})


def test_a_single_deciding_setting_explains_nearly_all():
    found = importance(trials_of(lambda s, rng: (s["a"] - 0.5) ** 2 + 0.001 * rng.normal(), SPACE), SPACE, "v")
    assert next(iter(found)) == "a"
    assert found["a"] > 0.95
    assert max(found["b"], found["c"]) < 0.15


def test_names_count_by_their_means():
    found = importance(trials_of(lambda s, rng: {"x": 0.0, "y": 3.0, "z": 1.0}[s["c"]], SPACE), SPACE, "v")
    assert found["c"] == pytest.approx(1.0)


def test_noise_has_no_importance_on_average():
    shares = [importance(trials_of(lambda s, rng: rng.normal(), SPACE, 20, seed), SPACE, "v") for seed in range(40)]
    assert np.mean([share for each in shares for share in each.values()]) < 0.08


def test_few_or_equal_trials_have_no_importance():
    assert importance(trials_of(lambda s, rng: s["a"], SPACE, 9), SPACE, "v") == {}
    assert importance(trials_of(lambda s, rng: 1.0, SPACE), SPACE, "v") == {}


# --- settings of a search in a run


EXPERIMENT = {
    **factory.SPACE["experiment"],
    "name": "rivals",
    "systems": ["no_custom", "onda", {"name": "tent", "adaptation": {"name": "tent", "momentum": 0.5}}],
    "bounds": False,
}


@pytest.mark.slow
def test_a_run_uses_the_settings_of_a_search_for_its_system_only(best, tmp_path):
    part = read_tuned(best)
    tuned = parse(EXPERIMENT, tuned=[part])
    rate = part["settings"][factory.RATE]
    assert tuned.systems[2].adaptation["learning_rate"] == rate
    assert tuned.systems[2].adaptation["momentum"] == 0.5
    assert "learning_rate" not in tuned.systems[1].adaptation
    assert parse(tuned.model_dump(mode="json")) == tuned


@pytest.mark.slow
def test_a_run_names_the_source_of_its_settings_and_warns_of_unequal_budgets(best, tmp_path, few_claims):
    spec = parse(EXPERIMENT, tuned=[read_tuned(best)]).model_dump(mode="json")
    ran = open_run(run(spec, out=tmp_path / "run").directory)
    rows = ran.frame("runs").set_index("system")["tuned"]
    assert rows["tent"].startswith("space small, trial ")
    assert rows[["no_custom", "onda"]].isna().all()
    assert origins(ran)["tent"].trials == 24
    (warning,) = unequal_budgets(Tables(ran))
    assert "tent 24 trials" in warning
    assert "onda 0 trials" in warning
    page = compose(ran)
    assert "Tuned settings" in [section.title for section in page.sections]
    assert warning in page.health
    plain = open_run(run(EXPERIMENT, out=tmp_path / "plain").directory)
    assert unequal_budgets(Tables(plain)) == []
    assert how_chosen(Tables(plain)) == ["Settings of onda: defaults; of tent: those of the experiment."]
    (sentence,) = how_chosen(Tables(ran))
    assert sentence == "Settings of onda: defaults; of tent: 24 trials."
    assert sentence in page.summary.sentences
    both = compare(Tables(ran), "tent", "onda")
    assert both.notes == [sentence, warning]
    assert repr(both).endswith(warning) and "24 trials" in both._repr_html_()
    assert compare(Tables(ran), "tent", "no_custom").notes == ["Settings of tent: 24 trials."]
    assert any("tuned" in line for line in differences(ran, plain))


def test_baselines_with_equal_tuning_cause_no_warning(best):
    part = read_tuned(best)
    both = [part, {**part, "system": "onda", "settings": {}}]
    assert unequal_budgets(Tables(tuned_run(both))) == []
    assert how_chosen(Tables(tuned_run(both))) == ["Settings of onda, tent: 24 trials each."]


def test_another_number_of_trials_causes_a_warning_also_for_equal_video(best):
    part = read_tuned(best)
    fewer = {**part, "system": "onda", "budget": {**part["budget"], "trials": 12}}
    (warning,) = unequal_budgets(Tables(tuned_run([part, fewer])))
    assert "onda 12 trials" in warning and "tent 24 trials" in warning
    assert unequal_budgets(Tables(tuned_run([part, fewer])), ["tent"]) == []


def tuned_run(parts):
    """Return a run of two tuned systems and one that runs inference only."""

    class TunedRun:
        spec = {"tuned": parts, "systems": [{"name": "small", "base": "no_custom", "adaptation": {"name": "frozen"}}]}  # noqa: RUF012

        @staticmethod
        def frame(name, cells=None):
            return pd.DataFrame({"cell": list("abc"), "system": ["tent", "onda", "small"], "bound": [None, None, None]})

    return TunedRun()


def test_the_settings_of_an_experiment_equal_those_in_its_source():
    experiment = load("elasticdnn-domains")
    systems = {part.name: part.adaptation for part in experiment.systems}
    assert len(experiment.tuned) == len(systems) - 2  # no search for members without training
    assert len({str(part.budget) for part in experiment.tuned}) == 1
    for part in experiment.tuned:
        assert {path.rpartition(".")[2]: value for path, value in part.settings.items()}.items() <= systems[
            part.system
        ].items()


def test_evaluating_on_seeds_of_the_search_is_refused(best):
    for seeds in ([100], [0, 200]):
        with pytest.raises(RequestError, match="searched on"):
            parse({**EXPERIMENT, "seeds": seeds}, tuned=[read_tuned(best)])


def test_settings_for_a_system_that_does_not_run_are_refused(best):
    with pytest.raises(RequestError, match="no system is called 'tent'"):
        parse({**EXPERIMENT, "systems": ["no_custom", "onda"]}, tuned=[read_tuned(best)])


def test_settings_of_the_whole_experiment_are_refused(best, tmp_path):
    part = {**read_tuned(best), "settings": {"window_s": 3}}
    with pytest.raises(RequestError, match="--set"):
        parse(EXPERIMENT, tuned=[part])


@pytest.mark.parametrize("text", ["", "a: [", "settings: {}", "- 1"])
def test_a_file_that_no_search_wrote_is_refused(text, tmp_path):
    file = tmp_path / "best.yaml"
    file.write_text(text)
    with pytest.raises(RequestError, match="--tuned"):
        load("quick", tuned=[file])
    with pytest.raises(RequestError, match="--tuned"):
        load("quick", tuned=[tmp_path / "none.yaml"])
    assert yaml.safe_load("1") == 1
