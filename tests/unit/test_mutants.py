"""Mutants: the changes, and the meaning of killed."""

from __future__ import annotations

from types import SimpleNamespace

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper

from benchmarks.mutants.__main__ import Mutator, judge, run

SOURCE = '''"""A module."""
LIMIT = 3


class Box:
    @property
    def width(self) -> int:
        if LIMIT < 5:
            raise ValueError(f"{LIMIT} is less")
        assert self, f"{1 + 1}"
        return LIMIT * (
            2
        )
'''


def mutated(source: str) -> list[tuple[str, range]]:
    """The changed lines of each mutant, and the lines that a test has to run."""
    tree, mutator = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True), Mutator()
    tree.visit(mutator)
    lines = set(source.splitlines())
    return [
        (
            " ".join(
                line.strip() for line in tree.module.deep_replace(old, new).code.splitlines() if line not in lines
            ),
            at,
        )
        for old, new, at in mutator.found
    ]


def test_constants_and_properties_are_changed_and_texts_are_not():
    assert mutated(SOURCE) == [
        ("LIMIT = None", range(2, 2)),
        ("LIMIT = 4", range(2, 2)),
        ("if LIMIT <= 5:", range(8, 9)),
        ("if LIMIT < 6:", range(8, 9)),
        ("return LIMIT / (", range(11, 14)),
        ("3", range(11, 14)),
    ]


@pytest.mark.slow
def test_a_mutant_is_killed_where_a_test_fails_and_survives_where_none_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = "def larger(a, b):\n    return a > b\n\n\ndef sum_of(a, b):\n    return a + b\n\n\n"
    code += "def other(a):\n    return -a\n\n\nSIZE = 3\n"
    (tmp_path / "sums.py").write_text(code)
    (tmp_path / "test_sums.py").write_text(
        "from sums import SIZE, larger, sum_of\n\n\ndef test_larger():\n    assert larger(2, 1)\n\n\n"
        "def test_sum():\n    assert sum_of(1, 2) == SIZE\n"
    )
    ran = {2: ["test_sums.py::test_larger|run"], 6: ["test_sums.py::test_sum|run"]}
    data = SimpleNamespace(contexts_by_lineno=lambda file: ran)
    assert list(judge("sums.py", data, 1.0, 0)) == ["survived", "killed", "not run by a test", "killed", "killed"]
    assert "sums.py:2: survived\n-    return a > b\n+    return a >= b\n" in capsys.readouterr().out
    assert (tmp_path / "sums.py").read_text() == code


@pytest.mark.slow
def test_tests_that_do_not_end_are_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_wait.py").write_text("def test_wait():\n    while True:\n        pass\n")
    assert run(["test_wait.py"], 2.0) is None
