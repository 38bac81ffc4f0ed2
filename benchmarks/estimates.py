"""Compare the time that `--dry-run` estimates with the processor time of the run.

It prints one JSON line per experiment. Each runs in one process and one thread, without cached networks. Networks and
cells are compared apart and together: the ratio is the estimate divided by the measured time. The start of Ray is in
neither.

With `--every` it runs one seed and the first workload and fleet of every built-in experiment. Networks are trained for
two steps and no epoch, since cells take as long with any weights. Only the ratio of cells counts, as in a run whose
networks are cached. `--every ams-table1:long,nestdnn-fig9` selects experiments, and a size after a colon.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from _shared import options_of, report

from driftlab.platform.core.parameters import parameters_of
from driftlab.platform.core.registry import member_class
from driftlab.platform.lab import forecast
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import Choice, Experiment, load, names
from driftlab.platform.lab.seal import create_run, execute
from driftlab.platform.networks.training.states import FOLDER_VARIABLE
from driftlab.platform.sim.inline import InlineBackend

DIGITS = ["workloads=[{name: 'domains:set:digits', duration_s: 60, fps: 5, height: 32, width: 32}]", "bounds=false"]
SMALL = ["workloads.0.height=16", "workloads.0.width=24", "workloads.0.duration_s=4", "student.pretrain_steps=2"]
EXPERIMENTS: dict[str, tuple[str, tuple[str, ...], list[str]]] = {  # name, systems, settings
    "smallest": ("quick", ("no_custom",), SMALL),
    "segmentation": ("quick", (), []),
    "large-frames": ("quick", ("no_custom", "one_time"), ["workloads.0.height=128", "workloads.0.width=192"]),
    "ams": ("quick", ("no_custom", "ams"), ["workloads.0.duration_s=120", "student.pretrain_steps=300"]),
    "on-the-stream": (
        "quick",
        ("no_custom", "adabn", "tent", "cotta"),
        [*DIGITS, "student.network=tiny_classifier", "student.pretrain_steps=300"],
    ),
    "resnet18": ("quick", ("no_custom", "tent"), [*DIGITS, "student.network=resnet18", "student.pretrain_steps=60"]),
    "pruning": ("nestdnn-fig3", ("trr-0", "l1-3"), []),
    "arrivals": ("nestdnn-fig9", (), []),
    "demo-adaptation": ("demo-adaptation", (), ["seeds=[0]"]),
    "demo-scaling": ("demo-scaling", (), ["seeds=[0]"]),
    "demo-sharing": ("demo-sharing", (), ["seeds=[0]"]),
    "many-apps": ("many-apps", ("no_custom", "uniform-learning"), ["seeds=[0]"]),
}


class Clock(Progress):
    """Processor time when the networks begin and are built."""

    def begins(self, cells: int, kept: int, work_s: float) -> None:
        self.begun_s = self.built_s = time.process_time()

    def built(self, network: str, done: int, of: int) -> None:
        self.built_s = time.process_time()


def measure(spec: Experiment, folder: Path) -> tuple[float, float]:
    """Run an experiment; return the processor time of its networks and of its cells."""
    clock = Clock()
    with create_run(spec, folder) as directory:
        outcome = execute(spec, directory, InlineBackend, clock)
    assert not outcome.failed, outcome.failed
    return clock.built_s - clock.begun_s, time.process_time() - clock.built_s


def compare(name: str) -> None:
    """Run one of `EXPERIMENTS` and print the ratios."""
    experiment, systems, settings = EXPERIMENTS[name]
    print_ratios(name, load(experiment, settings, Choice(systems) if systems else None), "whole")


def compare_cells(name: str) -> None:
    """Run one seed and the first workload and fleet of a built-in experiment, and print the ratios."""
    experiment, _, size = name.partition(":")
    spec = load(experiment, [f"size={size}"] if size else [])
    hardly = spec.student.model_copy(update={"pretrain_steps": min(2, spec.student.pretrain_steps)})
    systems = tuple(part.model_copy(update={"scaling": untrained(part.scaling)}) for part in spec.systems)
    first = {part: getattr(spec, part)[:1] for part in ("seeds", "workloads", "fleets")}
    print_ratios(name, spec.model_copy(update={"student": hardly, "systems": systems, **first}), "cells")


def untrained(scaling: dict[str, object]) -> dict[str, object]:
    """Return a scaling member without epochs."""
    units = parameters_of(member_class("scaling", str(scaling["name"])))
    return {**scaling, **{name: 0 for name, one in units.items() if one.unit == "epochs"}}


def print_ratios(name: str, spec: Experiment, counts: str) -> None:
    """Run an experiment and print estimates over measured times; the goal holds for the part that counts."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER_VARIABLE] = f"{folder}/cache"
        expected, slowness = forecast.forecast(spec), forecast.slowness()
        building_s, running_s = measure(spec, Path(folder) / "run")
        slowness = (slowness + forecast.slowness()) / 2  # of a shared computer, which changes
    parts = {"networks": (expected.building_s, building_s), "cells": (expected.cells_s, running_s)}
    parts["whole"] = (expected.building_s + expected.cells_s, building_s + running_s)
    line = {
        part: {
            "estimate_s": round(slowness * told_s, 1),
            "measured_s": round(took_s, 1),
            "ratio": round(slowness * told_s / max(took_s, 1e-3), 2),
        }
        for part, (told_s, took_s) in parts.items()
    }
    report({"benchmark": "estimates", "experiment": name, **line, "goal": f"{counts}: 0.67 to 1.5"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", default=",".join(EXPERIMENTS), help="names, separated by commas")
    parser.add_argument(
        "--every", nargs="?", const=",".join(names()), default="", help="one seed of built-in experiments"
    )
    options = options_of(parser, experiments="smallest")
    if options.every:
        for chosen in options.every.split(","):
            compare_cells(chosen)
    else:
        for chosen in options.experiments.split(","):
            compare(chosen)
