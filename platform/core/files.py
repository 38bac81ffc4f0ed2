"""Atomic writes: a file is complete or absent, even if the writer is killed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
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
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


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
