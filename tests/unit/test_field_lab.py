"""The simulation of a field run: its rounds are split into labelling, training and network delay."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from driftlab.platform.field.lab import MeasuredTimes, lab_of, measured_times
from driftlab.platform.field.request import experiment_of, parse_session_request
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.world.hardware import find


def moved(kind, direction, queued_s, arrive_s):
    return {"kind": kind, "direction": direction, "queued_s": queued_s, "arrive_s": arrive_s}


def updated(uploads, samples, iterations, label_s, train_s):
    labelled = {"label_start_s": 5.0, "label_end_s": 5.0 + label_s} if uploads else dict.fromkeys(LABELLED)
    return {"uploads": uploads, "samples": samples, "iterations": iterations, **labelled} | {
        "train_start_s": 6.0,
        "train_end_s": 6.0 + train_s,
    }


LABELLED = ("label_start_s", "label_end_s")
SENT = [moved("samples", "up", time_s, time_s + 0.01) for time_s in (10.0, 20.0, 21.0, 30.0)]


def times_of(updates, transfers):
    tables = {"updates": updates, "transfers": transfers}
    return measured_times(SimpleNamespace(table=lambda name: pa.Table.from_pylist(tables[name])))


def test_measured_times_split_rounds_into_labelling_training_and_delay():
    rounds = [
        updated(1, 10, 20, 0.5, 2.0),
        updated(2, 20, 20, 1.0, 2.0),  # two uploads at once
        updated(0, 0, 0, 0.0, 0.0),  # all weights again
        updated(1, 10, 10, 0.5, 1.0),
    ]
    down = [moved("update", "down", 0.0, time_s) for time_s in (13.0, 25.0, 26.0, 32.5)]
    times = times_of(rounds, [*SENT, *down])
    assert (times.label_s, times.step_s) == pytest.approx((0.05, 0.1))
    assert times.delays_s == pytest.approx((13.0 - 10.0 - 2.5, 25.0 - 21.0 - 3.0, 32.5 - 30.0 - 1.5))


def test_measured_times_of_labels_are_network_delay():
    down = [moved("labels", "down", 0.0, time_s) for time_s in (10.2, 20.4, 21.1)]
    assert times_of([], [*SENT, *down]) == MeasuredTimes(0.0, None, pytest.approx((0.2, 0.4, 0.1)))


def test_a_simulation_experiment_has_measured_times_and_a_virtual_clock():
    field = experiment_of(parse_session_request({"system": "just_in_time", "workload": {"name": "streets/running"}}))
    lab = lab_of(field, MeasuredTimes(0.05, 0.1, (0.3, 0.4)), find("phone-hi"))
    (cell,) = cells_of(lab)
    (device,) = cell.devices
    assert (lab.clock, lab.server.label_s, lab.server.step_s) == ("virtual", 0.05, 0.1)
    assert (device.hardware, device.link.down_flights_s) == (find("phone-hi"), (0.3, 0.4))
    (plain,) = cells_of(lab_of(field, MeasuredTimes(None, None, ()), find("phone-hi")))
    assert plain.devices[0].link.down_flights_s == ()
