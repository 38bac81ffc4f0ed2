"""The wheel holds every module and every file that the package reads, and works far from the checkout."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from trees import statements

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sources")]

FOLDERS = ("driftlab", "datasets", "platform", "actors", "serve_apps", "tune_spaces")
ROOT_FILES = ("pyproject.toml", "README.md", "LICENSE")
IGNORED = ("__pycache__",)


def expected(root: Path) -> set[str]:
    """List the files that belong in the wheel, by their names there; the links in driftlab/ are folders."""
    found = set()
    for folder, subfolders, files in os.walk(root / "driftlab", followlinks=True):
        subfolders[:] = [name for name in subfolders if name not in IGNORED]
        found |= {str((Path(folder) / name).relative_to(root)) for name in files if not name.startswith(".")}
    return found


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: building leaves folders behind that a later wheel would take in."""
    copy = tmp_path_factory.mktemp("source")
    for name in FOLDERS:
        shutil.copytree(root / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns(*IGNORED))
    for name in ROOT_FILES:
        shutil.copy(root / name, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-qq",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(copy),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(out.glob("driftlab-*.whl"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def undeclared(tree: ast.Module, declared: set[str], homes: Mapping[str, list[str]]) -> set[str]:
    """List the packages that a module imports without a declared dependency."""
    type_only = {
        inner
        for node in statements(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in statements(node)
    }
    nodes = [node for node in statements(tree) if node not in type_only]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    tops = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"driftlab"}
    return {top for top in tops if not declared & {home.lower() for home in homes.get(top, [top])}}


@pytest.fixture(scope="module")
def declared(unpacked: Path) -> set[str]:
    """List the declared dependencies of driftlab, without those for development."""
    found = next(iter(metadata.distributions(name="driftlab", path=[str(unpacked)])))
    asked = [Requirement(line) for line in found.requires or ()]
    return {one.name.lower() for one in asked if one.marker is None or "dev" not in str(one.marker)}


def test_imported_packages_are_declared(sources, declared: set[str]):
    homes = metadata.packages_distributions()
    found = {str(source.path): undeclared(source.tree, declared, homes) for source in sources}
    assert {path: names for path, names in found.items() if names} == {}


def test_an_undeclared_import_is_caught(declared: set[str]):
    tree = ast.parse("import numpy, pytest\nfrom no.such import thing")
    assert undeclared(tree, declared, metadata.packages_distributions()) == {"pytest", "no"}


def test_the_wheel_holds_every_file(root: Path, wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected(root)


def test_the_wheel_holds_as_many_files_as_git_lists(root: Path, wheel: Path):
    if not (root / ".git").exists():
        pytest.skip("no checkout of git")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *FOLDERS]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    links = {name for name in listed if (root / name).is_symlink()}
    assert links == {f"driftlab/{folder}" for folder in FOLDERS[1:]}
    with zipfile.ZipFile(wheel) as archive:
        held = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert len(held) == len(set(listed) - links)


def test_expected_files_include_data_and_templates(root: Path):
    names = expected(root)
    assert {"driftlab/py.typed", "driftlab/errors.py", "driftlab/platform/core/records.py"} <= names
    assert any(name.endswith(".yaml") for name in names)
    assert any("/templates/" in name for name in names)


def test_the_wheel_contains_its_licence(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        licence = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
        assert b"Apache License" in archive.read(licence[0])


def test_the_unpacked_wheel_works_elsewhere(unpacked: Path, tmp_path: Path):
    code = """
import driftlab, platform
from driftlab.cli.app import build_app
from driftlab.platform.lab import read as experiment
assert platform.python_version()
print(driftlab.__file__, *experiment.names())
"""
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    file, *experiments = done.stdout.split()
    assert Path(file).is_relative_to(unpacked)
    assert "quick" in experiments


def test_the_demo_needs_no_extra(root: Path):
    """`make demo` installs the package without extras; a second act that fails is a bad first impression."""
    always = (root / "pyproject.toml").read_text("utf-8").partition("\ndependencies = [")[2].partition("\n]")[0]
    installed = {Requirement(one).name for one in ast.literal_eval(f"[{always}]")}
    acts = [path.read_text("utf-8") for path in (root / "platform/lab/experiments").glob("demo-*.yaml")]
    assert any("set:digits" in text for text in acts)
    assert "scikit-learn" in installed
    assert not any("photos" in text for text in acts)  # scikit-image is an extra
