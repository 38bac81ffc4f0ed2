"""Files that are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftlab.platform.core.files import atomic_write, write_atomically


def test_a_file_changes_at_once_or_not_at_all(tmp_path: Path):
    target = tmp_path / "spec.yaml"
    write_atomically(target, "first \u00fc")
    with pytest.raises(OSError, match="disk full"), atomic_write(target) as draft:
        draft.write_text("se")
        assert target.read_text(encoding="utf-8") == "first \u00fc"
        raise OSError("disk full")
    assert target.read_text(encoding="utf-8") == "first \u00fc"
    assert list(tmp_path.iterdir()) == [target]
