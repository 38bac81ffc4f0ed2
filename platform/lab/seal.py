"""Run or resume an experiment in its folder, for the command line and the public functions."""

from __future__ import annotations

import os
import platform as host
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from driftlab.errors import RequestError
from driftlab.platform.core.documents import shape_fault
from driftlab.platform.core.files import remove_drafts
from driftlab.platform.core.spec import Spec
from driftlab.platform.lab import paths
from driftlab.platform.lab.cells import agreement_of, check_files, resolved
from driftlab.platform.lab.grid import Outcome, run_grid
from driftlab.platform.lab.plan import keep_replaced, plan_of
from driftlab.platform.lab.progress import Log, Progress, now
from driftlab.platform.lab.read import Experiment, load, parse
from driftlab.platform.networks.training.artifacts import version_of
from driftlab.platform.results.tables.read import read_info, read_request
from driftlab.platform.results.tables.sources import cells_digest, code_digest
from driftlab.platform.sim import portable
from driftlab.platform.sim.host import check_torch_device, in_batch, rare_garbage_searches
from driftlab.platform.sim.inline import InlineBackend
from driftlab.platform.sim.session import Backend

PACKAGES = ("driftlab", "torch", "torchvision", "ray", "numpy", "pyarrow", "opencv-python-headless", "av", "simpy")
INSTRUCTIONS = ("avx512f", "avx2", "avx")  # the widest is recorded: the rounding of sums depends on the width
# Read at the first run of a process: a file that is edited later is not the code that this process runs.
_code_digest, _cells_digest = cache(code_digest), cache(cells_digest)


def run(
    experiment: str | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    open_backend: Callable[[], Backend] = InlineBackend,
    progress: Progress | None = None,
) -> Outcome:
    """Run an experiment given by name, file or document; the outcome holds the folder of the tables."""
    spec = load(experiment, overrides) if isinstance(experiment, str) else parse(experiment, overrides)
    check_torch_device(spec.compute.torch_device)
    portable.check(spec.compute.portable)
    with create_run(spec, None if out is None else Path(out)) as directory:
        return execute(spec, directory, open_backend, progress or Progress())


def resume(
    directory: str | Path,
    *,
    open_backend: Callable[[], Backend] = InlineBackend,
    progress: Progress | None = None,
) -> Outcome:
    """Continue an interrupted run: finished cells are kept, all others are run."""
    spec, path = open_run(Path(directory))
    with paths.locked(path):
        return execute(spec, path, open_backend, progress or Progress())


@contextmanager
def create_run(spec: Experiment, out: Path | None) -> Iterator[Path]:
    """Create and lock the folder of a new run; a RequestError in the block removes its files."""
    with paths.begin_run(paths.fresh(spec.name) if out is None else out, resolved(spec)) as directory:
        yield directory


def open_run(path: Path) -> tuple[Experiment, Path]:
    """Read the spec of a run folder; rewrite it in full if it was edited and is incomplete."""
    document = read_request(path)
    read_info(path)  # the report at the end requires it
    spec = parse(document, source=str(path / paths.SPEC))
    if not os.access(path, os.W_OK):
        raise RequestError(
            f"Run folder '{path}' is not writable; change its permissions or start a new run with --out."
        )
    if shape_fault(Spec, document, lenient=True):
        paths.write_spec(path, resolved(spec))
    return spec, path.resolve()


def execute(spec: Experiment, directory: Path, open_backend: Callable[[], Backend], progress: Progress) -> Outcome:
    """Run the remaining cells of a locked run folder, then close the backend."""
    portable.check(spec.compute.portable)
    plan = plan_of(spec, directory)
    with (directory / paths.LOG).open("a", encoding="utf-8") as file, in_batch():
        if plan.todo:
            check_files(spec)
        remove_drafts(directory)
        keep_replaced(directory, [cell for cells in plan.again.values() for cell in cells])
        digest = {"cells_digest": _cells_digest(spec.name, spec.size)}
        paths.keep_info(directory, lambda: {**provenance(), **agreement_of(spec), **digest})
        if plan.todo:
            paths.clear_other_code(directory, _code_digest())
        backend = open_backend()
        try:
            with rare_garbage_searches():
                return run_grid(spec, plan, backend, directory, Log(file, progress))
        finally:
            backend.close()


def provenance() -> dict[str, Any]:
    """Return time, command, code, packages and host of a run, to explain differences between hosts."""
    return {
        "started": now(),
        "command": [_program(), *sys.argv[1:]],
        "python": host.python_version(),
        "machine": host.machine(),
        "processor": _cpu("model name") or host.processor() or None,
        "instructions": next((name for name in INSTRUCTIONS if name in (_cpu("flags") or "").split()), None),
        "system": f"{host.system()} {host.release()}",
        "cores": os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
        "code_digest": _code_digest(),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed": bool(_git("status", "--porcelain")),
    }


def _program() -> str:
    """Return the program as a user types it; `python -m driftlab` runs as `__main__.py`."""
    name = Path(sys.argv[0]).name
    return "driftlab" if name == "__main__.py" else name


def _cpu(field: str) -> str | None:
    """Read an entry of the first processor from the system's list."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(field):
                return line.partition(":")[2].strip()
    return None


def _version(package: str) -> str | None:
    try:
        return version_of(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _git(*words: str) -> str | None:
    """Query git for the running code; None outside a checkout."""
    try:
        result = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
