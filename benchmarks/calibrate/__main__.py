"""Calibrate the city streets with systems that do not train: a generic student, and tracked labels.

Targets are Tables 1 and 2 of the AMS paper. Systems that adapt are never run here: settings that were chosen by their
scores would make their claims true by construction. Every measurement is stored, also those of rejected settings.

    python -m benchmarks.calibrate measure                        every preset at its settings, seeds 1000 to 1005
    python -m benchmarks.calibrate measure --preset dance --try '{"variety": 0.6}'      another setting of one preset
    python -m benchmarks.calibrate measure --first-seed 2000      fresh seeds, which no setting was chosen with
    python -m benchmarks.calibrate page                           write docs/calibration.md from the measurements
"""

from __future__ import annotations

import argparse
import fcntl
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import driftlab
from driftlab.datasets.city.presets import PRETRAINING, SETTINGS
from driftlab.platform.core.files import write_atomically

DOCS = Path(__file__).resolve().parents[2] / "docs"
KEPT, PAGE = DOCS / "calibration.json", DOCS / "calibration.md"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
FPS, DURATION_S, SEEDS, FIRST_SEED, FRESH_SEED = 4.0, 60.0, 6, 1000, 2000
STEPS, TOLERANCE = 5000, 0.05
SYSTEMS = ("no_custom", "remote_tracking")
# mIoU of No Customization and of Remote+Tracking in Tables 1 and 2 of the AMS paper.
TARGETS: Mapping[str, tuple[float, float]] = {
    "interview": (0.7191, 0.8998),
    "dance": (0.7280, 0.8641),
    "street_comedian": (0.5449, 0.5881),
    "walking_paris": (0.6994, 0.6959),
    "walking_ny": (0.4905, 0.5449),
    "driving_la": (0.6626, 0.6648),
    "running": (0.6132, 0.5757),
}


@dataclass(frozen=True)
class StreetScore:
    """The scores of one preset at one setting, in the order of the seeds."""

    preset: str
    settings: Mapping[str, float]
    lessons: Mapping[str, float]
    steps: int
    fps: float
    duration_s: float
    seeds: Sequence[int]
    none: Sequence[float]
    tracking: Sequence[float]


def measure(preset: str, settings: Mapping[str, float], seeds: Sequence[int]) -> StreetScore:
    """Run the two systems on a preset; every other setting has its default."""
    workload = {"name": f"city/{preset}", "duration_s": DURATION_S, "fps": FPS, "params": dict(settings)}
    document = {
        "name": "calibrate",
        "systems": list(SYSTEMS),
        "workloads": [workload],
        "seeds": list(seeds),
        "bounds": False,
        "snapshots": 0,
        "student": {"pretrain_steps": STEPS},
    }
    with tempfile.TemporaryDirectory() as folder:
        outcome = driftlab.run(document, out=Path(folder) / "run")
        runs = driftlab.open_run(outcome.directory).frame("runs").sort_values("seed")
    none, tracking = ([round(float(score), 4) for score in runs[runs.system == name].score] for name in SYSTEMS)
    return StreetScore(preset, settings, dict(PRETRAINING), STEPS, FPS, DURATION_S, seeds, none, tracking)


def kept(path: Path = KEPT) -> list[StreetScore]:
    """Read the stored measurements."""
    return [StreetScore(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def keep(new: StreetScore, path: Path = KEPT) -> None:
    """Store a measurement; it replaces an earlier one of the same preset, settings and seeds."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several presets may be measured at the same time
        others = [row for row in kept(path) if _which(row) != _which(new)]
        rows = ",\n".join(json.dumps(asdict(row)) for row in [*others, new])
        write_atomically(path, f"[\n{rows}\n]\n")


def _which(row: StreetScore) -> tuple[str, Mapping[str, float], Sequence[int]]:
    return row.preset, row.settings, row.seeds


def written(rows: Sequence[StreetScore]) -> str:
    """Return the tables of the page as text."""
    head = "| street | settings | none: target | calibration | fresh | tracking: target | calibration | fresh |"
    lines = [head, f"|{'---|' * 8}"]
    for preset, targets in TARGETS.items():
        cells = [preset, _format_settings(SETTINGS[preset])]
        for target, which in zip(targets, ("none", "tracking"), strict=True):
            cells.append(f"{target:.3f}")
            cells += [_outcome(rows, preset, first, which, target) for first in (FIRST_SEED, FRESH_SEED)]
        lines.append(f"| {' | '.join(cells)} |")
    tried = [
        f"| {row.preset} | {_format_settings(row.settings)} | {row.seeds[0]} to {row.seeds[-1]} | "
        f"{_format_scores(row.none)} | {_format_scores(row.tracking)} |"
        for row in sorted(rows, key=lambda row: (row.preset, row.seeds[0], sorted(row.settings.items())))
    ]
    return "\n".join([*lines, "", "Everything that was measured:", "", _TRIED, *tried])


_TRIED = f"| street | settings | seeds | none | tracking |\n|{'---|' * 5}"


def _outcome(rows: Sequence[StreetScore], preset: str, first_seed: int, which: str, target: float) -> str:
    settings = dict(SETTINGS[preset])
    found = [row for row in rows if (row.preset, row.settings, row.seeds[0]) == (preset, settings, first_seed)]
    if not found:
        return "not measured yet"
    score = statistics.mean(getattr(found[-1], which))
    return f"{score:.3f}{'' if abs(score - target) <= TOLERANCE else ' (missed)'}"


def _format_settings(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in settings.items())


def _format_scores(scores: Sequence[float]) -> str:
    return f"{statistics.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})"


def write_page(page: Path = PAGE, path: Path = KEPT) -> None:
    """Replace the tables between the marks of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{written(kept(path))}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["measure", "page"])
    parser.add_argument("--preset", action="append", choices=list(TARGETS), help="may be given several times")
    parser.add_argument("--try", dest="tried", type=json.loads, help="settings as JSON, instead of those of the preset")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    options = parser.parse_args()
    if options.verb == "page":
        write_page()
    else:
        for name in options.preset or TARGETS:
            chosen = dict(SETTINGS[name]) if options.tried is None else options.tried
            row = measure(name, chosen, list(range(options.first_seed, options.first_seed + SEEDS)))
            keep(row)
            sys.stdout.write(f"{name}: none {_format_scores(row.none)}, tracking {_format_scores(row.tracking)}\n")
            sys.stdout.flush()
