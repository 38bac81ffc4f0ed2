"""The errors that driftlab raises for its users, and helpers that write their messages.

Every module may import this one; it imports only the table of renamed things.
"""

from __future__ import annotations

import reprlib
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from driftlab.renamed import name_hint

MAX_QUOTED = 120  # characters of a value that a message quotes
MAX_LINE = 400  # characters of another library's message


class DriftlabError(Exception):
    """Base class of all errors of driftlab; its message is for the user."""


class RequestError(DriftlabError):
    """The request is invalid: the message has the value, the allowed values and the fix (exit code 2)."""


class DataError(RequestError):
    """A stream, a file or a run folder is missing, damaged or of another format."""


class RunError(DriftlabError):
    """A valid request failed while it ran (exit code 1)."""


class BackendLost(RunError):
    """The processes that host the nodes have ended: this run stops, but can be resumed."""


class WireError(DriftlabError):
    """A message between nodes was refused: incomplete, stale, repeated or foreign."""


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> RequestError:
    """Return the error for an unknown name, with the most similar name and all allowed ones."""
    names = sorted(allowed)
    hint = name_hint(given[:MAX_QUOTED], names)
    return RequestError(f"Unknown {kind} '{shortened(given)}'.{hint} Known: {', '.join(names) or 'none'}.")


@contextmanager
def needed_import(feature: str, fix: str, kind: type[DriftlabError] = RequestError) -> Iterator[None]:
    """Convert an import error in the block to an error with the feature that needs it, and the fix."""
    try:
        yield
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision was built for another torch
        raise kind(f"{feature}, which cannot be imported here ({error}). {fix}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without a final full stop; its class if empty."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return shortened(line, MAX_LINE)


def quoted(value: object) -> str:
    """Return the repr of a value, shortened if it is long, deeply nested or a number of many digits."""
    return shortened(_QUOTER.repr(value))


def as_typed(*words: object) -> str:
    """Join the words of a command, quoted for a shell."""
    return shlex.join(map(str, words))


def shortened(text: str, most: int = MAX_QUOTED) -> str:
    """Cut a text to a length, with an ellipsis as its last character."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


class _Quoter(reprlib.Repr):
    """A repr of limited length for values of any size."""

    def repr_int(self, value: int, level: int) -> str:
        return f"a whole number of {value.bit_length()} bits" if value.bit_length() > MAX_QUOTED else repr(value)


_QUOTER = _Quoter()
_QUOTER.maxstring = _QUOTER.maxother = MAX_QUOTED
_QUOTER.maxdict = _QUOTER.maxlist = _QUOTER.maxtuple = 8
