"""The folder of a run: made whole, locked while someone works in it, refused when it is something else."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from driftlab.errors import RequestError

RUNS = Path("runs")  # where they are kept when nobody says otherwise
SPEC, INFO, LOCK, LOG = "spec.yaml", "run.json", ".lock", "log.jsonl"


def new_run(out: Path | None, name: str, spec: dict[str, Any]) -> Path:
    """Make the folder of a new run with its spec."""
    text = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
    path = out if out is not None else RUNS / _fresh_name(name)
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            hint = f"continue it with --resume {path}" if is_run(path) else "it is not a run; nothing in it was touched"
            raise RequestError(f"Output folder '{path}' is not empty: {hint}, or choose another --out.")
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / SPEC, text)  # first: from here on the folder can be continued
        (path / "tables").mkdir(exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"Cannot write to output folder '{path}': {error.strerror}. Choose another --out."
        ) from error
    return path.resolve()


def existing_run(path: Path) -> dict[str, Any]:
    """Read the spec of a run that is to be continued."""
    if not path.is_dir():
        raise RequestError(f"There is no run folder '{path}'. Give the folder that an earlier run printed.")
    if not is_run(path):
        raise RequestError(f"'{path}' is not a run folder: it has no {SPEC}. Give the folder that a run printed.")
    try:
        spec = yaml.safe_load((path / SPEC).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RequestError(f"'{path / SPEC}' is damaged ({error}); start the experiment anew.") from error
    if not isinstance(spec, dict):
        raise RequestError(f"'{path / SPEC}' is damaged (no mapping); start the experiment anew.")
    if not os.access(path, os.W_OK):
        raise RequestError(f"Run folder '{path}' is not writable; change its permissions or start anew with --out.")
    return spec


def keep_info(path: Path, provenance: Callable[[], dict[str, Any]]) -> None:
    """Write a run's provenance where it is missing or damaged; what is there stays."""
    try:
        json.loads((path / INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        write_atomically(path / INFO, json.dumps(provenance(), indent=2, sort_keys=True) + "\n")


def missing_above(out: Path | None) -> list[Path]:
    """List the folders around a new run that are not there yet, from the inside out."""
    around = RUNS.absolute() if out is None else out.absolute().parent
    return [folder for folder in (around, *around.parents) if not os.path.exists(folder)]


def forget_unused(path: Path, made: Sequence[Path]) -> None:
    """Remove a run that never began, and what was made around it and is empty; one that holds any table stays."""
    if any((path / "tables").rglob("*.parquet")):
        return
    shutil.rmtree(path)
    for folder in made:
        with contextlib.suppress(OSError):  # someone else has come to use it
            folder.rmdir()


def is_run(path: Path) -> bool:
    """Tell whether a folder was made by a run."""
    return (path / SPEC).is_file()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Work in a run folder alone; the lock goes with the process that holds it, however that ends."""
    with (path / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RequestError(f"Another driftlab is working in '{path}'; wait for it or stop it.") from error
        yield


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is either whole or not there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _fresh_name(name: str) -> str:
    """Name a run by experiment and time; two started in one second differ by chance."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return f"{name}-{stamp}-{secrets.token_hex(3)}"
