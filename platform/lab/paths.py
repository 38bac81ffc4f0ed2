"""The folder of a run: created atomically, locked while a process works in it, refused when it is something else."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from driftlab.errors import DataError, RequestError, as_typed
from driftlab.platform.core.documents import read_json, read_text
from driftlab.platform.core.files import explain_refusal, write_atomically

RUNS = Path("runs")  # the default place of run folders
SPEC, INFO, LOCK, LOG = "spec.yaml", "run.json", ".lock", "log.jsonl"
ATTEMPTS = 10  # to lock a folder that others remove


def fresh(name: str) -> Path:
    """Name the folder of a new run by experiment and time; two started in one second differ by chance."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return RUNS / f"{name}-{stamp}-{secrets.token_hex(3)}"


@contextlib.contextmanager
def begin_run(path: Path, spec: dict[str, Any]) -> Iterator[Path]:
    """Make the folder of a new run and hold its lock; a request that is refused meanwhile leaves nothing of the run.

    Two runs may be started into one folder: it is looked at, written and emptied again under the lock alone.
    """
    _refuse_filled(path)  # before a lock file is put into a folder that is not ours
    made = missing(path)
    with _lock_made(path):
        try:
            directory = new_run(path, spec)
            try:
                yield directory
            except RequestError:
                forget_unused(directory)
                raise
        finally:
            if not is_run(path):
                (path / LOCK).unlink(missing_ok=True)
                _remove_empty(made)


def new_run(path: Path, spec: dict[str, Any]) -> Path:
    """Write a new run's spec into its folder."""
    _refuse_filled(path)
    with _cannot_write(path):
        path.mkdir(parents=True, exist_ok=True)
        write_spec(path, spec)  # first: from here on the folder can be continued
        (path / "tables").mkdir(exist_ok=True)
    return path.resolve()


def write_spec(path: Path, spec: dict[str, Any]) -> None:
    """Write what a run is asked for, in full."""
    write_atomically(path / SPEC, yaml.safe_dump(spec, sort_keys=False, allow_unicode=True))


def _refuse_filled(path: Path) -> None:
    with _cannot_write(path):
        if path.exists() and (not path.is_dir() or any(part.name != LOCK for part in path.iterdir())):
            hint = (
                f"continue it with {as_typed('--resume', path)}"
                if is_run(path)
                else "it is not a run; nothing in it was touched"
            )
            raise RequestError(f"Output folder '{path}' is not empty: {hint}, or choose another --out.")


def _cannot_write(path: Path) -> contextlib.AbstractContextManager[None]:
    return explain_refusal(f"Cannot write to output folder '{path}'", "Choose another --out.")


@contextlib.contextmanager
def _lock_made(path: Path) -> Iterator[None]:
    """Make a folder and lock it, again if another run that was refused removes it in between."""
    with contextlib.ExitStack() as held:
        with _cannot_write(path):
            for attempt in range(ATTEMPTS):
                path.mkdir(parents=True, exist_ok=True)
                try:
                    held.enter_context(locked(path))
                    break
                except FileNotFoundError:
                    if attempt == ATTEMPTS - 1:
                        raise
        yield


def keep_info(path: Path, provenance: Callable[[], dict[str, Any]]) -> None:
    """Write a run's provenance where it is missing or damaged; what is there stays."""
    try:
        read_json(read_text(path / INFO))
    except (OSError, ValueError, DataError):
        write_atomically(path / INFO, json.dumps(provenance(), indent=2, sort_keys=True) + "\n")


def clear_other_code(path: Path, code: str) -> None:
    """Clear the digest of the code in a run's provenance where other code continues the run."""
    info = read_json(read_text(path / INFO))
    if info.get("code_digest") not in (None, code):
        write_atomically(path / INFO, json.dumps({**info, "code_digest": None}, indent=2, sort_keys=True) + "\n")


def missing(path: Path) -> list[Path]:
    """List a folder and those around it, from the inside out, as far as they are not there yet."""
    return [folder for folder in (path.absolute(), *path.absolute().parents) if not os.path.exists(folder)]


def forget_unused(path: Path) -> None:
    """Remove what a run that never began has written; a folder that holds any table stays, and so do others' files."""
    tables = path / "tables"
    if any(tables.rglob("*.parquet")):
        return
    for name in (SPEC, INFO, LOG):
        (path / name).unlink(missing_ok=True)
    _remove_empty([*sorted((part for part in tables.rglob("*") if part.is_dir()), reverse=True), tables])


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # it is not there, or has something in it
            folder.rmdir()


def is_run(path: Path) -> bool:
    """Tell whether a folder was made by a run."""
    return (path / SPEC).is_file()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Work in a run folder alone; the lock goes with the process that holds it, however that ends."""
    while True:
        with os.fdopen(os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RequestError(f"Another driftlab is working in '{path}'; wait for it or stop it.") from error
            if _is_still(path / LOCK, file.fileno()):
                yield
                return


def _is_still(path: Path, descriptor: int) -> bool:
    """Tell whether an open file still has its name: its owner may have removed it while this process opened it."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    return False
