"""Counts above the limits are refused at once with one message; large counts cause a warning."""

from __future__ import annotations

import os
import time

import documents_factory as documents
import numpy as np
import pytest
import yaml
from command_factory import run_command

from driftlab.datasets.labelled import open_set
from driftlab.errors import DataError, RequestError, quoted
from driftlab.platform.core.documents import MAX_VALUES, check_file, read_yaml
from driftlab.platform.core.registry import Member
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.size import announcement, size_of
from driftlab.platform.world import link, measured
from driftlab.platform.world.link import Outages

WORKLOAD = documents.TINY["workloads"][0]
REFUSAL_S = 2.0


def wire(**outages):
    return [{"devices": [{"link": {"name": "wire", "up_kbps": 1, "down_kbps": 1, "outages": outages}}]}]


TOO_MUCH = {
    "steps": {"student": {"pretrain_steps": 10**12}},
    "steps by seeds": {"student": {"pretrain_steps": 10**6, "per_seed": True}, "seeds": list(range(20))},
    "snapshots": {"snapshots": 10**9},
    "snapshots by cells": {"snapshots": 1000, "seeds": list(range(100))},
    "pixels": {"workloads": [{**WORKLOAD, "height": 4096, "width": 4096}]},
    "pixels of a batch": {"workloads": [{**WORKLOAD, "height": 2048, "width": 2048}], "student": {"pretrain_batch": 8}},
    "devices": {"fleets": [{"devices": [{"count": 100_000}]}]},
    "devices by kinds": {"fleets": [{"devices": [{"count": 10_000}] * 1000}]},
    "seeds": {"seeds": list(range(200_000))},
    "seeds by devices": {"seeds": list(range(10_000)), "fleets": [{"devices": [{"count": 1000}]}]},
    "frames": {"workloads": [{**WORKLOAD, "duration_s": 1e7, "fps": 240}]},
    "infinite": {"workloads": [{**WORKLOAD, "duration_s": 1e308, "fps": 1e308}]},
    "ticks": {"workloads": [{**WORKLOAD, "duration_s": 1e6, "fps": 1, "churn": {"tick_s": 1e-3}}]},
    "systems": {"systems": ["ams"] * 200_000},
    "varied": {
        "systems": [
            {
                "name": "x-{iterations}-{batch}-{learning_rate}",
                "base": "ams",
                "vary": {
                    "adaptation.iterations": list(range(1, 999)),
                    "adaptation.batch": list(range(1, 999)),
                    "adaptation.learning_rate": list(range(1, 999)),
                },
            }
        ]
    },
    "outages": {"fleets": wire(windows_s=[[0, 5e-9]], period_s=1e-8)},
    "rate": {"fleets": [{"devices": [{"link": {"name": "wire", "up_kbps": 1e-300, "down_kbps": 1}}]}]},
    "iterations": {"systems": [{"name": "a", "base": "ams", "adaptation": {"name": "distill", "iterations": 10**12}}]},
    "batch": {"systems": [{"name": "a", "base": "ams", "adaptation": {"name": "distill", "batch": 10**6}}]},
    "digits": {"seeds": [10**4000]},
    "gpus": {"server": {"gpus": 10**12}},
}


@pytest.mark.parametrize("which", TOO_MUCH)
def test_a_request_that_is_too_large_is_refused_at_once(which):
    begun_s = time.process_time()
    with pytest.raises(RequestError) as caught:
        parse({**documents.TINY, **TOO_MUCH[which]})
    assert time.process_time() - begun_s < REFUSAL_S
    assert len(str(caught.value)) < 5000


def bomb(levels):
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, levels)]
    return "\n".join(rows)


DOCUMENTS = {
    "bomb": bomb(12),
    "itself": "name: &a [*a]",
    "deep": "name: " + "[" * 600 + "]" * 600,
    "deep blocks": "\n".join("  " * k + "a:" for k in range(600)),
    "digits": "seeds: [" + "1" * 5000 + "]",
    "date": "name: 2020-02-31",
    "many": "seeds: [" + ", ".join(map(str, range(200_000))) + "]",
    "large": "# " + "x" * 2**23,
    "list as key": "? [a, b]\n: c",
}


@pytest.mark.parametrize("which", DOCUMENTS)
def test_a_file_that_is_too_much_is_one_message(tmp_path, which):
    file = tmp_path / "mine.yaml"
    file.write_text(DOCUMENTS[which])
    begun_s = time.process_time()
    result = run_command(["run", str(file), "--dry-run"])
    assert time.process_time() - begun_s < 2 * REFUSAL_S
    assert isinstance(result.exception, RequestError)
    assert str(file) in str(result.exception)
    assert len(str(result.exception)) < 1000


