"""ElasticDNN's experiments with several applications, and with masters of several sizes."""

from __future__ import annotations

import re

import pytest

from driftlab.platform.core.registry import member_class
from driftlab.platform.lab import forecast
from driftlab.platform.lab.read import load
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.pruning.gating import MIN_KEEP, keep_count
from driftlab.platform.results.tables.sources import EXPERIMENTS, PACKAGE

UNITS_S = {"minutes": 60, "hours": 3600, "days": 86_400}


def widths(network: str) -> list[int]:
    """Return the filters of each convolution."""
    return [len(one) for name, one in build(network, 10, seed=0).named_parameters() if one.dim() == 4]


@pytest.mark.slow
def test_six_mixes_compare_taught_schedulers_with_unlabelled_ones():
    spec = load("elasticdnn-apps")
    mixes = [tuple(app.name for app in part.apps) for part in spec.workloads]
    assert len(set(mixes)) == 6 and {len(mix) for mix in mixes} == {2, 3, 4}
    found = {part.name: part for part in spec.systems}
    taught = {
        name for name, part in found.items() if member_class("adaptation", part.adaptation["name"]).labels == "teacher"
    }
    assert taught == {"uniform", "ekya", "recl"}
    assert {f"{name}-{kind}" for name in ("afs", "synergy", "muri") for kind in ("fixed", "adapted")} < found.keys()
    ours = found["elasticdnn"]
    assert ours.scheduling["name"] == "elasticdnn" and ours.adaptation["estimates"]
    sizes = {
        tuple(keep_count(n, keep, MIN_KEEP) for n in widths("tiny_classifier")) for keep in ours.scaling["keep_ratios"]
    }
    assert len(sizes) == 8


@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", "paper"])
def test_the_stated_time_of_several_applications_is_the_estimate(size, monkeypatch):
    monkeypatch.setattr(forecast, "slowness", lambda: 1.0)
    text = (PACKAGE / EXPERIMENTS / "elasticdnn-apps.yaml").read_text(encoding="utf-8")
    stated = dict(zip(("small", "paper"), re.findall(r"about (\d+) (\w+) on two cores", text), strict=True))
    spec = load("elasticdnn-apps", [f"size={size}"])
    estimated_s = forecast.forecast(spec).on_this_host_s(2, 2)
    count, unit = stated[size]
    assert 1 / 1.3 < int(count) * UNITS_S[unit] / estimated_s < 1.3


def test_masters_of_half_and_twice_the_weights_have_surrogates_of_one_size():
    spec = load("elasticdnn-networks", ["size=masters"])
    keep = {part.name: part.scaling["keep_ratios"][0] for part in spec.systems}
    pairs = {"half_classifier": "keeps-most", "tiny_classifier": "keeps-half", "twice_classifier": "keeps-third"}
    assert {app.network for part in spec.workloads for app in part.apps} <= {None, *pairs}
    weights = {name: sum(one.numel() for one in build(name, 10, seed=0).parameters()) for name in pairs}
    assert weights["half_classifier"] / weights["tiny_classifier"] == pytest.approx(0.5, rel=0.1)
    assert weights["twice_classifier"] / weights["tiny_classifier"] == pytest.approx(2, rel=0.1)
    kept = {name: [keep_count(n, keep[system], MIN_KEEP) for n in widths(name)] for name, system in pairs.items()}
    assert kept["half_classifier"] == kept["tiny_classifier"] == kept["twice_classifier"]
