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
from driftlab.platform.core.files import write_whole

RUNS = Path("runs")  # where they are kept when nobody says otherwise
SPEC, INFO, LOCK, LOG = "spec.yaml", "run.json", ".lock", "log.jsonl"


def fresh(name: str) -> Path:
    """Name the folder of a new run by experiment and time; two started in one second differ by chance."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return RUNS / f"{name}-{stamp}-{secrets.token_hex(3)}"


def new_run(path: Path, spec: dict[str, Any]) -> Path:
    """Make the folder of a new run with its spec."""
    text = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            hint = f"continue it with --resume {path}" if is_run(path) else "it is not a run; nothing in it was touched"
            raise RequestError(f"Output folder '{path}' is not empty: {hint}, or choose another --out.")
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / SPEC, text)  # first: from here on the folder can be continued
        (path / "tables").mkdir(exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"Cannot write to output folder '{path}': {error.strerror}. Choose another --out."
        ) from error
    return path.resolve()


def keep_info(path: Path, provenance: Callable[[], dict[str, Any]]) -> None:
    """Write a run's provenance where it is missing or damaged; what is there stays."""
    try:
        json.loads((path / INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        write_whole(path / INFO, json.dumps(provenance(), indent=2, sort_keys=True) + "\n")


def missing(path: Path) -> list[Path]:
    """List a folder and those around it, from the inside out, as far as they are not there yet."""
    return [folder for folder in (path.absolute(), *path.absolute().parents) if not os.path.exists(folder)]


def forget_unused(path: Path, made: Sequence[Path]) -> None:
    """Empty the folder of a run that never began, and remove what was made for it; one that holds any table stays."""
    if any((path / "tables").rglob("*.parquet")):
        return
    for part in path.iterdir():
        shutil.rmtree(part) if part.is_dir() else part.unlink()
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