def test_aliases_within_bounds_are_read():
    assert read_yaml(bomb(3))["a2"][9][9] == ["x"] * 10
    assert read_yaml("a: &a {b: 1}\nc: {<<: *a, d: 2}") == {"a": {"b": 1}, "c": {"b": 1, "d": 2}}
    assert len(read_yaml(yaml.safe_dump(list(range(MAX_VALUES // 100))))) == MAX_VALUES // 100


@pytest.mark.parametrize("word", ["1" * 5000, "0.." + "9" * 5000, "²"])
def test_seeds_of_many_digits_are_no_seeds(word):
    result = run_command(["run", "quick", "--seed", word, "--dry-run"])
    assert isinstance(result.exception, RequestError)
    assert len(str(result.exception)) < 500


@pytest.mark.parametrize("override", ["seeds.²=1", f"seeds.{'1' * 5000}=1", f"seeds.0={'1' * 5000}", "seeds.0.a=1"])
def test_overrides_of_many_digits_are_refused(override):
    with pytest.raises(RequestError) as caught:
        parse(documents.TINY, [override])
    assert len(str(caught.value)) < 1000


def test_a_size_is_multiplied_out_and_a_large_run_is_announced():
    usual = parse(documents.TINY)
    assert announcement(usual) == ""
    fleets = [{"devices": [{"count": 2}, {"count": 3}]}]
    large = parse({**documents.TINY, "fleets": fleets, "seeds": list(range(1000))})
    found = size_of(large)
    assert (found.cells, found.devices, found.fleet, found.frames) == (4000, 20_000, 5, 20_000 * 8 * 2)
    assert found.snapshots == 8000
    assert found.steps == 2
    long = parse({**documents.TINY, "workloads": [{**WORKLOAD, "duration_s": 1e6, "fps": 30}]})
    assert size_of(long).frames == 4 * 3e7
    assert "hours" in announcement(long)


@pytest.mark.parametrize("work_s", [1.0, 56.0, 1e4, 6e4, 1e6])
def test_a_long_message_is_counted_as_it_would_be_walked_through(work_s):
    outages = Outages(((20.0, 24.0), (50.0, 51.0)), period_s=60.0)
    start_s, left_s = 7.0, work_s
    turns, rest_s = divmod(left_s, 55.0)
    walked = Outages(outages.windows_s, outages.period_s).finish_s(start_s + 0, rest_s) + turns * 60.0
    assert outages.finish_s(start_s, work_s) == pytest.approx(walked, rel=1e-9)


def test_a_message_that_outlasts_millions_of_outages_is_timed_at_once():
    outages = Outages(((0.0, 0.0005),), period_s=1e-3)
    begun_s = time.process_time()
    assert outages.finish_s(0.0, 1e7) == pytest.approx(2e7, rel=1e-6)
    assert time.process_time() - begun_s < 0.5


@pytest.mark.parametrize("row", ["0.5,1,1e308", "0.5,1,1e13", "0.5,1e308,1"])
def test_measured_numbers_beyond_all_hardware_are_refused(tmp_path, row):
    file = tmp_path / "m.csv"
    file.write_text(f"accuracy,latency_s,memory_mb\n{row}\n")
    with pytest.raises(DataError, match="row 1"):
        measured.read(file)


def test_a_pipe_and_a_large_file_are_no_tables(tmp_path):
    os.mkfifo(tmp_path / "m.parquet")
    with pytest.raises(DataError, match="no regular file"):
        measured.read(tmp_path / "m.parquet")
    (tmp_path / "m.csv").write_text("a")
    os.truncate(tmp_path / "m.csv", measured.MAX_BYTES + 1)
    with pytest.raises(DataError, match="allowed are"):
        measured.read(tmp_path / "m.csv")
    with pytest.raises(FileNotFoundError):
        check_file(tmp_path / "none", 1)


def test_sets_that_fit_no_memory_are_refused():
    with pytest.raises(RequestError, match="GiB"):
        open_set("signs/vs", size=512, counts=(10**6, 1, 1))


def test_a_quoted_value_is_short():
    assert quoted(10**5000) == f"a whole number of {(10**5000).bit_length()} bits"
    assert quoted({"a": [1, 2]}) == "{'a': [1, 2]}"
    for value in ("x" * 10**6, list(range(10**6)), np.zeros(10**6), [[[[[[[[1]]]]]]]] * 99, Member("a", "b" * 999)):
        assert len(quoted(value)) <= 120
    assert link.find("lte").up_kbps == 12_000
