"""Fixtures that tests of whole commands share."""

from __future__ import annotations

import pytest

from driftlab.platform.results.report import page


@pytest.fixture
def without_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write reports without verdicts, which take half of the time of a small run's report."""
    monkeypatch.setattr(page.claims, "evaluate", lambda *_, **__: [])
