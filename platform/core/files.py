"""Files that are whole or not there, however their writer ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Give a draft to write, which takes the file's place once it is done; a failure leaves nothing of it."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a text or bytes, at once as far as any reader can tell."""
    with whole(file) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
