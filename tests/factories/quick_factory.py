"""Parameters with which the members of driftlab act within seconds."""

from __future__ import annotations

from typing import Any

from driftlab.platform.lab import contract

_ON_EATA = {"member_params": ["entropy_margin=1.0", "stream_batch=4"]}
_GROUPS: dict[tuple[str, ...], dict[str, Any]] = {  # by members: few steps, and batches that fill before the poison
    ("distill",): {**contract.QUICK["distill"], "step_choices": [1, 2]},
    ("one_time",): {"sample_s": 3, "iterations": 2},
    ("just_in_time",): {"max_steps": 2},
    ("ams",): {"interval_s": 2},
    ("remote_tracking",): {"every_s": 1},
    ("foresight",): {"iterations": 2},
    ("adabn", "onda", "tent", "lame", "t3a", "neo"): {"stream_batch": 4},
    ("eata", "sar"): {"stream_batch": 4, "entropy_margin": 1.0},
    ("cotta",): {"stream_batch": 4, "augmentations": 0},
    ("rotta", "note"): {"stream_batch": 4, "capacity": 8, "every_frames": 4},
    ("rdumb",): {"reset_steps": 2, "member_params": ["fisher_weight=0", *_ON_EATA["member_params"]]},
    ("asr",): _ON_EATA,
    ("sparse",): {"every_batches": 2, **_ON_EATA},
    ("snap",): {"every_batches": 2, "confidence": 0.0, **_ON_EATA},
    ("shot", "bufr", "conda", "cua", "ace"): {"iterations": 1, "batch": 4},
    ("iada",): {"iterations": 1, "batch": 4, "source_steps": 5},
    ("elasticdnn", "elasticdnn_cua", "elasticdnn_teacher"): {"iterations": 1},
    ("usnet",): {"keep_ratios": [1.0, 0.5], "epochs": 1},
    ("once_for_all",): {"keep_ratios": [1.0, 0.5], "epochs": 1, "candidates": 2},
    ("branches", "adascale", "legodnn", "adaptivenet", "adaspring", "adadeep", "nas", "clairvoyant"): {
        "exits": 2,
        "stage_epochs": 1,
        "operator_epochs": 1,
        "path_epochs": 1,
    },
    ("early_exit",): {"exits": 2, "stage_epochs": 1},
    ("darts", "enas"): {"space": "tiny", "search_epochs": 1, "epochs": 1},
    ("light",): {"network": "mobilenet_v3_small", "epochs": 1},
}
QUICK = {**contract.QUICK} | {member: given for members, given in _GROUPS.items() for member in members}
