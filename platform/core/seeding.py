"""Random numbers that depend on seed and purpose, never on the order of requests."""

from __future__ import annotations

import hashlib

import numpy as np

# The words with which purposes begin. They enter the numbers: another word is another draw, and changes every table.
PURPOSES = frozenset(
    {
        "adadeep",
        "adapt",
        "adaptivenet",
        "agreement",
        "answer",
        "audit",
        "border",
        "churn",
        "damage",
        "estimate",
        "estimator",
        "link",
        "load",
        "pack",
        "pretrain/head",
        "pretrain/order",
        "pretrain/shift",
        "pretrain/weights",
        "scaling",
        "scaling/darts",
        "scaling/enas",
        "scaling/operator",
        "scaling/paths",
        "scaling/probe",
        "scaling/stage",
        "scheduling/elasticdnn",
        "search/evolution",
        "search/optuna",
        "search/random",
        "search/reinforce",
        "stream",
        "student",
        "surrogate",
        "switching",
        "times",
        "train",
        "try",
        "wobble",
    }
)


def seed_for(seed: int, *purpose: str | int) -> int:
    """Derive a number for each purpose under one experiment seed (63 bits, stable across versions)."""
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def rng_for(seed: int, *purpose: str | int) -> np.random.Generator:
    """Open the generator of one purpose; each has its own, so the order of calls cannot change results."""
    return np.random.default_rng(seed_for(seed, *purpose))
