"""Files that are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftlab.platform.core.files import atomic_write, remove_drafts, write_atomically


def test_a_file_changes_at_once_or_not_at_all(tmp_path: Path):
    target = tmp_path / "spec.yaml"
    write_atomically(target, "first \u00fc")
    with pytest.raises(OSError, match="disk full"), atomic_write(target) as draft:
        draft.write_text("se")
        assert target.read_text(encoding="utf-8") == "first \u00fc"
        raise OSError("disk full")
    assert target.read_text(encoding="utf-8") == "first \u00fc"
    assert list(tmp_path.iterdir()) == [target]


def test_only_drafts_of_killed_writers_are_removed(tmp_path: Path):
    (tmp_path / "tables").mkdir()
    with atomic_write(tmp_path / "tables" / "a.parquet") as draft:
        left = draft.with_name(draft.name.replace(".parquet.", ".parquet.9"))
        draft.touch()
    others = [tmp_path / name for name in ("notes.tmp", ".notes.tmp", ".a.1.tmp.old", "tables/a.parquet")]
    for file in (left, *others):
        file.touch()
    remove_drafts(tmp_path)
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == set(others)
