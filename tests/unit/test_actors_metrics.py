"""Metrics of finished cells by run, cell and device, which the Grafana file queries."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray")

from driftlab.actors import metrics
from driftlab.actors.cluster import Cluster, dashboard_notes

GRAFANA = Path(__file__).resolve().parents[2] / "actors" / "deploy" / "grafana.json"
ROWS = {
    "devices": [
        {"device": ["device-0"], "frames": [48], "uplink_bytes": [900.0], "downlink_bytes": [0.0]},
        {"device": ["device-1"], "frames": [40], "uplink_bytes": [100.0], "downlink_bytes": [7.0]},
    ],
    "runs": [{"updates": [3], "host_seconds": [2.5]}],
    "frames": [{"device": "device-0", "frame": np.arange(48)}],
}


class Meter:
    """A counter or gauge that keeps its values; zero is refused, as by Ray."""

    made: dict[str, Meter]

    def __init__(self, name, description, tag_keys):
        self.tag_keys, self.values = tag_keys, {}
        self.made[name] = self

    def inc(self, value, tags):
        assert value > 0
        assert set(tags) == set(self.tag_keys)
        key = tuple(tags.values())
        self.values[key] = self.values.get(key, 0) + value

    def set(self, value, tags):
        self.values[tuple(tags.values())] = value


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(Meter, "made", {}, raising=False)
    monkeypatch.setattr(metrics, "Counter", Meter)
    monkeypatch.setattr(metrics, "Gauge", Meter)
    return Meter.made


def test_a_finished_cell_counts_by_run_cell_and_device(made):
    meters = metrics.RunMetrics("demo-1")
    for cell in ("ams/one/seed-0", "ams/one/seed-1"):
        meters.count(cell, ROWS)
    first = ("demo-1", "ams/one/seed-0")
    values = {name: {key: value for key, value in one.values.items() if key[:2] == first} for name, one in made.items()}
    assert values == {
        "driftlab_frames": {(*first, "device-0"): 48, (*first, "device-1"): 40},
        "driftlab_bytes": {
            (*first, "device-0", "up"): 900.0,
            (*first, "device-1", "up"): 100.0,
            (*first, "device-1", "down"): 7.0,
        },
        "driftlab_updates": {first: 3},
        "driftlab_cell_seconds": {first: 2.5},
    }


def test_a_failed_cell_without_devices_counts_nothing(made):
    metrics.RunMetrics("demo-1").count("ams/one/seed-0", {"runs": [{"status": ["failed"]}]})
    assert not made["driftlab_frames"].values
    assert not made["driftlab_updates"].values


def test_the_grafana_file_queries_exactly_these_metrics(made):
    metrics.RunMetrics("demo-1")
    dashboard = json.loads(GRAFANA.read_text(encoding="utf-8"))
    queried = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {re.sub(r"_total$", "", name) for text in queried for name in re.findall(r"ray_(driftlab_\w+)", text)}
    assert names == set(made)
    for text in queried:
        (name,) = re.findall(r"ray_(driftlab_\w+?)(?:_total)?\{", text)
        labels = set(re.findall(r"by \(([\w, ]+)\)", text)[0].split(", ")) if " by " in text else set()
        assert labels <= set(made[name].tag_keys)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_notes_name_address_token_tunnel_and_metrics():
    cluster = Cluster("ns", 2, 0.0, 2**30, "http://127.0.0.1:8266", "http://127.0.0.1:9000/metrics")
    address, tunnel, exported = dashboard_notes(cluster)
    assert "http://127.0.0.1:8266" in address
    assert "ray get-auth-token" in address
    assert "ssh -L 8266:127.0.0.1:8266" in tunnel
    assert exported.endswith("http://127.0.0.1:9000/metrics")
    assert dashboard_notes(Cluster("ns", 2, 0.0, 2**30, None)) == ("dashboard  this cluster has none",)
