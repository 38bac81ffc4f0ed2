"""Tiny experiments: systems one after another, and two applications that share a device."""

from __future__ import annotations

from typing import Any

TINY: dict[str, Any] = {
    "name": "tiny",
    "systems": [
        "no_custom",
        {"name": "one_time", "streaming": {"name": "one_time", "sample_s": 3, "iterations": 4}},
        {
            "name": "ams",
            "streaming": {"name": "ams", "interval_s": 2},
            "adaptation": {"name": "distill", "iterations": 3},
        },
        {"name": "oracle", "streaming": {"name": "foresight", "window_s": 4, "iterations": 3}},
    ],
    "workloads": [{"name": "streets/running", "duration_s": 8, "fps": 2, "height": 32, "width": 48}],
    "window_s": 3,
    "snapshots": 2,
    "bounds": False,
    "student": {"network": "half", "pretrain_steps": 2},
}
NESTED = {
    "name": "nested",
    "keep_ratios": [1.0, 0.5, 0.25],
    "ranking": "l1",
    "accuracy_loss": 1.0,
    "prune_epochs": 0,
    "grow_epochs": 1,
}
NESTDNN = {"name": "nestdnn", "alpha": 1.0}
SLOW = {
    "name": "slow-phone",  # the largest of the networks takes half a second
    "macs_per_s": 1.5e6,
    "bytes_per_s": 1e9,
    "overhead_s": 60e-6,
    "memory_bytes": 100_000_000,
    "idle_w": 0.4,
    "busy_w": 2.5,
}
SHARING: dict[str, Any] = {  # both run and are taught
    "name": "sharing",
    "systems": [
        {"name": "nestdnn", "scaling": NESTED, "scheduling": NESTDNN},
        {
            "name": "ams+nested",
            "streaming": {"name": "ams", "interval_s": 2, "codec": "jpeg"},  # it is too slow for h264
            "adaptation": {"name": "distill", "iterations": 3},
            "scaling": NESTED,
            "scheduling": NESTDNN,
        },
        {"name": "just_in_time", "streaming": {"name": "just_in_time", "threshold": 0.2}},
    ],
    "workloads": [
        {
            "name": "streets/running",
            "duration_s": 12,
            "fps": 2,
            "height": 32,
            "width": 48,
            "churn": {"min_apps": 1, "max_apps": 2, "arrival_prob": 0.3, "departure_prob": 0.3},
            "apps": [{"name": "front", "latency_goal_s": 0.5}, {"name": "side", "latency_goal_s": 0.5}],
        }
    ],
    "fleets": [{"name": "slow", "devices": [{"hardware": SLOW}]}],
    "window_s": 2,
    "snapshots": 2,
    "bounds": False,
    "student": {"network": "half", "pretrain_steps": 2},
}
LEARNING: dict[str, Any] = {  # two applications run trials of training configurations, and a scheduler of both decides
    "name": "learning",
    "systems": [
        {
            "name": "joint",
            "streaming": {"name": "on_device", "period_s": 3},
            "adaptation": {"name": "distill", "fraction": 1.0, "step_choices": [1, 3]},
            "scheduling": "joint",
        }
    ],
    "workloads": [
        {
            "name": "signs/motorway",
            "duration_s": 12,
            "fps": 2,
            "height": 24,
            "width": 24,
            "apps": [{"name": "front"}, {"name": "side", "workload": "signs/town", "pretrain_seed": 1}],
        }
    ],
    "fleets": [{"name": "slow", "devices": [{"hardware": {**SLOW, "macs_per_s": 50e6}}]}],
    "server": {"label_s": 1e-6},
    "window_s": 6,
    "snapshots": 0,
    "bounds": False,
    "student": {"network": "tiny_classifier", "pretrain_steps": 2},
}
SHARES: dict[str, Any] = {  # both are only given shares
    **SHARING,
    "name": "shares",
    "systems": [
        {"name": name, "base": "nestdnn", "scaling": NESTED, "scheduling": name}
        for name in ("nestdnn", "exact", "status_quo")
    ],
    "workloads": [{**SHARING["workloads"][0], "run_networks": False}],
}
