"""New names of things that had another name during development, and the hint for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

# Keys of specs, parameters, members, systems, columns, tables, options, figures and routes: one table serves them all,
# since a new name is only suggested where it exists. Several new names: the old one meant several things.
RENAMED: Mapping[str, tuple[str, ...]] = {
    # tables and their columns
    "answering_j": ("inference_j",),
    "drifts": ("appearance_drift",),
    "known_accuracy": ("val_accuracy",),
    "learn_share": ("training_share",),
    "learning_j": ("training_j",),
    "pictures": ("snapshots",),
    "place": ("learner_site",),
    "share": ("inference_share",),
    "steady": ("static_scene",),
    "teach_end_s": ("label_end_s",),
    "teach_start_s": ("label_start_s",),
    "unknown": ("unlisted_labels",),
    "way": ("training_config",),
    "work_s": ("isolated_s",),
    # figures and words of reports
    "answer_ms": ("latency_ms",),
    "cannot tell": ("inconclusive",),
    "horizon": ("training_horizon",),
    "knobs": ("parameter_sweep",),
    "learners": ("compute_shares",),
    "paging": ("switching_cost",),
    "streets": ("per_workload",),
    "timeline": ("allocation_timeline",),
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
