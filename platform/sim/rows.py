"""The rows that the simulator writes: messages, phases, shares, devices and runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.datasets.catalogue import SceneProperties, scene_properties
from driftlab.platform.core.metrics import kbps
from driftlab.platform.core.plugins import drop_folder
from driftlab.platform.core.records import Applied, Rows, Uploaded
from driftlab.platform.sim.ledger import PURPOSES, Account, total
from driftlab.platform.sim.setting import AppNetworks, Cell, WorkloadSetup
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.world.cost import memory_bytes
from driftlab.platform.world.processor import accelerator_share

if TYPE_CHECKING:
    from driftlab.platform.sim.app import AppSim
    from driftlab.platform.sim.device import AppShare, DeviceSim
    from driftlab.platform.sim.messages import Message
    from driftlab.platform.sim.rounds import WeightRound

OFF = "the battery is empty: the device is off from now on"
FILE_OVER = "the file of the load is over: its last row holds"
NO_MEMORY = "other programs hold all memory"


def request_columns(cell: Cell, experiment: str) -> Mapping[str, Any]:
    """Return the columns of a row of `runs` that the request determines."""
    system = cell.system
    return {
        "experiment": experiment,
        "system": system.name,
        "streaming": str(system.streaming),
        "adaptation": str(system.adaptation),
        "scaling": str(system.scaling),
        "scheduling": str(system.scheduling),
        "workload": cell.workload,
        "fleet": cell.fleet,
        "devices": len(cell.devices),
        "seed": cell.seed,
        "bound": system.bound,
    }


def run_row(cell: Cell, setup: WorkloadSetup, accounts: Sequence[Account], digests: Sequence[str]) -> Mapping[str, Any]:
    """Return a finished cell's row; network columns hold for all applications, or are lists."""
    apps = list(setup.apps.values())
    return {
        **request_columns(cell, setup.experiment),
        "tuned": setup.tuned.get(cell.system.name),
        "status": "done",
        "duration_s": cell.duration_s,
        "grace_s": setup.grace_of(cell.devices[0].apps[0].stream),
        **(_came_out(cell, apps, accounts, digests) if setup.run_networks else {}),
        "student": _names(drop_folder(app.student.name) for app in apps),
        "teacher": _names(app.teacher_name for app in apps) if cell.system.uses_teacher else None,
        "parameters": sum(app.student.cost.parameters for app in apps),
        "macs": sum(app.student.cost.macs for app in apps),
    }


def _came_out(
    cell: Cell, apps: Sequence[AppNetworks], accounts: Sequence[Account], digests: Sequence[str]
) -> Mapping[str, Any]:
    """Return the columns that exist only where networks ran."""
    whole = total(accounts)
    seconds = cell.duration_s * len(cell.devices)
    return {
        "frames": whole.frames,
        "score_live": whole.score_live,
        "score": whole.score,
        "score_frame": whole.score_frame,
        "score_global": _score_global(apps, accounts),
        "uplink_bytes": whole.up_bytes,
        "downlink_bytes": whole.down_bytes,
        "uplink_kbps": kbps(whole.up_bytes, seconds),
        "downlink_kbps": kbps(whole.down_bytes, seconds),
        **_spent(whole),
        "updates": whole.updates,
        "weights_digest": hashlib.sha256("".join(digests).encode()).hexdigest()[:16],
    }


def _spent(account: Account) -> Mapping[str, Any]:
    """Return energy, in total and by purpose."""
    split = {f"{purpose}_j": account.joules.get(purpose, 0.0) for purpose in PURPOSES}
    return {"energy_j": account.energy_j, **split}


