"""The house style that no other tool holds: sizes of modules and functions; and that the linter holds the rest."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MODULE_LINES = 400
FUNCTION_LINES = 60
SLOPPY = """
from os.path import *


def wide(a: int, b: int, c: int, d: int, e: int, f: int, g: int) -> None:
    try:
        print(a)  # TODO: later
    except:
        pass
"""


def long_functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{node.name} ({lines} lines)"


def lint(root: Path, path: str, text: str) -> set[str]:
    """The codes that the project's own linter settings find in a file of this name."""
    command = [sys.executable, "-m", "ruff", "check", "--output-format=concise", "--stdin-filename", path, "-"]
    done = subprocess.run(command, input=text, cwd=root, capture_output=True, text=True, check=False)
    return {line.split()[1] for line in done.stdout.splitlines() if line.startswith(path)}


def test_modules_fit_in_the_head(sources):
    found = {str(source.path): source.text.count("\n") for source in sources}
    assert {path: lines for path, lines in found.items() if lines > MODULE_LINES} == {}


def test_functions_fit_on_a_screen(sources):
    found = {str(source.path): list(long_functions(source.tree)) for source in sources}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_long_function_is_caught():
    body = "    pass\n" * FUNCTION_LINES
    assert list(long_functions(ast.parse(f"def long():\n{body}"))) == [f"long ({FUNCTION_LINES + 1} lines)"]


@pytest.mark.parametrize(
    "folder",
    [
        "datasets",
        "platform/request",
        "platform/grid",
        "platform/backend",
        "platform/loop",
        "actors",
        "serve_apps",
        "tune_spaces",
    ],
)
def test_the_linter_holds_the_rest(root: Path, folder: str):
    unwanted = {"F403", "E722", "T201", "FIX002", "PLR0913", "I002"}
    assert unwanted <= lint(root, f"{folder}/sloppy.py", SLOPPY)


def test_the_command_line_may_print_and_take_options(root: Path):
    found = lint(root, "driftlab/cli/sloppy.py", SLOPPY)
    assert {"F403", "E722"} <= found
    assert found & {"T201", "PLR0913"} == set()
