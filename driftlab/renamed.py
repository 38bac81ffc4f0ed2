"""New names of things that had another name during development, and the hint for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

# Keys of specs, parameters, members, systems, columns, tables, options, figures and routes: one table serves them all,
# since a new name is only suggested where it exists. Several new names: the old one meant several things.
RENAMED: Mapping[str, tuple[str, ...]] = {
    "agreement": ("consistency_weight",),
    "alpha": ("replay_weight",),
    "answers": ("predict_on",),
    "beside": ("concurrent",),
    "beta": ("fisher_weight",),
    "confidence": ("confidence_threshold",),
    "count": ("augmentations",),
    "elasticdnn_taught": ("elasticdnn_teacher",),
    "every": ("reset_steps", "every_batches", "every_frames"),
    "faithful": ("no_stabilisation",),
    "follow": ("centre_momentum",),
    "instead": ("exclusive",),
    "keep": ("features_per_class",),
    "learns": ("training_runs",),
    "least": ("min_confidence",),
    "lengths": ("step_choices",),
    "likeness": ("redundancy_margin",),
    "memory": ("ema_decay",),
    "mixing": ("mixup_alpha",),
    "now": ("frame",),
    "past": ("past_style_prob",),
    "per_class": ("replay_per_class",),
    "per_domain": ("replay_per_domain",),
    "radius": ("sam_radius",),
    "recover_below": ("reset_threshold",),
    "replayed": ("replay_per_domain",),
    "restore": ("restore_prob",),
    "settings": ("member_params",),
    "share": ("bn_momentum",),
    "slope": ("reset_slope",),
    "slower": ("block_lr_divisor",),
    "small_rate": ("discriminator_learning_rate",),
    "spared": ("frozen_norm_share",),
    "sparing": ("sparse",),
    "speed": ("ema_rate",),
    "threshold": ("entropy_margin",),
    "weight": ("adversarial_weight",),
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
