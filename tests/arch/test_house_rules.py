"""The house style that no other tool holds: sizes and names; and that the linter holds the rest."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trees import statements

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once

MODULE_LINES = 500
FUNCTION_LINES = 60
USUAL_FUNCTION_LINES = 25  # that 95 % of the functions keep to
ACTORS = "actors/actors.py"  # Ray shows the name of an actor's class, so an actor is named like the node that it hosts
SLOPPY = """
from os.path import *


def wide(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int) -> None:
    try:
        print(a)  # TODO: later
    except:
        pass
"""


def function_lengths(tree: ast.Module) -> dict[str, int]:
    """Measure every function of a module; the key is unique by its line."""
    functions = [node for node in statements(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {f"{node.name}:{node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}


def long_functions(tree: ast.Module) -> Iterator[str]:
    for name, lines in function_lengths(tree).items():
        if lines > FUNCTION_LINES:
            yield f"{name.partition(':')[0]} ({lines} lines)"


def class_places(modules: Iterable[Any]) -> dict[str, list[str]]:
    """List the modules that define each public class, actors aside."""
    places = defaultdict(list)
    for source in modules:
        for node in statements(source.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and str(source.path) != ACTORS:
                places[node.name].append(str(source.path))
    return places


def lint(root: Path, path: str, text: str) -> set[str]:
    """The codes that the project's own linter settings find in a file of this name."""
    command = [sys.executable, "-m", "ruff", "check", "--output-format=concise", "--stdin-filename", path, "-"]
    done = subprocess.run(command, input=text, cwd=root, capture_output=True, text=True, check=False)
    return {line.split()[1] for line in done.stdout.splitlines() if line.startswith(path)}


@pytest.mark.slow
def test_modules_fit_in_the_head(sources, own_tests):
    found = {str(source.path): source.text.count("\n") for source in (*sources, *own_tests)}
    assert {path: lines for path, lines in found.items() if lines > MODULE_LINES} == {}


@pytest.mark.slow
def test_functions_fit_on_a_screen(sources, own_tests):
    found = {str(source.path): list(long_functions(source.tree)) for source in (*sources, *own_tests)}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.slow
@pytest.mark.parametrize("which", ["sources", "own_tests"])
def test_most_functions_are_short(which: str, request: pytest.FixtureRequest):
    modules = request.getfixturevalue(which)
    lengths = [lines for source in modules for lines in function_lengths(source.tree).values()]
    assert np.quantile(lengths, 0.95) <= USUAL_FUNCTION_LINES


@pytest.mark.slow
def test_no_two_modules_define_a_public_class_of_one_name(sources, examples):
    places = class_places([*sources, *examples])
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_long_function_is_caught():
    body = "    pass\n" * FUNCTION_LINES
    assert list(long_functions(ast.parse(f"def long():\n{body}"))) == [f"long ({FUNCTION_LINES + 1} lines)"]


@pytest.mark.parametrize(
    "folder",
    [
        "datasets",
        "platform/lab",
        "platform/sim",
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
