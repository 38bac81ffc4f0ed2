"""Measure the processor time of commands that compute no run, as JSON lines.

All commands run in turn, each in its own process; medians are compared. The dry run is that of the experiment with the
most cells. `doctor` also counts the processes that it starts and waits for.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile

from _shared import options_of, report

GOALS_S = {"--help": 0.4, "list": 0.6, "run tta-streams --set size=full --dry-run": 1.5, "doctor": 3.0}
BARE = {"python": "pass", "pyarrow": "import pyarrow"}


def processor_s(*arguments: str) -> float:
    """Return the processor time of Python with these arguments, and of the processes that it waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile() as errors:
        done = subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=errors, check=False)
        errors.seek(0)
        if done.returncode not in (0, 1):  # `doctor` ends with 1 where a check fails
            raise RuntimeError(errors.read().decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--commands", nargs="+", default=list(GOALS_S), metavar="COMMAND")
    options = options_of(parser, repeats=1, commands=["--help", "list"])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    programs = {name: ["-c", code] for name, code in BARE.items()}
    programs |= {command: ["-m", "driftlab", *command.split()] for command in options.commands}
    measured = [{name: processor_s(*words) for name, words in programs.items()} for _ in range(options.repeats)]
    medians = {name: statistics.median(times[name] for times in measured) for name in programs}
    for command in options.commands:
        line = {
            "benchmark": "commands",
            "command": command,
            "processor_s": round(medians[command], 3),
            **{f"{name}_s": round(medians[name], 3) for name in BARE},
            "ratio_to_pyarrow": round(medians[command] / medians["pyarrow"], 2),
            **({"goal_s": GOALS_S[command]} if command in GOALS_S else {}),
        }
        report(line)
