"""Compare the time that `--dry-run` estimates with the processor time of the run; one JSON line per experiment.

Each experiment runs in its own process, in one thread, without cached networks. Networks and cells are compared apart
and together: the ratio is the estimate divided by the measured time.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile

from _shared import child_json, options_of, report

TRIAL = """
import json, sys, time
from pathlib import Path
from driftlab.platform.lab import forecast
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import Choice, load
from driftlab.platform.lab.seal import create_run, execute
from driftlab.platform.sim.inline import InlineBackend

class Clock(Progress):
    def begins(self, cells, kept, work_s):
        self.begun_s = self.built_s = time.process_time()
    def built(self, network, done, of):
        self.built_s = time.process_time()

name, systems, overrides = json.loads(sys.argv[2])
spec = load(name, overrides, Choice(tuple(systems)) if systems else None)
expected, cells = forecast.forecast(spec), len(list(forecast.points_of(spec)))
import torch
import driftlab.platform.sim.nodes
slow, clock = forecast.slowness(), Clock()
with create_run(spec, Path(sys.argv[1])) as directory:
    outcome = execute(spec, directory, InlineBackend, clock)
assert not outcome.failed, outcome.failed
ended_s = time.process_time()
print(json.dumps({
    "networks": [slow * expected.building_s, clock.built_s - clock.begun_s],
    "cells": [slow * (expected.cells_s + cells * forecast.CELL_S), ended_s - clock.built_s],
}))
"""
DIGITS = ["workloads=[{name: 'domains:set:digits', duration_s: 60, fps: 5, height: 32, width: 32}]", "bounds=false"]
EXPERIMENTS = {  # name, systems, settings
    "segmentation": ("quick", [], []),
    "segmentation-large": ("quick", ["no_custom", "one_time"], ["workloads.0.height=128", "workloads.0.width=192"]),
    "ams": ("quick", ["no_custom", "ams"], ["workloads.0.duration_s=120", "student.pretrain_steps=300"]),
    "on-the-stream": (
        "quick",
        ["no_custom", "adabn", "tent", "cotta"],
        [*DIGITS, "student.network=tiny_classifier", "student.pretrain_steps=300"],
    ),
    "resnet18": ("quick", ["no_custom", "tent"], [*DIGITS, "student.network=resnet18", "student.pretrain_steps=60"]),
    "pruning": ("nestdnn-fig3", ["trr-0", "l1-3"], []),
    "nested": ("nestdnn-fig9", [], []),
    "adaptation-demo": ("demo-adaptation", [], ["seeds=[0]"]),
    "scaling-demo": ("demo-scaling", [], ["seeds=[0]"]),
    "sharing-demo": ("demo-sharing", [], ["seeds=[0]"]),
    "many-apps": ("many-apps", ["no_custom", "uniform-learning"], ["seeds=[0]"]),
    "no-networks": ("fleets", [], ["seeds=[0]"]),
}


def compare(name: str) -> None:
    """Run one experiment and print the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"DRIFTLAB_CACHE": f"{folder}/cache", "OMP_NUM_THREADS": "1"}
        measured = child_json(TRIAL, f"{folder}/run", json.dumps(EXPERIMENTS[name]), env=env)
    parts = {part: tuple(seconds) for part, seconds in measured.items()}
    parts["whole"] = tuple(map(sum, zip(*parts.values(), strict=True)))
    line = {
        part: {"estimate_s": round(told, 1), "measured_s": round(took, 1), "ratio": round(told / took, 2)}
        for part, (told, took) in parts.items()
        if took > 0
    }
    report({"benchmark": "estimates", "experiment": name, **line, "goal": "whole within a factor of 1.5"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", default=",".join(EXPERIMENTS), help="names, separated by commas")
    options = options_of(parser, experiments="segmentation")
    for experiment in options.experiments.split(","):
        compare(experiment)
