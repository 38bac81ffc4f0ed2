"""Specs as runs store them: every system with four slots, and every slot with its defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from driftlab.platform.core.registry import FAMILIES, member_class, parameters
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.lab.sets import expand_system


def stored(spec: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """Complete a spec whose run also had systems `others`; an unknown name has the null members."""
    parts = [{"name": part} if isinstance(part, str) else part for part in spec.get("systems", ())]
    listed = {part["name"] for part in parts}
    rows = [_row({"name": name}) for name in dict.fromkeys(others) if name not in listed]
    whole = {"name": "made", "workloads": [{"name": "w"}], **spec, "systems": [_row(part) for part in parts]}
    return {**whole, "bound_rows": rows} if rows else whole


def _row(part: Mapping[str, Any]) -> dict[str, Any]:
    row = expand_system(part if part.get("base", part["name"]) in SYSTEMS else {**part, "base": "no_custom"})
    for family in FAMILIES:
        known = parameters(member_class(family, row[family]["name"]))
        row[family]["defaults"] = {key: default for key, (_, default) in known.items() if key not in row[family]}
    return row
