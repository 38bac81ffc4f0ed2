"""The seal of a cell in the metadata of its `runs` file: resolved spec, code versions, file digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from driftlab.datasets.catalogue import label_of

KEY = b"driftlab.seal"
# Keys that change no row of a cell: labels, the choice of cells, and how a run is executed.
IRRELEVANT_KEYS = frozenset(
    {"systems", "workloads", "fleets", "seeds", "bounds", "bound_rows", "summary", "size", "clock"}
)
PLACES = frozenset({"gpus_per_actor", "placement"})  # of `compute`: which process computes changes no row


@dataclass(frozen=True)
class Origin:
    """The resolved spec of a cell and the versions of the code, which determine its rows."""

    spec: Mapping[str, Any]
    versions: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Hash the resolved spec."""
        return hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Seal:
    """The origin of a cell, if its writer recorded one, and the SHA-256 of its other files by table."""

    origin: Origin | None
    files: Mapping[str, str]


def with_seal(table: pa.Table, seal: Seal) -> pa.Table:
    """Put a seal into the metadata of a `runs` table."""
    origin = None if seal.origin is None else {**asdict(seal.origin), "hash": seal.origin.digest}
    text = json.dumps({"origin": origin, "files": dict(seal.files)}, sort_keys=True)
    return table.replace_schema_metadata({**table.schema.metadata, KEY: text.encode()})


def seal_of(file: Path) -> Seal | None:
    """Read the seal of a `runs` file; None if an older driftlab wrote the file or the seal is damaged."""
    try:
        found = json.loads((pq.read_schema(file).metadata or {})[KEY])
        recorded = found["origin"]
        origin = None if recorded is None else Origin(dict(recorded["spec"]), dict(recorded["versions"]))
        if origin is not None and origin.digest != recorded["hash"]:
            return None
        return Seal(origin, dict(found["files"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def digest_of(file: Path) -> str:
    """Hash the bytes of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def cell_spec(spec: Mapping[str, Any], system: str, workload: str, fleet: str, seed: int) -> dict[str, Any]:
    """Return the part of a run's spec that determines one cell; KeyError if the cell is not in it."""
    rows = {part["name"]: part for part in [*spec["systems"], *(spec.get("bound_rows") or ())]}
    workloads = {part.get("alias") or label_of(part["name"]): part for part in spec["workloads"]}
    fleets = {part["name"]: part for part in spec["fleets"]}
    if seed not in spec["seeds"]:
        raise KeyError(seed)
    common = {key: value for key, value in spec.items() if key not in IRRELEVANT_KEYS}
    if isinstance(compute := common.get("compute"), Mapping):
        common["compute"] = {key: value for key, value in compute.items() if key not in PLACES}
    own = {"system": rows[system], "workload": workloads[workload], "fleet": fleets[fleet], "seed": seed}
    plain: dict[str, Any] = json.loads(json.dumps({**common, **own}))  # as it is read from the seal
    return plain
