"""Importing driftlab and asking for help must stay cheap: nothing heavy is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "torchvision", "ray", "numpy", "pandas", "pyarrow", "cv2", "av", "matplotlib", "duckdb", "scipy"}
HELP = "import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module('driftlab', run_name='__main__')"


def loaded_by(code: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after running this."""
    end = "import json, sys; print(json.dumps(list(sys.modules)))"
    wrapped = f"try:\n    exec({code!r})\nexcept SystemExit:\n    pass\n{end}"
    done = subprocess.run([sys.executable, "-c", wrapped], capture_output=True, text=True, check=True)
    assert "Error" not in done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("code", ["import driftlab", HELP], ids=["import", "help"])
def test_nothing_heavy_is_loaded(code: str):
    assert loaded_by(code) & HEAVY == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["list", "show adaptation/distill", "run nestdnn-fig10 --dry-run", "run demo --dry-run"]
)
def test_reading_loads_nothing_that_computes(words: str):
    code = f"import runpy, sys; sys.argv[1:] = {words.split()}; runpy.run_module('driftlab', run_name='__main__')"
    assert loaded_by(code) & (HEAVY - {"numpy", "pyarrow", "cv2"}) == set()


def test_a_heavy_import_would_be_seen():
    assert loaded_by("import numpy") & HEAVY == {"numpy"}


@pytest.mark.slow
def test_the_public_names_are_there():
    code = "import driftlab, sys; assert all(getattr(driftlab, name) for name in driftlab.__all__)"
    assert "pyarrow" in loaded_by(code)


def test_an_unknown_public_name_is_an_attribute_error():
    import driftlab

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = driftlab.nothing
