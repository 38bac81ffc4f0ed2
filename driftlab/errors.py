"""The errors driftlab raises on purpose: one root, so a caller can catch them all.

This module is the only one that every layer may import; it imports nothing from driftlab.
"""

from __future__ import annotations

import difflib
import reprlib
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MOST_QUOTED = 120  # characters of a value that a message quotes
MOST_LINE = 400  # characters of another library's message


class DriftlabError(Exception):
    """Root of every error that driftlab raises on purpose."""


class RequestError(DriftlabError):
    """The request is wrong: the message says what was given, what is allowed and what to do (exit code 2)."""


class DataError(RequestError):
    """A stream, a file or a run folder cannot be read as what it claims to be."""


class RunError(DriftlabError):
    """The request was right and the run failed all the same (exit code 1)."""


class BackendLost(RunError):
    """What the nodes run on has gone: no cell of this run can go on, though another run can continue it."""


class WireError(DriftlabError):
    """A message between nodes is torn, stale, replayed or foreign, and was refused."""


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> RequestError:
    """Say that a name is not known, what was probably meant, and what is allowed."""
    names = sorted(allowed)
    close = difflib.get_close_matches(given[:MOST_QUOTED], names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return RequestError(f"Unknown {kind} '{shortened(given)}'.{hint} Known: {', '.join(names) or 'none'}.")


@contextmanager
def needed_import(need: str, cure: str, kind: type[DriftlabError] = RequestError) -> Iterator[None]:
    """Say of an import that fails what needs it, and what to do."""
    try:
        yield
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision was built for another torch
        raise kind(f"{need}, which cannot be imported here ({error}). {cure}") from error


def first_line(error: BaseException) -> str:
    """Cut an error down to what it says first; one that says nothing has at least a name."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return shortened(line, MOST_LINE)


def quoted(value: object) -> str:
    """Write a value as Python does, shortened where it is long, deep or a number of too many digits."""
    return shortened(_QUOTER.repr(value))


def as_typed(*words: object) -> str:
    """Write words of a command so that a shell takes each as one, whatever characters a path has."""
    return shlex.join(map(str, words))


def shortened(text: str, most: int = MOST_QUOTED) -> str:
    """Cut a text to what a message has room for."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


class _Quoter(reprlib.Repr):
    """Writes so much of a value as a message has room for, however large the value is."""

    def repr_int(self, value: int, level: int) -> str:
        return f"a whole number of {value.bit_length()} bits" if value.bit_length() > MOST_QUOTED else repr(value)


_QUOTER = _Quoter()
_QUOTER.maxstring = _QUOTER.maxother = MOST_QUOTED
_QUOTER.maxdict = _QUOTER.maxlist = _QUOTER.maxtuple = 8
