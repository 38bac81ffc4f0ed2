"""torchvision can be imported with a torch of another build, and is unchanged with a matching one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch

from driftlab._torchvision import library_loads, non_maximum_suppression

FAKE_INIT = """
import torch
from pathlib import Path
from torchvision.ops import boxes
compiled = Path(__file__).with_name("_C.so")
if compiled.exists():
    try:
        torch.ops.load_library(compiled)
        boxes.loaded = True
    except OSError:
        pass
if not boxes.loaded:  # what the real package does: describe an operator, which fails where nothing defined it
    torch.library.register_fake("torchvision::nms")(lambda dets, scores, threshold: scores.new_empty(0))
"""
FAKE_BOXES = """
loaded = False
def _assert_has_ops():
    if not loaded:
        raise RuntimeError("no compiled operators")
"""
REPORT = """
import os
import sys
from driftlab import _torchvision
assert "torch" not in sys.modules
import torch  # once for all packages: it takes most of the time
for folder in sys.argv[1:]:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    sys.path.insert(0, folder)
    for _ in range(2):
        assert _torchvision.import_torchvision() is sys.modules["torchvision"]
    from torchvision.ops import boxes
    defined = hasattr(torch.ops.torchvision, "nms")
    print(_torchvision.state(), boxes._assert_has_ops.__module__, defined, flush=True)
    os._exit(0)
"""


def fake(site: Path) -> Path:
    """Write a package that fails at import as torchvision does when its library cannot load."""
    package = site / "torchvision"
    (package / "ops").mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_INIT)
    (package / "ops" / "__init__.py").write_text("")
    (package / "ops" / "boxes.py").write_text(FAKE_BOXES)
    return package


def python(code: str, path: Path, *words: Path) -> list[str]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{code}", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def loadable_library() -> Path | None:
    """Return a shared library of this interpreter, which torch can open in place of torchvision's."""
    spec = importlib.util.find_spec("_ctypes")
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".so") else None


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Import torchvision with a broken library, with none, and with one that loads, each in a new process."""
    loads = loadable_library()
    sites = {name: tmp_path_factory.mktemp(name) for name in ("broken", "absent", *(["loads"] if loads else []))}
    libraries = {name: fake(site) / "_C.so" for name, site in sites.items()}
    libraries["broken"].write_bytes(b"not a library")
    if loads:
        libraries["loads"].symlink_to(loads)
    return dict(zip(sites, python(REPORT, Path(), *sites.values()), strict=True))


@pytest.mark.slow
def test_a_broken_torchvision_is_given_the_missing_operators(reports: dict[str, str]):
    assert reports["broken"] == "mended driftlab._torchvision True"


@pytest.mark.slow
def test_a_torchvision_without_library_is_mended(reports: dict[str, str]):
    assert reports["absent"] == "mended driftlab._torchvision True"


@pytest.mark.slow
def test_a_working_torchvision_is_unchanged(reports: dict[str, str]):
    if "loads" not in reports:
        pytest.skip("this interpreter has no extension module in a separate file")
    assert reports["loads"] == "works torchvision.ops.boxes False"


def test_an_absent_torchvision_stays_absent(tmp_path: Path):
    hide = """
import importlib.machinery
class Hide(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname == "torchvision" else super().find_spec(fullname, path, target)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Hide
import driftlab
from driftlab import _torchvision
import driftlab.platform.networks.zoo
print(_torchvision.state())
"""
    assert python(hide, tmp_path) == ["absent"]


@pytest.mark.slow
def test_the_installed_torchvision_imports():
    spec = importlib.util.find_spec("torchvision")
    if spec is None:
        pytest.skip("torchvision is not installed")
    code = """
import torch
from driftlab import _torchvision
_torchvision.import_torchvision()
from torchvision.ops import batched_nms
from torchvision.models import mobilenet_v3_small
boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [50, 50, 60, 60]])
kept = batched_nms(boxes, torch.tensor([0.5, 0.9, 0.1]), torch.tensor([0, 0, 0]), 0.5)
scores = mobilenet_v3_small(num_classes=3).eval()(torch.zeros(1, 3, 32, 32))
print(_torchvision.state(), kept.tolist(), tuple(scores.shape))
"""
    state = "works" if library_loads(spec) else "mended"
    assert python(code, Path()) == [f"{state} [1, 2] (1, 3)"]


def overlap(a: torch.Tensor, b: torch.Tensor) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = float(max(width, 0) * max(height, 0))
    both = float((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]))
    return shared / (both - shared)


@pytest.mark.parametrize("seed", range(5))
def test_suppression_equals_greedy_selection(seed: int):
    generator = torch.Generator().manual_seed(seed)
    boxes = torch.rand(60, 4, generator=generator) * 10
    boxes[:, 2:] += boxes[:, :2] + 1
    scores = torch.rand(60, generator=generator)
    kept: list[int] = []
    for index in scores.argsort(descending=True).tolist():
        if all(overlap(boxes[index], boxes[other]) <= 0.3 for other in kept):
            kept.append(index)
    found = non_maximum_suppression(boxes, scores, 0.3).tolist()
    assert found == kept
    assert 1 < len(found) < 60
    assert all(overlap(boxes[a], boxes[b]) <= 0.3 for a, b in combinations(found, 2))


def test_suppression_of_no_boxes_is_empty():
    kept = non_maximum_suppression(torch.zeros(0, 4), torch.zeros(0), 0.5)
    assert kept.shape == (0,)
    assert kept.dtype == torch.int64


def test_boxes_without_area_do_not_suppress_others():
    point = torch.tensor([[5.0, 5, 5, 5], [5, 5, 5, 5]])
    assert sorted(non_maximum_suppression(point, torch.tensor([0.2, 0.1]), 0.5).tolist()) == [0, 1]
