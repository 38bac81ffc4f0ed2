"""A test whose process dies fails under its own name, and every other test of the run is still run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DIE = "import os\n\nimport pytest\n\n\ndef die():\n    os.abort()\n\n\n"
TWO_CRASHES = DIE + "".join(
    f"def test_{name}():\n    {body}\n\n\n"
    for name, body in {"first": "pass", "dies": "die()", "between": "pass", "dies_too": "die()", "last": "pass"}.items()
)
GROUPED = (
    DIE + "pytestmark = pytest.mark.ray\n\n\ndef test_ray_dies():\n    die()\n\n\ndef test_ray_lives():\n    pass\n"
)
ALONE = "def test_alone():\n    pass\n"
DIES_ALONE = DIE + "def test_dies_alone():\n    die()\n"
# gw0 dies after it has sent its tests; gw1 sends them while gw2, which replaces gw0, is still collecting.
DIES_BEFORE = """

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session):
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker == "gw1":
        wait_for("replaced")
    if worker == "gw2":
        Path("replaced").touch()
        wait_for("told")
        time.sleep(0.5)
    result = yield
    if worker == "gw0":
        os.abort()
    if worker == "gw1":
        Path("told").touch()
    return result
"""


@pytest.fixture
def run(tmp_path: Path):
    """Return a function that runs small files of tests with this project's settings and its conftest."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    shutil.copytree(ROOT / "tests" / "stubs", tmp_path / "stubs")

    def run(files: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
        command += [
            "-p",
            "xdist",
            "-p",
            "pytest_timeout",
            "-p",
            "no:cacheprovider",
            "-v",
            "--dist",
            "loadgroup",
            "--no-loadscope-reorder",
            *options,
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # others take half of the time of each worker
        return subprocess.run(
            [*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, set[str]]:
    """Return the names of the tests that passed and failed, each test counted once."""
    assert "INTERNALERROR" not in done.stdout + done.stderr, done.stdout
    found = re.findall(r"^\[gw\d+\] .*(PASSED|FAILED) \S+::test_(\w+)", done.stdout, re.MULTILINE)
    assert len(found) == len({name for _, name in found}), done.stdout
    return {kind: {name for was, name in found if was == kind} for kind in ("PASSED", "FAILED")}


@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_continues_when_every_worker_dies(run, workers: int):
    files = {"test_a.py": TWO_CRASHES, "test_b.py": GROUPED, "test_c.py": ALONE, "test_d.py": DIES_ALONE}
    done = run(files, "-n", str(workers))
    assert outcomes(done) == {
        "PASSED": {"first", "between", "last", "ray_lives", "alone"},
        "FAILED": {"dies", "dies_too", "ray_dies", "dies_alone"},
    }
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"^FAILED test_a.py::test_dies_too - worker 'gw\d+' crashed", done.stdout, re.MULTILINE)
    assert "4 failed, 5 passed" in done.stdout.splitlines()[-1]


def test_too_many_crashes_end_a_run_with_their_names(run):
    done = run({"test_a.py": TWO_CRASHES, "test_b.py": GROUPED}, "-n", "1", "--max-worker-restart", "1")
    assert outcomes(done)["FAILED"] == {"ray_dies", "dies"}
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "maximum crashed workers reached: 1" in done.stdout


def test_a_worker_that_dies_before_tests_are_distributed_is_replaced(run, tmp_path: Path):
    with (tmp_path / "conftest.py").open("a") as file:
        file.write(DIES_BEFORE)
    done = run({"test_a.py": ALONE, "test_b.py": ALONE.replace("alone", "beside")}, "-n", "2")
    assert outcomes(done) == {"PASSED": {"alone", "beside"}, "FAILED": set()}
    assert done.returncode == pytest.ExitCode.OK


def test_a_replacement_that_collects_other_tests_is_refused(run):
    changing = "@pytest.mark.parametrize('number', range(2 if os.path.exists('died') else 1))\ndef test_n(number):\n"
    body = "    open('died', 'w').close()\n    die()\n\n\ndef test_after():\n    pass\n"
    done = run({"test_a.py": DIE + changing + body}, "-n", "1")
    assert done.returncode == pytest.ExitCode.INTERNAL_ERROR
    assert "replaces a worker that died, and collected other tests" in done.stdout
