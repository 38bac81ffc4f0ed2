"""Record the products of a source tree: tables, specs, reports, claims, frames and cache keys.

Only the command line of driftlab is used, so that one recorder serves trees whose modules have other names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from golden_compare import TREE, is_excluded

HERE = Path(__file__).resolve().parent
DEFINITIONS = HERE / "definitions"
OWN_DEFINITIONS, OWN_REQUESTS = Path("tests/golden/definitions"), Path("tests/golden/golden_requests.py")  # of a tree
PROCESSES = 2
POLL_S, RAY_STARTS = 0.01, 3
SHOWN = "shown"  # the output of `show` for every name, and pictures
REQUESTS = "requests"  # specs of all experiments, and refusals
DRAWN = ("workloads", "shifts", "loads")
UNDRAWN = ("shifts/subpopulation", "loads/idle")  # they choose pictures, or nothing runs
# Several commands in one process: importing torch and starting Python would take longer than most of them.
BATCH = """
import contextlib, io, json, pathlib, runpy, sys
commands, refused = json.load(sys.stdin)
for arguments, file in commands:
    text, sys.argv = io.StringIO(), ["driftlab", *arguments]
    code = 0
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text if refused else sys.stderr):
            runpy.run_module("driftlab", run_name="__main__", alter_sys=False)
    except SystemExit as end:
        code = end.code or 0
        if code and not refused:
            sys.exit(f"{' '.join(arguments)} ended with {code}")
    head = f"driftlab {' '.join(arguments)} ended with {code}\\n" if refused else ""
    pathlib.Path(file).write_text(head + text.getvalue(), encoding="utf-8")
