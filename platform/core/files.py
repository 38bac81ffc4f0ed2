"""Atomic writes: a file is complete or absent, even after a kill or a power cut. Private folders."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from driftlab.errors import RequestError

DRAFT = re.compile(r"\..+\.\d+\.tmp")


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """Yield the path of a draft that replaces the file at the end; a failure removes the draft."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        yield draft
        sync(draft)  # before the rename: it may reach the disk first
        draft.replace(file)
        sync(file.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Return once a file, or the list of a folder's entries, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents unless they exist; their entries are on disk afterwards."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in reversed(missing):
        sync(one.parent)


def append_lines(file: Path, lines: Iterable[str]) -> None:
    """Append lines to a file; they are on disk afterwards."""
    with file.open("a", encoding="utf-8") as sink:
        sink.writelines(f"{line}\n" for line in lines)
    sync(file)
    sync(file.parent)


def is_writable(folder: Path) -> bool:
    """Return whether files can be written to a folder, or to the one in which it would be made."""
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def check_private(folder: Path) -> None:
    """Refuse a folder that another user owns or can write to: its files could be planted."""
    facts = folder.stat()
    if facts.st_uid != os.geteuid():
        raise RequestError(f"'{folder}' belongs to user {facts.st_uid}, not to you. Use a folder of your own.")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RequestError(
            f"Other users can write to '{folder}' (mode {stat.S_IMODE(facts.st_mode):o}). Use a new folder, or check "
            f"its files and run `chmod go-w '{folder}'`."
        )


def remove_drafts(folder: Path) -> None:
    """Remove the drafts that killed writers have left in a folder in which no other process writes."""
    for file in folder.rglob(".*.tmp"):
        if DRAFT.fullmatch(file.name) and file.is_file():
            file.unlink(missing_ok=True)


def write_atomically(file: Path, content: str | bytes) -> None:
    """Write text or bytes so that no reader sees a part of them."""
    with atomic_write(file) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def explain_refusal(what: str, fix: str) -> Iterator[None]:
    """Turn a refusal of the file system into an error of the request that says how to fix it."""
    try:
        yield
    except OSError as error:
        raise RequestError(f"{what}: {error.strerror}. {fix}") from error
