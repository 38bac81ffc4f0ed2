"""Importing driftlab and printing its help stay cheap: they load no heavy package."""

from __future__ import annotations

import json
import pickle
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
from driftlab.platform.scaling.controller import Controller
Controller((2, 3), 0, 0.01).learn((1, 2), 1.0)
from driftlab.datasets.labelled import open_set
open_set("digits")
"""
READING = [
    "list",
    "show adaptation/distill",
    *(f"run {name} --dry-run" for name in ("ams-phone", "adascale-tasks", "tta-streams")),
]
RUN = """
try:
    sys.argv[1:] = {words}
    runpy.run_module('driftlab', run_name='__main__')
except SystemExit as end:
    assert not end.code, end.code
loaded[{number}] = list(sys.modules)
"""
HELP = "import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module('driftlab', run_name='__main__')"


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running this, by full and by top-level names."""
    end = "import json, sys; print(json.dumps(list(sys.modules)))"
    wrapped = f"try:\n    exec({code!r})\nexcept SystemExit:\n    pass\n{end}"
    done = subprocess.run([sys.executable, "-c", wrapped], capture_output=True, text=True, check=True)
    assert "Error" not in done.stderr
    return with_packages(json.loads(done.stdout.splitlines()[-1]))


def with_packages(names: list[str]) -> set[str]:
    """Add the top-level name of every module."""
    return {*names, *(name.partition(".")[0] for name in names)}


@pytest.mark.parametrize("code", ["import driftlab", HELP], ids=["import", "help"])
def test_commands_load_no_heavy_package(code: str):
    assert loaded_by(code) & HEAVY == set()


@pytest.fixture(scope="module")
def loaded_by_reading() -> dict[str, set[str]]:
    """The modules that each reading command and those before it have loaded in one interpreter."""
    runs = [RUN.format(words=words.split(), number=number) for number, words in enumerate(READING)]
    code = "\n".join(["import json, runpy, sys", "loaded = {}", *runs, "print(json.dumps(loaded))"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Error" not in done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {words: with_packages(found[str(number)]) for number, words in enumerate(READING)}


@pytest.mark.slow
@pytest.mark.parametrize("words", READING)
def test_reading_commands_load_no_computing_package(words: str, loaded_by_reading: dict[str, set[str]]):
    assert loaded_by_reading[words] & (HEAVY - {"numpy", "pyarrow", "cv2"}) == set()


@pytest.mark.slow
def test_a_driver_reads_the_reply_about_a_built_network_without_torch():
    """Otherwise each driver of a run on Ray takes a second longer."""
    from driftlab.platform.core.registry import Member
    from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe
    from driftlab.platform.sim.nodes.networks import Builder

    recipe = FamilyRecipe(Recipe("half", height=16, width=16, steps=1), Member("scaling", "fixed"))
    facts = Builder().build(recipe).facts
    loaded = loaded_by(f"import pickle; pickle.loads({pickle.dumps(facts)!r})")
    assert "driftlab.platform.scaling.base" in loaded
    assert "torch" not in loaded


@pytest.mark.slow
def test_teaching_searching_and_counting_load_no_compiler():
    """Every process of a run would pay a second for each."""
    loaded = loaded_by(TEACH)
    assert "torch" in loaded
    assert not {"torch._dynamo", "sympy", "sklearn"} & loaded


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
