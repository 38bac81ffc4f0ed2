"""The table of systems: those named after a method of the registry, and combinations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from driftlab.platform.core.registry import (
    ELASTIC,
    IN_PHASES,
    METHODS,
    TAUGHT,
    TAUGHT_ALL,
    Member,
    Slot,
    Slots,
    docstring_of,
)
from driftlab.platform.core.systems import Bound, System


class _Row(NamedTuple):
    """A combination: a line that describes it, its slots, and its bound in reports if it is one."""

    summary: str
    slots: Slots
    bound: Bound | None = None


def _sized(name: str, one_size: str, three_sizes: str, scheduler: str, **settings: Any) -> dict[str, str | _Row]:
    """Return the row of a scheduler of trainings, and its row with surrogates of three sizes."""
    sizes = _Row(
        three_sizes,
        {
            **IN_PHASES,
            "adaptation": "elasticdnn_teacher",
            "scaling": {"name": "surrogate", "keep_ratios": (0.8, 0.5, 0.3)},
            "scheduling": {"name": scheduler, **settings},
        },
    )
    return {name: one_size, f"{name}+sizes": sizes}


# A combination is a row. A text alone is the summary of a system that is named after a method; without one, the summary
# is the first line of the docstring of the method's class, and the system is listed after those that are here.
_TABLE: Mapping[str, str | _Row] = {
    "no_custom": _Row(
        "No Customization (AMS, ICCV 2021): the pre-trained student runs unchanged; the bound without adaptation.",
        {},
        bound="no_adaptation",
    ),
    "one_time": "One-Time (AMS, ICCV 2021): fine-tunes all weights once, server-side, on the first 60 s of the stream.",
    "remote_tracking": (
        "Remote+Tracking (AMS, ICCV 2021): the server labels one frame per second; optical flow warps the labels."
    ),
    "just_in_time": (
        "Just-In-Time (ICCV 2019): distils on the newest frame up to a score threshold; adapts the interval, "
        "server-side."
    ),
    "ams": (
        "AMS (ICCV 2021): server-side distillation; streams sparse updates (5 % of the weights) at an adaptive rate."
    ),
    "ams-printed": _Row(
        "AMS (ICCV 2021) with controllers as printed: Eq. 1 without saturation, Eq. 2 on the last rate every 10 s.",
        {
            **TAUGHT,
            "streaming": {
                "name": "ams",
                "control": "linear",
                "slowdown_rates": 1,
                "interval_step_s": 2.0,
                "max_interval": None,
                "atr_step_s": 10.0,
            },
        },
    ),
    "adabn": "AdaBN (arXiv 2016): batch-norm statistics follow the target domain by a moving average; on the stream.",
    "onda": "ONDA (IROS 2018): moving average of batch-norm statistics, every 10 frames; on the stream.",
    "tent": "Tent (ICLR 2021): minimises prediction entropy over batch-norm scales and shifts; on the stream.",
    "shot": (
        "SHOT (ICML 2020): information maximisation and pseudo-labels with a frozen head; on the device, in phases."
    ),
    "elasticdnn": (
        "ElasticDNN (TC 2024): cuts a surrogate per domain, retrains high-gradient filters; on the device, in phases."
    ),
    "elasticdnn+tent": _Row(
        "ElasticDNN (TC 2024) with Tent: entropy loss on scales and shifts of high-gradient filters; on the "
        "device, in phases.",
        {**ELASTIC, "adaptation": {"name": "elasticdnn", "objective": "entropy"}},
    ),
    "elasticdnn+cua": _Row(
        "ElasticDNN (TC 2024) with CUA: high-gradient filters align features (MMD), with replay; on the device, "
        "in phases.",
        {**ELASTIC, "adaptation": "elasticdnn_cua"},
    ),
    "elasticdnn-released": _Row(
        "ElasticDNN (TC 2024) as in the authors' code: no guard, slow feedback; on the device, in phases.",
        {
            **ELASTIC,
            "adaptation": {
                "name": "elasticdnn",
                "select": "topfrac",
                "share": 0.2,
                "iterations": 100,
                "batch": 128,
                "clip": 1e9,
                "guard": False,
            },
            "scaling": {"name": "surrogate", "absorb_alpha": 0.2, "bn_alpha": 0.2, "bn_scope": "gated"},
        },
    ),
    "elasticdnn+ams": _Row(
        "ElasticDNN (TC 2024) with AMS: surrogates cut and distilled server-side; streams channel masks and updates.",
        {"streaming": "ams", "adaptation": "elasticdnn_teacher", "scaling": "surrogate"},
    ),
    "cotta": "CoTTA (CVPR 2022): mean-teacher consistency with stochastic weight restoration; on the stream.",
    "eata": "EATA (ICML 2022): Tent on reliable, non-redundant samples with a Fisher regulariser; on the stream.",
    "sar": "SAR (ICLR 2023): sharpness-aware entropy minimisation on reliable samples; on the stream.",
    "rotta": "RoTTA (CVPR 2023): robust batch norm, class-balanced timely memory and EMA teacher; on the stream.",
    "lame": (
        "LAME (CVPR 2022): Laplacian correction of a batch's predictions by feature affinity, no training; "
        "on the stream."
    ),
    "t3a": (
        "T3A (NeurIPS 2021): replaces the head by class templates of low-entropy features; on the stream, no gradients."
    ),
    "neo": "NEO (ICLR 2026): subtracts the running feature mean before the head; on the stream, no gradients.",
    "note": "NOTE (NeurIPS 2022): instance-aware batch norm and class-balanced reservoir memory; on the stream.",
    "bufr": "BUFR (ICLR 2022): aligns feature histograms with the source, blocks bottom-up; on the device, in phases.",
    "rdumb": _Row(
        "RDumb (NeurIPS 2023): EATA without its regulariser, reset to the source every 1000 steps; on the stream.",
        {"adaptation": {"name": "rdumb", "member_params": ("fisher_weight=0",)}},
    ),
    "asr": "ASR (ICLR 2026): EATA with a selective reset when predictions collapse; on the stream.",
    "sparse": "Sparse EATA: EATA that adapts on every fourth batch only; on the stream.",
    "snap": (
        "SNAP (NeurIPS 2025): EATA on every tenth batch, with a memory of confident, typical frames; on the stream."
    ),
    "conda": "ConDA (arXiv 2021): SHOT on mixup pairs with replay of earlier domains; on the device, in phases.",
    "ace": (
        "ACE (ICCV 2019): trains on source frames restyled to the target's channel statistics; on the "
        "device, in phases."
    ),
    "iada": "IADA (ICRA 2018): adversarial feature alignment with a generated source; on the device, in phases.",
    "cua": (
        "CUA (ICLR workshop 2018): feature alignment (MMD) with replay of earlier domains; on the device, in phases."
    ),
    "on_device": "On-device distillation: teacher and learner share the device's processor with inference, in phases.",
    **_sized(
        "uniform-learning",
        "Uniform compute shares for inference and retraining of all applications; on the device.",
        "Uniform shares for inference and retraining, with surrogates of three sizes; on the device.",
        "uniform_learning",
        config_choice="best",
    ),
    **_sized(
        "ekya",
        "Ekya (NSDI 2022): moves shares between jobs by the accuracy expected from short trials; on the device.",
        "Ekya (NSDI 2022) with surrogates of three sizes as training configurations; on the device.",
        "ekya",
    ),
    **_sized(
        "recl",
        "RECL (NSDI 2023): gives the next seconds to the training with the largest recent gain; on the device.",
        "RECL (NSDI 2023) with surrogates of three sizes as training configurations; on the device.",
        "recl",
        config_choice="best",
    ),
    **_sized(
        "afs",
        "AFS (NSDI 2021): elastic shares that minimise mean completion time; on the device.",
        "AFS (NSDI 2021) with surrogates of three sizes as training configurations; on the device.",
        "afs",
        config_choice="best",
    ),
    **_sized(
        "synergy",
        "Synergy (OSDI 2022): resource-sensitive shares of accelerator, CPU, storage and link; on the device.",
        "Synergy (OSDI 2022) with surrogates of three sizes as training configurations; on the device.",
        "synergy",
        config_choice="best",
    ),
    **_sized(
        "muri",
        "Muri (SIGCOMM 2022): interleaves the stages of trainings that use different resources; on the device.",
        "Muri (SIGCOMM 2022) with surrogates of three sizes as training configurations; on the device.",
        "muri",
        config_choice="best",
    ),
    **_sized(
        "elasticdnn-many",
        "ElasticDNN's scheduler (TC 2024): one training configuration per application (Eq. 8); on the device.",
        "ElasticDNN's scheduler (TC 2024): one surrogate size of three per application (Eq. 8); on the device.",
        "elasticdnn",
    ),
    **_sized(
        "joint",
        "Joint scheduling of training configurations, their order and compute shares; on the device.",
        "Joint scheduling of training configurations, order and shares, with surrogates of three sizes; on the device.",
        "joint",
    ),
    "optimum": _Row(
        "Optimum bound: all plans of joint compared by the true gains of trainings; on the device.",
        {**IN_PHASES, **TAUGHT, "scheduling": {"name": "joint", "gains": "true", "plans": "enumerated"}},
        bound="true_gains",
    ),
    "nestdnn": (
        "NestDNN (MobiCom 2018): allocates a nested network and a compute share per application; on the "
        "device, per window."
    ),
    "usnet": (
        "US-Nets (ICCV 2019): universally slimmable networks under NestDNN's scheduler; on the device, per window."
    ),
    "adascale": (
        "AdaScale (arXiv 2024): selects operators and exit of a supernet as the load changes; on the device, "
        "per load reading."
    ),
    "legodnn": (
        "LegoDNN (MobiCom 2021): one variant per block, by sums of costs and accuracy drops; on the device, "
        "per load reading."
    ),
    "adaptivenet": (
        "AdaptiveNet (MobiCom 2023): selects from an accuracy-latency Pareto list; on the device, per load reading."
    ),
    "adaspring": (
        "AdaSpring (IMWUT 2021): beam search for operators when the context changes; on the device, per load reading."
    ),
    "adadeep": "AdaDeep (TMC 2020): Q-learning selects operators once, at the first load reading; static afterwards.",
    "early_exit": (
        "Early exit (BranchyNet 2016, MSDNet 2018): confidence thresholds per load; on the device, per frame."
    ),
    "once_for_all": (
        "Once-for-all (ICLR 2020): elastic depth and width, best subnet per size; on the device, per load reading."
    ),
    "nas": "NAS baseline: `driftlab tune` searches one operator for each stage; static on the device.",
    "darts": "DARTS (ICLR 2019): differentiable search for one path, before deployment; static on the device.",
    "enas": (
        "ENAS (ICML 2018): RL controller searches a weight-sharing supernet before deployment; static on the device."
    ),
    "clairvoyant": _Row(
        "Clairvoyant bound: most accurate path within the deadline at the true load; on the device, per load reading.",
        {"scaling": "clairvoyant"},
        bound="true_load",
    ),
    "light": "Lightweight baseline: MobileNetV3-like network trained from scratch; static on the device.",
    "branches": "Static supernet: always the full network, or a fixed exit; static on the device.",
    "mcdnn": (
        "MCDNN (MobiSys 2016): selects among independent variants by accuracy per compute; on the device, per window."
    ),
    "status_quo": "Status quo (NestDNN, MobiCom 2018): one fixed independent model per application, equal shares.",
    "ams+joint": _Row(
        "AMS with joint scheduling: the server's GPUs first run the training rounds with the largest expected gain.",
        {"streaming": "ams", **TAUGHT, "scheduling": {"name": "joint", "patience_s": 30.0}},
    ),
    "ams+nested": _Row(
        "AMS with NestDNN: sparse updates of nested networks; the scheduler selects one of them per window.",
        {"streaming": "ams", **TAUGHT, "scaling": "nested", "scheduling": "nestdnn"},
    ),
    "ams+adascale": _Row(
        "AMS with AdaScale: sparse updates of a supernet; the device selects a path at each load reading.",
        {"streaming": "ams", **TAUGHT, "scaling": "adascale"},
    ),
    "adascale+elasticdnn": _Row(
        "AdaScale with ElasticDNN: paths selected by estimated target accuracy; filters retrained in phases.",
        {
            "streaming": {"name": "on_device", "rate_fps": 10.0},
            "adaptation": {"name": "elasticdnn", "estimates": 12},
            "scaling": {"name": "adascale", "exits": 2},
        },
    ),
    "nestdnn+adascale": _Row(
        "NestDNN allocates compute shares per window; AdaScale selects a path within each share, per load reading.",
        {"scaling": "adascale", "scheduling": {"name": "nestdnn", "selects_variant": False}},
    ),
    "best_static": _Row(
        "Best-static bound: trains once on samples of the whole stream before it starts, zero-delay link.",
        {"streaming": {"name": "foresight", "iterations": 300, "span": "stream"}, **TAUGHT_ALL},
        bound="best_static",
    ),
    "oracle": _Row(
        "Per-window oracle bound: trains on samples of each window before it is shown, zero-delay link.",
        {"streaming": {"name": "foresight", "span": "window"}, **TAUGHT_ALL},
        bound="oracle",
    ),
}
_NAMED = {
    method.system or name: (family, name)
    for family, methods in METHODS.items()
    for name, method in methods.items()
    if method.others is not None
}


def _system(name: str) -> System:
    """Make the system of a row, or the one that the registry names after a method."""
    row = _TABLE.get(name, "")
    if isinstance(row, str):
        family, method = _NAMED[name]
        summary = row or docstring_of(family, method).partition("\n")[0]
        row = _Row(summary, {family: method, **(METHODS[family][method].others or {})})
    members = {family: _member(family, slot) for family, slot in row.slots.items()}
    return System(name, row.summary, bound=row.bound, **members)


def _member(family: str, slot: Slot) -> Member:
    params = {"name": slot} if isinstance(slot, str) else dict(slot)
    return Member(family, params.pop("name"), tuple(params.items()))


SYSTEMS: Mapping[str, System] = {name: _system(name) for name in {**_TABLE, **_NAMED}}
