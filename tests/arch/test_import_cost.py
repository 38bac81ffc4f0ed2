"""Importing driftlab and printing its help stay cheap: they load no heavy package."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "torchvision",
    "ray",
    "numpy",
    "pandas",
    "pyarrow",
    "cv2",
    "av",
    "matplotlib",
    "duckdb",
    "optuna",
    "scipy.ndimage",
    "scipy.stats",
    "sklearn",
}
TEACH = """
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.training.pretrain import pretrain
from driftlab.platform.networks.training.artifacts import Recipe
pretrain(Recipe("half", height=16, width=16, steps=1))
count_cost(build("half", 8, seed=0), 16, 16)
"""
HELP = "import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module('driftlab', run_name='__main__')"


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running this, by full and by top-level names."""
    end = "import json, sys; print(json.dumps(list(sys.modules)))"
    wrapped = f"try:\n    exec({code!r})\nexcept SystemExit:\n    pass\n{end}"
    done = subprocess.run([sys.executable, "-c", wrapped], capture_output=True, text=True, check=True)
    assert "Error" not in done.stderr
    names = json.loads(done.stdout.splitlines()[-1])
    return {*names, *(name.partition(".")[0] for name in names)}


@pytest.mark.parametrize("code", ["import driftlab", HELP], ids=["import", "help"])
def test_commands_load_no_heavy_package(code: str):
    assert loaded_by(code) & HEAVY == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "list",
        "show adaptation/distill",
        *(f"run {name} --dry-run" for name in ("ams-phone", "adascale-tasks", "tta-streams")),
    ],
)
def test_reading_commands_load_no_computing_package(words: str):
    code = f"import runpy, sys; sys.argv[1:] = {words.split()}; runpy.run_module('driftlab', run_name='__main__')"
    assert loaded_by(code) & (HEAVY - {"numpy", "pyarrow", "cv2"}) == set()


@pytest.mark.slow
def test_teaching_and_counting_load_no_compiler():
    """Every process of a run would pay 1.5 s for it."""
    loaded = loaded_by(TEACH)
    assert "torch" in loaded
    assert not {"torch._dynamo", "sympy"} & loaded


def test_a_heavy_import_would_be_seen():
    assert loaded_by("import numpy") & HEAVY == {"numpy"}


@pytest.mark.slow
def test_the_public_names_exist():
    code = "import driftlab, sys; assert all(getattr(driftlab, name) for name in driftlab.__all__)"
    assert "pyarrow" in loaded_by(code)


def test_an_unknown_public_name_is_an_attribute_error():
    import driftlab

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = driftlab.nothing


@pytest.mark.slow
def test_the_doctor_imports_no_compiler_until_torchvision_calls_it():
    """A module of this test replaces the compiler, whose import takes 15 s in a new environment."""
    look = "import sys, torch; from driftlab.cli import doctor; doctor.torchvision(); "
    called = """
assert 'torch._dynamo' not in sys.modules
from types import ModuleType
utils = sys.modules['torch._dynamo.utils'] = ModuleType('torch._dynamo.utils')
utils.is_compile_supported = lambda device: sys.modules.update(was_called=utils) or sys.exit()
from torchvision.ops import roi_align
roi_align(torch.ones(1, 1, 4, 4), [torch.ones(1, 4)], 1)
"""
    assert "was_called" in loaded_by(look + called)
