"""The rows that the loop writes: of messages, of phases, and those that sum a cell up."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from driftlab.platform.core.metrics import kbps
from driftlab.platform.core.records import Applied, Rows, Uploaded
from driftlab.platform.lab.cells import Cell, EdgeSpec
from driftlab.platform.lab.edge import Message, Visit
from driftlab.platform.lab.ledger import Account, total
from driftlab.platform.lab.setting import Setting
from driftlab.platform.streaming.base import Sampling


def asked_for(cell: Cell, experiment: str) -> Mapping[str, Any]:
    """What a row of `runs` says of the request alone."""
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


def run_row(cell: Cell, setting: Setting, accounts: Sequence[Account], digests: Sequence[str]) -> Mapping[str, Any]:
    """Sum a finished cell up."""
    whole = total(accounts)
    seconds = cell.duration_s * len(accounts)
    return {
        **asked_for(cell, setting.experiment),
        "status": "done",
        "duration_s": cell.duration_s,
        "frames": whole.frames,
        "score": whole.score,
        "score_frame": whole.score_frame,
        "score_global": float(setting.task.score(whole.counts)) if whole.scored else None,
        "uplink_bytes": whole.up_bytes,
        "downlink_bytes": whole.down_bytes,
        "uplink_kbps": kbps(whole.up_bytes, seconds),
        "downlink_kbps": kbps(whole.down_bytes, seconds),
        "energy_j": whole.energy_j,
        "updates": whole.updates,
        "student": setting.student.name,
        "teacher": setting.teacher_name if cell.system.uses_teacher else None,
        "weights_digest": hashlib.sha256("".join(digests).encode()).hexdigest()[:16],
        "parameters": setting.student.cost.parameters,
        "macs": setting.student.cost.macs,
    }


def failed_rows(cell: Cell, experiment: str, reason: str) -> Rows:
    """Keep a place for a cell that failed, with its reason."""
    return {"runs": [{**asked_for(cell, experiment), "status": "failed", "error": reason}]}


def device_row(spec: EdgeSpec, account: Account, setting: Setting) -> Mapping[str, Any]:
    """Sum one device up."""
    cost = setting.student.cost
    return {
        "device": spec.name,
        "hardware": spec.hardware.name,
        "link": spec.link.name,
        "stream_seed": spec.stream.seed,
        "frames": account.frames,
        "processed": account.processed,
        "busy_s": account.busy_s,
        "energy_j": account.energy_j,
        "memory_bytes": 2 * cost.weight_bytes + cost.activation_bytes,  # one copy runs while the other is patched
        "uplink_bytes": account.up_bytes,
        "downlink_bytes": account.down_bytes,
        "score": account.score,
    }


def transfer_row(message: Message) -> Mapping[str, Any]:
    """Write a message down."""
    return {
        "device": message.edge.name,
        "direction": message.direction,
        "kind": message.kind,
        "sequence": message.sequence,
        **vars(message.transfer),
        "refused": message.refused or None,
    }


def sample_columns(sent: Uploaded, sampling: Sampling) -> Mapping[str, Any]:
    """Add what only a message of samples has."""
    return {
        "samples": sent.frames,
        "rate_fps": sampling.rate_fps,
        "gross_bytes": sent.gross_bytes,
        "host_pack_seconds": sent.host_seconds,
    }


def update_row(visit: Visit, reason: str, applied: Applied | None, arrive_s: float | None) -> Mapping[str, Any]:
    """Write a visit to the server down, and what came of it."""
    stored, trained, answer = visit.stored, visit.trained, visit.answer
    buffered = trained.frames if trained else stored.buffered if stored else 0
    return {
        "device": visit.edge.name,
        "version": applied.version if applied and applied.accepted else None,
        "uploads": len(visit.uploads),
        "samples": sum(upload.sent.frames for upload in visit.uploads),
        "buffered": buffered,
        "phi": float(np.mean(stored.phis)) if stored and stored.phis else None,
        "rate_fps": answer.rate_fps if answer else None,
        "interval_s": answer.interval_s if answer else None,
        "iterations": trained.iterations if trained else 0,
        "values": trained.values if trained else 0,
        "clamped": trained.clamped if trained else 0,
        "loss_first": trained.loss_first if trained else None,
        "loss_last": trained.loss_last if trained else None,
        "bytes": trained.bytes if trained else 0,
        "teach_start_s": visit.teach_start_s,
        "teach_end_s": visit.teach_end_s,
        "train_start_s": visit.train_start_s,
        "train_end_s": visit.train_end_s,
        "arrive_s": arrive_s,
        "accepted": applied.accepted if applied else None,
        "reason": reason or None,
        "host_train_seconds": trained.host_seconds if trained else None,
    }
