"""The Python versions of pyproject.toml agree, and the code uses no feature newer than the lowest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import vermin

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sources")]

CONFIG = vermin.Config()
CONFIG.set_parse_comments(False)  # no comment excludes a line, and to read them takes a fifth of the time
UNCHECKED = ("tests", "benchmarks", "notebooks", "docs")  # mypy reads the package, for the lowest Python


def lowest_python(text: str) -> tuple[int, int]:
    """Return the lowest Python that can run a module, by its syntax and its use of the library."""
    found = vermin.visit(text, CONFIG).minimum_versions()
    return max(version for version in found if version is not None)


@pytest.fixture(scope="module")
def promised(root: Path) -> list[tuple[int, int]]:
    """Every version that a classifier names."""
    named = re.findall(r"Python :: 3\.(\d+)", (root / "pyproject.toml").read_text())
    return [(3, int(minor)) for minor in named]


def test_the_lowest_python_is_the_same_everywhere(root: Path, promised):
    settings = (root / "pyproject.toml").read_text()
    minor = min(promised)[1]
    assert f'requires-python = ">=3.{minor}"' in settings
    assert f'target-version = "py3{minor}"' in settings
    assert f'python_version = "3.{minor}"' in settings
    assert f"sys.version_info < (3, {minor})" in (root / "Makefile").read_text()
    assert f"Python 3.{minor} or newer" in (root / "README.md").read_text()


def test_no_promised_python_is_left_out_between(promised):
    assert promised == [(3, minor) for minor in range(promised[0][1], promised[-1][1] + 1)]
    assert sys.version_info[:2] in promised


def test_files_outside_the_package_run_on_the_lowest_python(root: Path, promised):
    files = [file for folder in UNCHECKED for file in sorted((root / folder).rglob("*.py"))]
    needed = {str(file.relative_to(root)): lowest_python(file.read_text(encoding="utf-8")) for file in files}
    assert len(needed) > 100
    assert {file: version for file, version in needed.items() if version > min(promised)} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import tomllib",
        "from datetime import UTC",
        "from enum import StrEnum",
        "from typing import Self",
        "try:\n    pass\nexcept* ValueError:\n    pass",
    ],
)
def test_a_newer_module_name_or_syntax_is_caught(text: str):
    assert lowest_python(text) == (3, 11)


@pytest.mark.parametrize(
    "text", ["try:\n    pass\nexcept* ValueError:\n    pass\n", "def first[T](a: list[T]) -> T:\n    return a[0]\n"]
)
def test_the_linter_refuses_newer_syntax_in_the_package(root: Path, text: str):
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "platform/core/new.py", "-"]
    done = subprocess.run(command, input=text, cwd=root, capture_output=True, text=True, check=False)
    assert "on Python 3.10" in done.stdout
