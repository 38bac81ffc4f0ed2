"""New names of things that had another name during development, and the hint for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

# Keys of specs, parameters, members, systems, columns, tables, options, figures and routes: one table serves them all,
# since a new name is only suggested where it exists. Several new names: the old one meant several things.
RENAMED: Mapping[str, tuple[str, ...]] = {
    "--beside": ("--compare-to",),
    "--film": ("--video",),
    "--folder": ("--state-dir",),
    "--rack": ("--devices-per-actor",),
    "--rate": ("--rate-limit",),
    "--sessions": ("--max-sessions",),
    "--spread": ("--ramp-up",),
    "agreement": ("consistency_weight",),
    "alpha": ("replay_weight",),
    "answer_ms": ("latency_ms",),
    "answering_j": ("inference_j",),
    "answers": ("predict_on",),
    "architecture_rate": ("architecture_learning_rate",),
    "beside": ("concurrent",),
    "beta": ("fisher_weight",),
    "cannot tell": ("inconclusive",),
    "change": ("change_prob",),
    "confidence": ("confidence_threshold",),
    "controller_rate": ("controller_learning_rate",),
    "count": ("augmentations",),
    "course": ("schedule",),
    "damaged": ("damage_prob",),
    "do_nothing": ("no_adaptation",),
    "domains": ("domain_labels",),
    "drifts": ("appearance_drift",),
    "elasticdnn_taught": ("elasticdnn_teacher",),
    "elsewhere": ("pretrain_set",),
    "elsewhere_epochs": ("pretrain_set_epochs",),
    "elsewhere_steps": ("pretrain_set_steps",),
    "every": ("reset_steps", "every_batches", "every_frames"),
    "every_s": ("period_s",),
    "faithful": ("no_stabilisation",),
    "flicker": ("label_jitter_px",),
    "follow": ("centre_momentum",),
    "grow_rate": ("grow_learning_rate",),
    "horizon": ("training_horizon",),
    "instead": ("exclusive",),
    "keep": ("features_per_class",),
    "knobs": ("parameter_sweep",),
    "known_accuracy": ("val_accuracy",),
    "learn_share": ("training_share",),
    "learners": ("compute_shares",),
    "learning_j": ("training_j",),
    "learns": ("training_runs",),
    "least": ("min_apps", "min_confidence"),
    "lengths": ("step_choices",),
    "lesson_s": ("training_batch_s",),
    "like": ("extends",),
    "likeness": ("redundancy_margin",),
    "live": ("run_networks",),
    "memory": ("ema_decay",),
    "memory_of_noise": ("noise_correlation",),
    "mixing": ("mixup_alpha",),
    "most": ("max_apps",),
    "now": ("frame",),
    "null": ("zero-delay",),
    "null_link": ("zero_delay_link",),
    "observed": ("accuracy_source",),
    "paging": ("switching_cost",),
    "past": ("past_style_prob",),
    "per_class": ("replay_per_class",),
    "per_domain": ("replay_per_domain",),
    "pictures": ("snapshots",),
    "place": ("learner_site",),
    "pretrain_rate": ("pretrain_learning_rate",),
    "prune_rate": ("prune_learning_rate",),
    "radius": ("sam_radius",),
    "recover_below": ("reset_threshold",),
    "replayed": ("replay_per_domain",),
    "restore": ("restore_prob",),
    "settings": ("member_params",),
    "share": ("inference_share", "bn_momentum"),
    "slope": ("reset_slope",),
    "slow_clock": ("throttled_clock",),
    "slower": ("block_lr_divisor",),
    "small_rate": ("discriminator_learning_rate",),
    "spared": ("frozen_norm_share",),
    "sparing": ("sparse",),
    "speed": ("ema_rate",),
    "start": ("arrival_prob",),
    "steady": ("static_scene",),
    "stop": ("departure_prob",),
    "streets": ("per_workload",),
    "teach_end_s": ("label_end_s",),
    "teach_start_s": ("label_start_s",),
    "threshold": ("entropy_margin",),
    "timeline": ("allocation_timeline",),
    "unknown": ("unlisted_labels",),
    "watches": ("workload",),
    "way": ("training_config",),
    "weight": ("adversarial_weight",),
    "work_s": ("isolated_s",),
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
