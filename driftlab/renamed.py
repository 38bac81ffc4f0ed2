"""New names of things that had another name during development, and the hint for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

# Keys of specs, parameters, members, systems, columns, tables, options, figures and routes: one table serves them all,
# since a new name is only suggested where it exists. Several new names: the old one meant several things.
RENAMED: Mapping[str, tuple[str, ...]] = {
    "low_fps": ("min_fps",),
    "high_fps": ("max_fps",),
    "first_fps": ("initial_fps",),
    "most_steps": ("max_steps",),
    "shortest_s": ("min_interval_s",),
    "longest_s": ("max_interval_s",),
    "slowdown": ("adaptive_training",),
    "longest": ("max_stretch",),
    "target": ("phi_target",),
    "values": ("value_format",),
    "mask": ("mask_encoding",),
    "feedback": ("error_feedback",),
}


def name_hint(given: str, known: Collection[str]) -> str:
    """Return a sentence with the new name of a renamed thing, else the most similar known name; empty if none is."""
    if now := [name for name in RENAMED.get(given, ()) if name in known]:
        return f" It is now '{now[0]}'."
    close = difflib.get_close_matches(given, known, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def name_note(given: str, known: Collection[str]) -> str:
    """Return the same hint in brackets, for the middle of a sentence."""
    hint = name_hint(given, known).strip().removesuffix(".")
    return f" ({hint[0].lower()}{hint[1:]})" if hint else ""
