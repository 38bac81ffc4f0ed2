"""The project's own sources, parsed once for every rule."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("datasets", "platform", "actors", "serve_apps", "tune_spaces")


@dataclass(frozen=True)
class Source:
    """One module: the name it is imported by, where it is, its text and its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module


def _read(path: Path) -> Source:
    relative = path.relative_to(ROOT)
    dotted = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    name = dotted if relative.parts[0] == "driftlab" else f"driftlab.{dotted}"
    text = path.read_text(encoding="utf-8")
    return Source(name, relative, text, ast.parse(text))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def examples() -> list[Source]:
    """Every module outside the package that people read: benchmarks and examples."""
    folders = (ROOT / "benchmarks", ROOT / "docs" / "examples")
    return [_read(file) for folder in folders for file in sorted(folder.rglob("*.py"))]


@pytest.fixture(scope="session")
def own_tests() -> list[Source]:
    """Every module of the tests."""
    return [_read(file) for file in sorted((ROOT / "tests").rglob("*.py"))]


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """Every module of the package, once: the links in driftlab/ are passed over."""
    front = [ROOT / "driftlab", ROOT / "driftlab" / "cli"]
    files = [file for folder in front for file in folder.glob("*.py")]
    files += [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    return [_read(file) for file in sorted(files)]
