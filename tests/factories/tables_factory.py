"""Tables that a test writes by hand, with every column and nothing on disk."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pandas as pd

from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.schema import TABLES


class Made(Tables):
    """The tables of a run that never was."""

    def __init__(self, spec: dict[str, Any] | None = None, **tables: list[dict[str, Any]]) -> None:
        super().__init__(SimpleNamespace(spec=spec or {}))
        for name in TABLES:
            self._frames[name] = pd.DataFrame(tables.get(name, []), columns=TABLES[name].names)

    def change(self, table: str, **columns: Callable[[dict[str, Any]], Any]) -> None:
        """Set columns by a function of a row."""
        frame = self._frames[table]
        made = {name: [each(row) for row in frame.to_dict("records")] for name, each in columns.items()}
        self._frames[table] = frame.assign(**made)

    def drop(self, table: str, which: Callable[[dict[str, Any]], Any]) -> None:
        """Forget the rows of which a function holds."""
        frame = self._frames[table]
        self._frames[table] = frame[[not which(row) for row in frame.to_dict("records")]]
