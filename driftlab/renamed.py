"""New names of things that had another name during development, and the hint for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

# Keys of specs, parameters, members, systems, columns, tables, options, figures and routes: one table serves them all,
# since a new name is only suggested where it exists. Several new names: the old one meant several things.
RENAMED: Mapping[str, tuple[str, ...]] = {
    "lesson_s": ("training_batch_s",),
    "domains": ("domain_labels",),
    "observed": ("accuracy_source",),
    "live": ("run_networks",),
    "watches": ("workload",),
    "like": ("extends",),
    "elsewhere": ("pretrain_set",),
    "elsewhere_steps": ("pretrain_set_steps",),
    "elsewhere_epochs": ("pretrain_set_epochs",),
    "pretrain_rate": ("pretrain_learning_rate",),
    "prune_rate": ("prune_learning_rate",),
    "grow_rate": ("grow_learning_rate",),
    "controller_rate": ("controller_learning_rate",),
    "architecture_rate": ("architecture_learning_rate",),
    "least": ("min_apps",),
    "most": ("max_apps",),
    "start": ("arrival_prob",),
    "stop": ("departure_prob",),
    "change": ("change_prob",),
    "flicker": ("label_jitter_px",),
    "null_link": ("zero_delay_link",),
    "do_nothing": ("no_adaptation",),
    "course": ("schedule",),
    "every_s": ("period_s",),
    "damaged": ("damage_prob",),
    "memory_of_noise": ("noise_correlation",),
    "slow_clock": ("throttled_clock",),
    "null": ("zero-delay",),
    "--beside": ("--compare-to",),
    "--rack": ("--devices-per-actor",),
    "--film": ("--video",),
    "--sessions": ("--max-sessions",),
    "--rate": ("--rate-limit",),
    "--folder": ("--state-dir",),
    "--spread": ("--ramp-up",),
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
