"""Create, lock and clean up run folders."""

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

from driftlab.errors import DataError, RequestError, as_typed
from driftlab.platform.core.documents import as_yaml, read_json, read_text
from driftlab.platform.core.files import explain_refusal, make_folder, write_atomically

RUNS = Path("runs")  # the default place of run folders
SPEC, INFO, LOCK, LOG = "spec.yaml", "run.json", ".lock", "log.jsonl"
ATTEMPTS = 10  # to lock a folder that other processes remove


def fresh(name: str) -> Path:
    """Return the folder of a new run: experiment, time, and a random suffix against collisions."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return RUNS / f"{name}-{stamp}-{secrets.token_hex(3)}"


@contextlib.contextmanager
def begin_run(path: Path, spec: dict[str, Any]) -> Iterator[Path]:
    """Create and lock the folder of a new run; a RequestError in the block removes the run's files.

    Two runs may be started in one folder, so it is checked, written and emptied only under the lock.
    """
    refuse_filled(path)  # before a lock file is written to a folder of other content
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
    """Write the spec of a new run into its folder; return the resolved path."""
    refuse_filled(path)
    with _cannot_write(path):
        make_folder(path)
        write_spec(path, spec)  # first: from here on the folder can be continued
        make_folder(path / "tables")
    return path.resolve()


def write_spec(path: Path, spec: dict[str, Any]) -> None:
    """Write the complete spec of a run, atomically."""
    write_atomically(path / SPEC, as_yaml(spec))


def refuse_filled(path: Path) -> None:
    """Raise RequestError for a folder that cannot take a new run."""
    with _cannot_write(path):
        if path.exists() and not path.is_dir():
            raise RequestError(f"'{path}' is no folder; choose another --out.")
        if path.exists() and any(part.name != LOCK for part in path.iterdir()):
            go_on = f"continue it with {as_typed('--resume', path)}, or"
            hint = go_on if is_run(path) else "it is not a run, and nothing in it was touched;"
            raise RequestError(f"Output folder '{path}' is not empty: {hint} choose another --out.")


def _cannot_write(path: Path) -> contextlib.AbstractContextManager[None]:
    return explain_refusal(f"Cannot write to output folder '{path}'", "Choose another --out.")


@contextlib.contextmanager
def _lock_made(path: Path) -> Iterator[None]:
    """Create and lock a folder; retry if another process removes it in between."""
    with contextlib.ExitStack() as held:
        with _cannot_write(path):
            for attempt in range(ATTEMPTS):
                try:
                    make_folder(path)
                    held.enter_context(locked(path))
                    break
                except FileNotFoundError:
                    if attempt == ATTEMPTS - 1:
                        raise
        yield


def keep_info(path: Path, provenance: Callable[[], dict[str, Any]]) -> None:
    """Write a run's provenance if it is missing or damaged."""
    try:
        read_json(read_text(path / INFO))
    except (OSError, ValueError, DataError):
        write_atomically(path / INFO, json.dumps(provenance(), indent=2, sort_keys=True) + "\n")


def add_info(path: Path, name: str, value: str) -> None:
    """Add a fact to a run's provenance; one that is known already stays."""
    info = read_json(read_text(path / INFO))
    if name not in info:
        write_atomically(path / INFO, json.dumps({**info, name: value}, indent=2, sort_keys=True) + "\n")


def clear_other_code(path: Path, code: str) -> None:
    """Clear the code digest in a run's provenance if other code continues the run."""
    info = read_json(read_text(path / INFO))
    if info.get("code_digest") not in (None, code):
        write_atomically(path / INFO, json.dumps({**info, "code_digest": None}, indent=2, sort_keys=True) + "\n")


def missing(path: Path) -> list[Path]:
    """List the folders of a path that do not exist, innermost first."""
    return [folder for folder in (path.absolute(), *path.absolute().parents) if not os.path.exists(folder)]


def forget_unused(path: Path) -> None:
    """Remove the files of a run that wrote no table; other files and folders with tables stay."""
    tables = path / "tables"
    if any(tables.rglob("*.parquet")):
        return
    for name in (SPEC, INFO, LOG):
        (path / name).unlink(missing_ok=True)
    _remove_empty([*sorted((part for part in tables.rglob("*") if part.is_dir()), reverse=True), tables])


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # missing, or not empty
            folder.rmdir()


def is_run(path: Path) -> bool:
    """Return whether a folder holds a run's spec."""
    return (path / SPEC).is_file()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a run folder; the kernel releases it when the process ends."""
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
    """Return whether an open file still has its name; its owner may have removed it during the open."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    return False
