"""Recorded loads in CSV files: the columns of `COLUMNS`, and one row per change of the load.

The columns `time_s` and `cpu` are required. An empty cell of any other column, and of `cpu` after the first row,
repeats the cell above; a row holds until the next one. Faults are reported with the line of the file.
"""

from __future__ import annotations

import csv
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from driftlab.errors import DataError, RequestError, quoted, shortened
from driftlab.platform.core.documents import check_file
from driftlab.platform.world.load import MAX_STEPS, Load, LoadProfile, LoadStep, draw

LIMITS: Mapping[str, tuple[float, float]] = {
    "time_s": (0, 1e9),
    "cpu": (0, 1),
    "memory": (0, 1),
    "clock": (1e-3, 10),
    "temperature_c": (-100, 1000),
    "battery": (0, 1),
    "gpu": (0, 1),
}
COLUMNS = tuple(LIMITS)
SHARES = ("cpu", "memory", "battery", "gpu")
MAX_BYTES, MAX_ROWS = 2**26, 200_000
FAULTS_SHOWN = 5
Row = tuple[int, list[str]]  # line number and cells


def load_of(profile: LoadProfile, duration_s: float, rng: np.random.Generator) -> Load | None:
    """Return the load of one device, from the file of its profile or drawn; None without other programs."""
    return draw(profile, duration_s, rng) if profile.file is None else read(profile, duration_s)


def read(profile: LoadProfile, duration_s: float) -> Load:
    """Read the file of a profile for a session of a duration."""
    assert profile.file is not None
    steps = [replace(step, contention=profile.law) for step in read_steps(Path(profile.file))]
    last_s = steps[-1].time_s - steps[-2].time_s if len(steps) > 1 else duration_s
    length_s = steps[-1].time_s + last_s  # the last row has the duration of the row above
    if profile.repeat and length_s < duration_s:
        if steps[0].battery is not None:
            raise DataError(f"{profile.file} holds a battery, which does not charge by repeating: set repeat: false.")
        steps, length_s = _repeated(profile.file, steps, length_s, duration_s), duration_s
    return Load(profile.name, tuple(steps), profile.sense_hz, None, length_s if length_s < duration_s else math.inf)


def read_steps(path: Path) -> list[LoadStep]:
    """Read the rows of a file; refuse it with all faults and their lines."""
    try:
        check_file(path, MAX_BYTES)
        stat = path.stat()
        return list(_read_cached(path, stat.st_mtime_ns, stat.st_size))
    except FileNotFoundError as error:
        fix = "Give the path of a CSV file, or a name of `driftlab list loads`."
        raise DataError(f"There is no file '{path}'. {fix}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}.") from error