"""


class RecordError(Exception):
    """A command that did not end as it should."""


@dataclass(frozen=True)
class Recorder:
    """A source tree, the folder of its recording, and the plan."""

    tree: Path
    out: Path
    plan: Mapping[str, Any]

    def drive(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run a driftlab command in the recording's folder, to which all its paths are relative."""
        return subprocess.Popen(
            [sys.executable, "-m", "driftlab", *arguments],
            cwd=self.out,
            env=self.environment(),
            stdout=self._log(arguments),
            stderr=subprocess.STDOUT,
        )

    def call(self, *arguments: str) -> None:
        """Run a command of driftlab to its end; once more where Ray could not start on a busy machine."""
        for _ in range(RAY_STARTS):
            done = self.drive(*arguments).wait()
            if not done:
                return
            if not self.lacked_ray(*arguments):
                break
        raise RecordError(f"driftlab {' '.join(arguments)} ended with {done}:\n{self.last_words(*arguments)}")

    def lacked_ray(self, *arguments: str) -> bool:
        """Return whether Ray failed to start for a command, and remove its results then."""
        if "Ray did not start" not in self.last_words(*arguments):
            return False
        shutil.rmtree(self.out / arguments[-1], ignore_errors=True)
        return True

    def last_words(self, *arguments: str) -> str:
        """Return the end of a command's output."""
        return self._log_path(arguments).read_text(encoding="utf-8", errors="replace")[-2000:]

    def call_batch(self, commands: Sequence[tuple[Sequence[str], str]], *, refused: bool = False) -> None:
        """Run commands one after another in one process, and keep the output of each in a file.

        With `refused` they may end with an error, which is kept too.
        """
        done = subprocess.run(
            [sys.executable, "-c", BATCH],
            cwd=self.out,
            env=self.environment(),
            input=json.dumps([commands, refused]),
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RecordError(f"commands on {self.tree} failed:\n{done.stderr[-2000:]}")

    def environment(self) -> dict[str, str]:
        """Return an environment in which Python imports driftlab from the tree."""
        given = {"PYTHONPATH": str(self.tree), "DRIFTLAB_CACHE": str(self.out / "cache"), "COLUMNS": "160"}
        fixed = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**os.environ, **given, **fixed}

    def check_import(self) -> None:
        """Raise an error if Python would import driftlab from another folder."""
        code = "import driftlab; print(driftlab.__file__)"
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.out,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        if not Path(found).resolve().is_relative_to(self.tree.resolve()):
            raise RecordError(f"Python imports driftlab from {found}, not from {self.tree}")

    def run(self, name: str, *options: str) -> None:
        """Run an experiment in line."""
        self.call("run", f"definitions/{name}.yaml", "--backend", "inline", *options, "--out", f"runs/{name}")

    def run_interrupted(self, name: str) -> None:
        """Run an experiment in line, kill the process after its first cell, and resume the run."""
        begun = self.drive("run", f"definitions/{name}.yaml", "--backend", "inline", "--out", f"runs/{name}")
        cells = self.out / "runs" / name / "tables" / "runs"
        killed = kill_when(begun, lambda: [begun.pid] if any(cells.glob("*.parquet")) else [])
        begun.wait()
        if not killed:
            raise RecordError(f"the run of {name} ended before it was killed")
        self.call("run", "--resume", f"runs/{name}", "--backend", "inline")

    def run_under_ray(self, name: str) -> None:
        """Run an experiment under Ray and kill one of its actors."""
        asked = ("run", f"definitions/{name}.yaml", "--workers", "1", "--out", f"runs/{name}-ray")
        for _ in range(RAY_STARTS):
            begun = self.drive(*asked)
            killed = kill_when(begun, partial(actors_of, begun.pid))
            if begun.wait() == 0 and killed:
                return
            if killed or not self.lacked_ray(*asked):
                break
        raise RecordError(f"no actor was killed, or the run did not survive it:\n{self.last_words(*asked)}")

    def search(self, searcher: str) -> None:
        """Search settings with a sampler, in its own space if it has one."""
        own = f"definitions/space-{searcher}.yaml"
        space = own if (self.out / own).is_file() else "definitions/space.yaml"
        self.call("tune", space, "--searcher", searcher, "--workers", "1", "--out", f"runs/tune-{searcher}")

    def show_all(self) -> None:
        """Keep the output of `show` for every name, and draw every world, shift and load."""
        self.call_batch([(["list", "--json"], "texts/list.json")])
        listed = json.loads((self.out / "texts/list.json").read_text(encoding="utf-8"))
        commands = [command for kind in listed for command in self._shown(kind, listed[kind])]
        half = len(commands) // 2
        for part in (commands[:half], commands[half:]):
            self.call_batch(part)

    def _shown(self, kind: str, rows: Sequence[Mapping[str, str]]) -> Iterator[tuple[list[str], str]]:
        names = [row["name"] for row in rows] + (list(self.plan["worlds"]) if kind == "workloads" else [])
        for name in names:
            file = f"{kind}-{name}".replace("/", "-").replace(":", "-")
            drawn = kind in DRAWN and f"{kind}/{name}" not in UNDRAWN and name == name.lower()
            picture = ["--image", f"pictures/{file}.png"] if drawn else []
            yield ["show", f"{kind}/{name}", "--json", *picture], f"texts/show-{file}.json"

    def ask_all(self) -> None:
        """Record every experiment in every size as read, and the errors of faulty requests and runs."""
        own = requests_of(self.tree)
        folder = self.out / own.FOLDER
        folder.mkdir()
        (folder / "tiny.yaml").write_text(yaml.safe_dump(dict(own.TINY)), encoding="utf-8")
        self.call("run", f"{own.FOLDER}/tiny.yaml", "--backend", "inline", "--out", own.STORED)
        files = sorted(self.tree.glob("platform/*/experiments/*.yaml"))
        heads = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}
        requests = own.write_requests(self.out, {name: list(head.get("sizes", {})) for name, head in heads.items()})
        (self.out / "texts" / own.FOLDER).mkdir()
        self.call_batch([(one.words, f"texts/{own.FOLDER}/{one.name}.txt") for one in requests], refused=True)

    def judge(self) -> None:
        """Write every report again, and a run's claims, figures of two runs, and a CSV export."""
        runs = sorted((self.out / "runs").iterdir())
        names = [path.name for path in runs if not path.name.startswith("tune-")]
        for run in runs:
            fix_host_columns(run)
        commands: list[tuple[list[str], str]] = []
        commands += [(["report", f"runs/{run.name}"], f"texts/report-{run.name}.txt") for run in runs]
        for name in names:
            commands.append((["claims", f"runs/{name}", "--json"], f"texts/claims-{name}.json"))
            commands.append((["claims", f"runs/{name}"], f"texts/claims-{name}.txt"))
        if (one := self.plan["exported"]) in names:
            compared = ["diff", f"runs/{one}", f"runs/{one}", "--tolerance", "0.1"]
            commands.append((compared, "texts/beside.txt"))
            commands.append((["export", f"runs/{one}", "--to", "csv", "--out", "csv"], "texts/export.txt"))
        self.call_batch(commands)

    def jobs(self) -> list[Callable[[], None]]:
        """List the jobs that may run at the same time, longest first."""
        interrupted = self.plan["interrupted"]
        runs = [partial(self.run_interrupted if one in interrupted else self.run, one) for one in self.plan["runs"]]
        shown = [self.show_all] if self.plan.get(SHOWN, True) else []
        asked = [self.ask_all] if self.plan.get(REQUESTS, True) else []
        killed = [partial(self.run_under_ray, name) for name in self.plan["actor_killed"]]
        searches = [partial(self.search, name) for name in self.plan["searchers"]]
        return [*runs, *asked, *shown, *killed, *searches]

    def _log_path(self, arguments: Sequence[str]) -> Path:
        name = "-".join(one for one in arguments if not one.startswith("--")).replace("/", "-")
        return self.out / "logs" / f"{name}.log"

    def _log(self, arguments: Sequence[str]) -> Any:
        return self._log_path(arguments).open("wb")