def _names(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _score_global(apps: Sequence[AppNetworks], accounts: Sequence[Account]) -> float | None:
    """Score the frames of all applications together; None if tasks or classes differ, or none was scored."""
    counts = [account.counts for account in accounts if account.counts is not None]
    kinds = {(app.task.name, app.classes) for app in apps}
    return float(apps[0].task.score(sum(counts))) if counts and len(kinds) == 1 else None


def system_columns(cell: Cell) -> Mapping[str, Any]:
    """Return a system's columns: every parameter of every member, requested or default."""
    lines: list[tuple[str | None, ...]] = []
    for member in cell.system.members:
        values = sorted({**member.defaults(), **dict(member.params)}.items())
        texts = [(name, json.dumps(value, sort_keys=True, default=str)) for name, value in values]
        own = (member.family, drop_folder(member.name))
        lines += [(*own, *pair) for pair in texts] or [(*own, None, None)]
    names = ("family", "member", "parameter", "value")
    return {"system": cell.system.name, **dict(zip(names, map(list, zip(*lines, strict=True)), strict=True))}


def class_columns(app: AppSim) -> Mapping[str, Any] | None:
    """Return the counts of every class over the session; None of tasks that do not count by class."""
    by_class = app.account.by_class
    if by_class is None:
        return None
    counted = dict(zip(("truth", "predicted", "hits"), by_class.T, strict=True))
    score = app.networks.task.score_classes(by_class)
    of_app = {"device": app.device.spec.name, "app": app.spec.name}
    return {**of_app, "class": np.arange(len(by_class)), **counted, "score": score}


def share_row(share: AppShare, length_s: float) -> Mapping[str, Any]:
    """Return the row of an allocation, with its consequences on this processor."""
    app, demand, network = share.app, share.demand, share.network
    inference, training = accelerator_share(share.inference_share), accelerator_share(share.training_share)
    speed = _speed(share, length_s)
    running = network is not None and inference > 0
    latency_s = network.latency_s / (inference * speed) if network is not None and inference > 0 else None
    moved_in, moved_out = share.moved_bytes
    paging_s = _paging_s(share, length_s)
    return {
        "device": app.device.spec.name,
        "app": app.spec.name,
        "time_s": share.start_s,
        "window_s": length_s,
        "inference_share": inference,
        "training_share": training or None,
        "variant": share.variant,
        "network": network.name if network else None,
        "accuracy": network.reported_accuracy if network else None,
        "val_accuracy": network.accuracy if network else None,
        "latency_ms": None if latency_s is None else latency_s * 1e3,
        "fps": demand.fps,
        "accuracy_goal": demand.accuracy_goal,
        "latency_goal_ms": None if demand.latency_goal_s is None else demand.latency_goal_s * 1e3,
        "priority": demand.priority,
        "memory_bytes": network.memory_bytes if running and network else 0,
        "paged_in_bytes": moved_in,
        "paged_out_bytes": moved_out,
        "paging_s": paging_s,
        "energy_j": _energy_j(share, inference * speed, length_s - paging_s),
        "paging_j": moved_in * app.device.spec.hardware.energy.page_mj_per_mb * 1e-9,
        "note": share.grant.note or None,
        "host_schedule_seconds": share.host_seconds,
    }


def _paging_s(share: AppShare, length_s: float) -> float:
    """Return the part of an allocation in which its network is being loaded."""
    start_s, stop_s = share.loading_s
    return max(0.0, min(stop_s, share.start_s + length_s) - max(start_s, share.start_s))


def _speed(share: AppShare, length_s: float) -> float:
    """Return the mean speed of the device in an allocation, relative to the idle device."""
    load, start_s = share.app.device.spec.load, share.start_s
    if load is None:
        return 1.0
    if share.network is not None:
        return load.network_speed(start_s, start_s + length_s, share.network.sensitivity)
    return load.mean_speed(start_s, start_s + length_s)


def load_rows(device: DeviceSim) -> Iterator[Mapping[str, Any]]:
    """Return a row for each application at the newest reading of its device's load."""
    load, reading = device.spec.load, device.sensor.taken[-1]
    assert load is not None, "a device without load takes no readings"
    now_s, off = reading.time_s, device.sensor.empty
    until_s = now_s + 1 / load.sense_hz
    notes = {OFF: off, FILE_OVER: now_s >= load.ends_s, NO_MEMORY: reading.memory_bytes == 0}
    for app in list(device.apps) if off else [app.name for app in device.present]:
        grant, chosen = device.grants.get(app), device.apps[app].choice.state
        yield {
            "device": device.spec.name,
            "app": app,
            "time_s": now_s,
            "cpu": load.mean_cpu(now_s, until_s),
            "sensed_cpu": reading.cpu,
            "forecast_cpu": None if chosen is None else device.runner.scaling.forecast(chosen),
            "free_bytes": reading.memory_bytes,
            "clock": reading.clock,
            "temperature_c": reading.temperature_c,
            "battery": reading.battery,
            "speed": load.mean_speed(now_s, until_s),
            "variant": None if grant is None or off else grant.variant,
            "note": "; ".join(note for note, holds in notes.items() if holds) or None,
        }


def prediction_rows(device: DeviceSim) -> Iterator[Mapping[str, Any]]:
    """Return a row for each network that was timed at the newest reading."""
    for app, timed, predicted_s in device.predictions:
        yield {
            "device": device.spec.name,
            "app": app,
            "time_s": timed.reading.time_s,
            "network": timed.network,
            "idle_ms": timed.idle_s * 1e3,
            "cpu": timed.reading.cpu,
            "memory": timed.reading.memory,
            "clock": timed.reading.clock,
            "predicted_ms": predicted_s * 1e3,
            "taken_ms": timed.taken_s * 1e3,
        }


def variant_rows(device: DeviceSim) -> Iterator[Mapping[str, Any]]:
    """Return a row for every network that an application of the device could run."""
    for app, variants in device.variants.items():
        for number, one in enumerate(variants):
            yield {
                "device": device.spec.name,
                "app": app,
                "variant": number,
                "network": one.name,
                "accuracy": one.reported_accuracy,
                "val_accuracy": one.accuracy,
                "memory_bytes": one.memory_bytes,
                "kernel_bytes": one.kernel_bytes,
                "latency_ms": one.latency_s * 1e3,
                "energy_j": one.energy_j,
                "macs": one.macs,
            }


def _energy_j(share: AppShare, inference: float, length_s: float) -> float | None:
    """Return the energy of the frames for which there is time."""
    network = share.network
    if network is None or network.energy_j is None or not inference:
        return None
    return min(share.demand.fps, inference / network.latency_s) * length_s * network.energy_j


def failed_rows(cell: Cell, experiment: str, reason: str) -> Rows:
    """Return the rows of a failed cell, with its reason."""
    row = {**request_columns(cell, experiment), "status": "failed", "error": reason}
    return {"runs": [row], "systems": [system_columns(cell)]}


def device_row(device: DeviceSim, *, live: bool) -> Mapping[str, Any]:
    """Return a device's row."""
    spec = device.spec
    return {
        "device": spec.name,
        "hardware": spec.hardware.name,
        "link": spec.link.name,
        "stream_seed": spec.apps[0].stream.seed,
        "memory_bytes": spec.hardware.memory_bytes,
        "working_memory_bytes": sum(memory_bytes(app.networks.student.cost) for app in device.apps.values()),
        **(_did(total([app.account for app in device.apps.values()]), device) if live else {}),
    }


def _did(account: Account, device: DeviceSim) -> Mapping[str, Any]:
    """Return the columns that exist only where the device ran networks."""
    scenery = _scenery(device)
    return {
        "static_scene": scenery.static_scene if scenery else None,
        "appearance_drift": scenery.appearance_drift if scenery else None,
        **_spent(account),
        "peak_memory_bytes": device.processor.peak_memory_bytes + account.memory_bytes,
        "frames": account.frames,
        "processed": account.processed,
        "busy_s": account.busy_s,
        "uplink_bytes": account.up_bytes,
        "downlink_bytes": account.down_bytes,
        "score_live": account.score_live,
        "score": account.score,
    }


def motion_columns(device: DeviceSim) -> Mapping[str, Any] | None:
    """Return the motion of a device's camera; None where that is not known."""
    scenery = _scenery(device)
    if scenery is None:
        return None
    names = ("time_s", "travelled_m", "speed_mps", "acceleration_mps2")
    stretches = np.array(scenery.stretches(device.spec.duration_s))
    return {"device": device.spec.name, **dict(zip(names, stretches.T, strict=True))}


def _scenery(device: DeviceSim) -> SceneProperties | None:
    stream = device.spec.apps[0].stream
    return scene_properties(stream.workload, stream.seed)


def transfer_row(message: Message) -> Mapping[str, Any]:
    """Return a message's row."""
    return {
        "device": message.app.device.spec.name,
        "app": message.app.spec.name,
        "direction": message.direction,
        "kind": message.kind,
        "sequence": message.sequence,
        **vars(message.transfer),
        "refused": message.refused or None,
    }


def sample_columns(sent: Uploaded, sampling: Sampling) -> Mapping[str, Any]:
    """Return the columns that only messages of samples have."""
    return {
        "samples": sent.frames,
        "rate_fps": sampling.rate_fps,
        "gross_bytes": sent.gross_bytes,
        "host_pack_seconds": sent.host_seconds,
    }


def update_row(
    done: WeightRound, reason: str, applied: Applied | None = None, arrive_s: float | None = None
) -> Mapping[str, Any]:
    """Return a training round's row, with its outcome."""
    stored, trained, plan, cost = done.stored, done.trained, done.plan, done.cost
    buffered = trained.frames if trained else stored.buffered if stored else 0
    return {
        "device": done.app.device.spec.name,
        "app": done.app.spec.name,
        "learner_site": done.app.learner.streaming.learner_site,
        "version": applied.version if applied and applied.accepted else None,
        "uploads": len(done.uploads),
        "samples": sum(upload.sent.frames for upload in done.uploads),
        "unlisted_labels": stored.unlisted_labels if stored else 0,
        "buffered": buffered,
        "phi": float(np.mean(stored.phis)) if stored and stored.phis else None,
        "rate_fps": plan.rate_fps if plan else None,
        "interval_s": plan.interval_s if plan else None,
        "training_config": done.training_config,
        "iterations": trained.iterations if trained else 0,
        "values": trained.values if trained else 0,
        "clamped": trained.clamped if trained else 0,
        "loss_first": trained.loss_first if trained else None,
        "loss_last": trained.loss_last if trained else None,
        "bytes": trained.bytes if trained else 0,
        "label_start_s": done.label_start_s,
        "label_end_s": done.label_end_s,
        "train_start_s": done.train_start_s,
        "train_end_s": done.train_end_s,
        "isolated_s": cost.isolated_s,
        "energy_j": cost.joules,
        "memory_bytes": cost.memory_bytes,
        "arrive_s": arrive_s,
        "accepted": applied.accepted if applied else None,
        "reason": reason or None,
        "host_train_seconds": trained.host_seconds if trained else None,
    }
