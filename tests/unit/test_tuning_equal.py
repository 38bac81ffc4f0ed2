"""Searches with equal trials: one per system, equal but for system and space, in one folder."""

from __future__ import annotations

import pytest
import tuning_factory as factory
import yaml

from driftlab.errors import DataError, RequestError
from driftlab.platform.lab.tuned import read_tuned
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.tune.equal import begin_searches, search_of, searches_in, write_tuned
from driftlab.tune_spaces.catalogue import load_equal

SAMPLE = "systems.0.streaming.sample_s"


@pytest.fixture
def streams(tmp_path):
    file = tmp_path / "streams.yaml"
    file.write_text(yaml.safe_dump(factory.raw(trials=4)))
    return str(file)


def test_the_searches_differ_in_system_and_space_only():
    found = load_equal(["ams", "one_time", "no_custom"], "ams", ["trials=7", "workloads.0.duration_s=20"])
    assert found["no_custom"] is None
    own = [found[name].model_dump(exclude={"name", "summary", "system", "space"}) for name in ("ams", "one_time")]
    assert [[row["name"] for row in one["experiment"].pop("systems")] for one in own] == [["ams"], ["one_time"]]
    for one in own:
        del one["experiment"]["name"]
    assert own[0] == own[1]
    assert own[0]["trials"] == 7 and own[0]["experiment"]["workloads"][0]["duration_s"] == 20
    assert SAMPLE in found["one_time"].space and SAMPLE not in found["ams"].space


def test_a_size_selects_streams_and_the_space_that_fits_them():
    small, full = (load_equal(["one_time", "tent"], "ams", size) for size in (["size=small"], []))
    assert small["tent"].experiment["workloads"] == small["one_time"].experiment["workloads"]
    assert small["tent"].seeds == small["one_time"].seeds == (100, 101)
    assert small["one_time"].space[SAMPLE].high < full["one_time"].space[SAMPLE].high
    assert SAMPLE not in small["tent"].space


def test_an_experiment_gives_streams_and_rows():
    found = load_equal(["one_time", "ams"], "quick")
    assert found["one_time"].experiment["workloads"] == found["ams"].experiment["workloads"]
    assert found["one_time"].experiment["systems"][0]["streaming"]["sample_s"] == 8  # as in the experiment
    assert found["one_time"].seeds == (100, 101)


def test_a_row_of_a_space_is_kept_on_other_streams():
    (nas,) = load_equal(["nas"], "tent")["nas"].experiment["systems"]
    assert nas["scaling"]["space"] == "small"


@pytest.mark.parametrize(
    ("systems", "overrides", "message"),
    [
        (["tnet"], [], "Unknown system 'tnet'"),
        (["tent"], ["seeds=[0, 100]"], "take seeds from 100 on"),
        (["tent"], ["held_out=[7]"], "take seeds from 100 on"),
        (["tent"], ["trials=0"], "trials is 0"),
        (["tent"], ["system=shot"], "only the systems and their spaces differ"),
        (["tent"], ["early_stopping=true"], "only the systems and their spaces differ"),
    ],
)
def test_unequal_requests_are_refused(systems, overrides, message):
    with pytest.raises(RequestError, match=message):
        load_equal(systems, "tent", overrides)


@pytest.mark.slow
def test_searches_resume_from_their_folder_and_write_tuned_settings(streams, tmp_path):
    searches = load_equal(["tent", "no_custom", "onda"], streams)
    directory = begin_searches(searches, tmp_path / "run")
    assert searches_in(directory) == searches
    with search_of(directory, "tent", searches["tent"]) as session:
        first = factory.play(session, 2)
    with search_of(directory, "tent", searches["tent"]) as session:
        rest = factory.play(session)
    assert [one.number for one in (*first, *rest) if one.stage == "search"] == [0, 1, 2, 3]
    file = write_tuned(directory, "tent")
    assert file == directory / "tuned" / "tent.yaml"
    part, whole = read_tuned(file), yaml.safe_load(file.read_text())
    assert (part["system"], part["budget"]["trials"], part["seeds"]) == ("tent", 4, [100, 200, 201])
    assert whole["streamed_s_per_trial"] == 3.0
    assert len(whole["space_digest"]) == 64
    with pytest.raises(DataError, match="a search for each of tent, no_custom, onda"):
        open_run(directory)
    with pytest.raises(RequestError, match="not empty"):
        begin_searches(searches, directory)


@pytest.mark.slow
def test_the_digest_of_a_space_changes_with_the_space(tmp_path):
    digests = set()
    for number, high in enumerate((0.1, 0.1, 0.2)):
        space = {**factory.SPACE["space"], factory.RATE: {"from": 1e-4, "to": high}}
        searches = {"tent": factory.document(space=space, trials=2)}
        directory = begin_searches(searches, tmp_path / str(number))
        with search_of(directory, "tent", searches["tent"]) as session:
            factory.play(session)
        digests.add(yaml.safe_load(write_tuned(directory, "tent").read_text())["space_digest"])
    assert len(digests) == 2