def requests_of(tree: Path) -> ModuleType:
    """Load the requests of a tree with its names; use those of this folder if the tree has none."""
    file = tree / OWN_REQUESTS
    spec = importlib.util.spec_from_file_location(
        "requests_of_tree", file if file.is_file() else HERE / OWN_REQUESTS.name
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(tree: Path, out: Path, definitions: Path | None = None, only: Sequence[str] = ()) -> float:
    """Record a tree into a new folder; return how many seconds that took.

    By default the tree's own definitions run, which use its own names.
    """
    begun_s = time.monotonic()
    own = tree / OWN_DEFINITIONS
    chosen = definitions or (own if own.is_dir() else DEFINITIONS)
    out.mkdir(parents=True)
    shutil.copytree(chosen, out / "definitions")
    (out / TREE).write_text(str(tree.resolve()), encoding="utf-8")
    for name in ("runs", "texts", "pictures", "logs", "cache"):
        (out / name).mkdir()
    plan = narrowed(yaml.safe_load((chosen / "plan.yaml").read_text(encoding="utf-8")), only)
    recorder = Recorder(tree.resolve(), out.resolve(), plan)
    recorder.check_import()
    with ThreadPoolExecutor(PROCESSES) as pool:
        jobs = [pool.submit(timed, job, out / "logs" / "seconds.txt") for job in recorder.jobs()]
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    best = f"runs/tune-{plan['searchers'][0]}/best.yaml" if plan["searchers"] else None
    if best is not None:
        recorder.run(plan["tuned"], "--tuned", best)
    recorder.judge()
    return time.monotonic() - begun_s


def narrowed(plan: dict[str, Any], only: Sequence[str]) -> dict[str, Any]:
    """Reduce a plan to some runs and searches; an empty selection leaves the plan as it is."""
    if not only:
        return plan
    known = [SHOWN, REQUESTS, *plan["runs"], *plan["searchers"]]
    if unknown := [name for name in only if name not in known]:
        raise RecordError(f"the plan has no {', '.join(unknown)}; it has {', '.join(known)}")
    chosen = {key: [name for name in plan[key] if name in only] for key in ("runs", "actor_killed", "searchers")}
    return {**plan, **chosen, SHOWN: SHOWN in only, REQUESTS: REQUESTS in only}


def timed(job: Callable[[], None], file: Path) -> None:
    """Do a job and note how long it took."""
    begun_s = time.monotonic()
    job()
    name = getattr(job, "func", job).__name__, *getattr(job, "args", ())
    with file.open("a", encoding="utf-8") as log:
        log.write(f"{time.monotonic() - begun_s:6.1f} s  {' '.join(name)}\n")


def fix_host_columns(run: Path) -> None:
    """Replace times and processes of this machine by row numbers, which makes reports comparable."""
    for file in sorted(run.glob("tables/*/*.parquet")):
        table = pq.ParquetFile(file).read()
        places = [place for place, name in enumerate(table.column_names) if is_excluded(name)]
        for place in places:
            column = table.schema.field(place)
            values = [None if value is None else row + 1 for row, value in enumerate(table[place].to_pylist())]
            table = table.set_column(place, column, pa.array(values, pa.int64()).cast(column.type))
        if places:
            pq.write_table(table, file)


def kill_when(process: subprocess.Popen[bytes], victims: Callable[[], Sequence[int]]) -> bool:
    """Kill the first victim as soon as there is one; False for a process that ends before."""
    while process.poll() is None:
        if found := victims():
            os.kill(found[0], signal.SIGKILL)
            return True
        time.sleep(POLL_S)
    return False


def actors_of(driver: int) -> list[int]:
    """Find processes below a driver that Ray has named after an actor at work."""
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        try:
            title = process.cmdline()[0]
        except (psutil.Error, IndexError):  # it ended in between
            continue
        if title.startswith("ray::") and "." in title:
            found.append(process.pid)
    return found