@functools.lru_cache(maxsize=4)
def _read_cached(path: Path, changed_ns: int, size_bytes: int) -> tuple[LoadStep, ...]:
    """Read a file once for all devices, and again only if it has changed."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        filled = [(reader.line_num, cells) for cells in reader if len(cells) > 1 or "".join(cells).strip()]
    (_, head), *rows = filled or [(1, [])]
    if not rows or len(rows) > MAX_ROWS:
        raise DataError(f"{path} has {len(rows):,} rows of a load; give 1 to {MAX_ROWS:,} below the names of columns.")
    column_faults = [f"no column {name}" for name in ("time_s", "cpu") if name not in head]
    column_faults += [f"unknown column '{shortened(name)}'" for name in head if name not in COLUMNS]
    column_faults += [
        f"column {name} stands there {head.count(name)} times" for name in COLUMNS if head.count(name) > 1
    ]
    if column_faults:
        raise DataError(f"{path}: {'; '.join(column_faults)}; known are {', '.join(COLUMNS)}.")
    faults: list[str] = []
    steps = list(_steps(head, rows, faults))
    if faults:
        more = f"; and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
        raise DataError(f"{path}: {'; '.join(faults[:FAULTS_SHOWN])}{more}.")
    return tuple(steps)


def facts_of(path: Path) -> Mapping[str, str]:
    """Summarise a file for `driftlab show`: rows, duration, gaps, CPU load, exhausted memory and battery."""
    steps = read_steps(path)
    gaps_s = [after.time_s - before.time_s for before, after in itertools.pairwise(steps)]
    mean, highest = sum(step.cpu for step in steps) / len(steps), max(step.cpu for step in steps)
    full, empty = (sum(holds(step) for step in steps) for holds in (lambda one: one.memory >= 1, _is_empty))
    return {
        "rows": f"{len(steps):,}",
        "until": f"{steps[-1].time_s:g} s",
        "longest gap between rows": f"{max(gaps_s, default=0.0):g} s: the row above holds",
        "CPU load": f"mean {mean:.2f}, highest {highest:.2f}",
        "rows without free memory": str(full),
        "rows with an empty battery": f"{empty}: the device stops at the first" if empty else "0",
    }


def _is_empty(step: LoadStep) -> bool:
    return step.battery is not None and step.battery <= 0


def write_steps(path: Path, steps: Iterable[LoadStep]) -> None:
    """Write a file row by row, so that an interrupted recording is readable."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for step in steps:
            writer.writerow(["" if value is None else round(value, 4) for value in astuple(step)[: len(COLUMNS)]])
            file.flush()


def _steps(head: list[str], rows: list[Row], faults: list[str]) -> Iterator[LoadStep]:
    now: LoadStep | None = None
    for line, cells in rows:
        if len(cells) != len(head):
            faults.append(_length_fault(line, len(cells), len(head)))
            continue
        row = dict(zip(head, cells, strict=True))
        values = {name: _value(name, row[name], line, faults) for name in COLUMNS if name in row}
        given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        if not row["time_s"].strip() or (now is None and not row["cpu"].strip()):
            faults.append(f"line {line}: {'time_s' if 'time_s' not in given else 'cpu'} is empty")
        elif now is not None and given.get("time_s", math.inf) <= now.time_s:
            faults.append(f"line {line}: time_s is {given['time_s']:g}, in the row above it is {now.time_s:g}")
        elif "time_s" in given and (now is not None or "cpu" in given):
            now = LoadStep(**given) if now is None else replace(now, **given)
            yield now


def _length_fault(line: int, cells: int, columns: int) -> str:
    """Return the fault of a row whose cells do not match the columns, and its fix."""
    fix = "write decimals with a point (0.9, not 0,9)" if cells > columns else "empty cells keep their commas"
    return f"line {line} has {cells} cell{'s' * (cells > 1)} for {columns} columns: {fix}"


def _value(name: str, cell: str, line: int, faults: list[str]) -> float | None:
    """Return the number in a cell; None if it is empty or, with a new fault, wrong."""
    text = cell.strip()
    if not text:
        return None
    low, high = LIMITS[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if low <= value <= high:
        return value
    percent = f" ({value:g} % is {value / 100:g})" if 2 <= value <= 100 else ""
    allowed = f"a share is between 0 and 1{percent}" if name in SHARES else f"allowed are {low:g} to {high:g}"
    faults.append(f"line {line}: {name} is {quoted(text)}, {allowed}")
    return None


def _repeated(file: str, steps: list[LoadStep], length_s: float, duration_s: float) -> list[LoadStep]:
    """Repeat the steps to the end of the session; the first one holds from each repetition's start."""
    repetitions = math.ceil(duration_s / length_s)
    rows = repetitions * len(steps)
    if rows > MAX_STEPS:
        raise RequestError(
            f"{file} lasts {length_s:g} s, and repeats {repetitions:,} times in a session of {duration_s:g} s: that is "
            f"{rows:,} rows, allowed are {MAX_STEPS:,}. Set repeat: false, or give fewer rows a second."
        )
    steps = [replace(steps[0], time_s=0.0), *steps[1:]]
    return [replace(step, time_s=step.time_s + index * length_s) for index in range(repetitions) for step in steps]
