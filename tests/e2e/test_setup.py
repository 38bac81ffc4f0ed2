"""Each target of the Makefile installs its dependencies, once."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def make(tmp_path: Path):
    """Return a function that makes a target with fake commands and returns their calls and its output."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    for name in ("python", "driftlab"):
        (binaries / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/called\n')
        (binaries / name).chmod(0o755)

    def make(target: str) -> tuple[list[str], str]:
        (tmp_path / "called").write_text("")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        done = subprocess.run(
            ["make", target, "PYTHON=true"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return (tmp_path / "called").read_text().splitlines(), done.stdout

    return make


def test_the_demo_installs_the_package_only_and_once(make):
    called, printed = make("demo")
    assert [line.split(" install ")[1].split()[-1] for line in called if " install " in line] == ["torchvision", "."]
    assert called[-1] == "driftlab demo"
    assert [line.split(":")[0].strip() for line in printed.splitlines()[1:]] == ["1 of 2", "2 of 2"]
    assert "GB" in printed
    assert make("demo") == (["driftlab demo"], "")


@pytest.mark.parametrize("target", ["test", "test-fast", "check", "types", "format", "setup"])
def test_other_targets_add_the_extras_once_and_the_demo_stays(make, target: str):
    make("demo")
    called, _ = make(target)
    assert called[0].endswith("-e .[dev,notebook,data]")
    assert not any(" install " in line for line in called[1:])
    assert not any(" install " in line for line in make(target)[0])
    assert make("demo") == (["driftlab demo"], "")


def test_jupyterlab_has_its_own_environment(make, tmp_path: Path):
    binaries = tmp_path / ".venv" / "jupyterlab" / "bin"
    binaries.mkdir(parents=True)
    for name in ("python", "jupyter"):
        (binaries / name).write_text(f'#!/bin/sh\necho jupyterlab/{name} "$@" >> {tmp_path}/called\n')
        (binaries / name).chmod(0o755)
    (tmp_path / "notebooks").mkdir()
    make("setup")
    called, _ = make("notebook")
    assert called[0].startswith("jupyterlab/python -m pip ") and called[0].endswith(" jupyterlab jupytext")
    assert called[1] == "python -m ipykernel install --prefix .venv/jupyterlab --name python3"
    assert called[2].startswith("jupyterlab/jupyter lab tour.py")
    assert make("notebook")[0] == called[2:]


def test_the_oldest_ray_has_its_own_environment(make, tmp_path: Path):
    folder = tmp_path / ".venv" / "oldest-ray"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text(f'#!/bin/sh\necho oldest "$@" >> {tmp_path}/called\n')
    (folder / "bin" / "python").chmod(0o755)
    (tmp_path / "pyproject.toml").write_text('    "pyyaml>=6.0.2",\n    "ray[serve,tune]>=2.7.1,<3",\n')
    (tmp_path / "constraints.txt").write_text("pyyaml==6.0.3\nray==2.9.0\nray-haproxy==2.8.25\n")
    called, _ = make("oldest")
    assert (folder / "constraints.txt").read_text() == "pyyaml==6.0.3\nray==2.7.1\nray-haproxy==2.8.25\n"
    installs = [line for line in called if " install " in line]
    assert [line.split()[-1] for line in installs] == ["torchvision", ".[dev]"]
    assert all(line.startswith("oldest ") and " -c .venv/oldest-ray/constraints.txt " in line for line in installs)
    assert any(line.startswith("oldest -m pytest ") and " -m ray " in line for line in called)
    assert not any(" install " in line for line in make("oldest")[0])


def test_no_package_delays_ray():
    required, waiting = set(), [("driftlab", ("dev", "notebook", "data"))]
    while waiting:
        name, extras = waiting.pop()
        for text in metadata.requires(name) or []:
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                key = (canonicalize_name(one.name), tuple(sorted(one.extras)))
                if key not in required:
                    required.add(key)
                    waiting.append(key)
    names = {name for name, _ in required}
    assert {"ray", "jsonschema", "jupytext"} <= names
    assert "rfc3987-syntax" not in names  # jsonschema imports it, and Ray imports jsonschema


def test_new_requirements_are_installed(make, tmp_path: Path):
    make("setup")
    os.utime(tmp_path / "pyproject.toml", (2**32, 2**32))
    assert sum(" install " in line for line in make("setup")[0]) == 3
