"""One direction of imports: datasets < platform < actors < serve_apps, tune_spaces < the command line."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once

RANKS = {"datasets": 0, "platform": 1, "actors": 2, "serve_apps": 3, "tune_spaces": 3, "cli": 4}
ROOTS = ("datasets", "platform", "actors", "serve_apps", "tune_spaces")
LEAVES = {"driftlab.errors", "driftlab._torchvision"}
FRONT_DOOR = {"driftlab", "driftlab.__main__"}
PACKAGES = (  # of the platform: each imports from lines above its own, and from its neighbours in one direction
    ("core",),
    ("tasks", "search"),
    ("networks", "world"),
    ("training", "pruning", "wire"),
    ("adaptation", "streaming", "scaling", "scheduling", "systems"),
    ("nodes", "backend"),
    ("loop",),
    ("results",),
    ("request",),
    ("grid",),
    ("field",),
    ("tuning",),
)
RESULTS = (("tables",), ("analysis",), ("claims", "figures"), ("report",))  # likewise, and neighbours stay apart
SEEN_BY_RESULTS = {  # of the data sets: names and colours; a stream only to draw what older runs did not record
    "driftlab.datasets.catalogue": {"label_of", "VIDEO_PREFIX"},
    "driftlab.datasets.frames": {"IGNORE"},
    "driftlab.datasets.sheet": {"PALETTE"},
    "driftlab.datasets.streets.presets": {"CLASSES"},
}
DRAWN_AGAIN = ("driftlab.platform.results.relations.scenery", "driftlab.datasets.catalogue.scenery_of")
FAMILIES = ("streaming", "adaptation", "scaling", "scheduling")
RAY_HOMES = {"ray": {"actors", "serve_apps", "tune_spaces"}, "ray.serve": {"serve_apps"}, "ray.tune": {"tune_spaces"}}
NO_TORCH_AT_IMPORT = (
    "driftlab.platform.core",
    "driftlab.platform.results",
    "driftlab.platform.lab",
    "driftlab.platform.lab",
    "driftlab.platform.tune",
    "driftlab.platform.sim",
    "driftlab.platform.sim",
    "driftlab.cli",
)
DOTTED = re.compile(r"driftlab(\.\w+)+(:\w+)?")

Trees = Mapping[str, ast.Module]


def imports(tree: ast.AST, *, typing_too: bool = True) -> Iterator[str]:
    """Every module that a tree imports, wherever in it; `from a import b` counts as a and as a.b."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing_too:
            yield from (name for other in node.orelse for name in imports(other))
        else:
            yield from imports(node, typing_too=typing_too)


def layer_of(module: str) -> str | None:
    """The layer a module of driftlab belongs to; None for the front door, its leaves, and other packages."""
    parts = module.split(".")
    return parts[1] if parts[0] == "driftlab" and len(parts) > 1 and parts[1] in RANKS else None


def against_the_direction(trees: Trees) -> list[str]:
    faults = []
    for module, tree in trees.items():
        named = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        reached = {*imports(tree), *(name.partition(":")[0] for name in named if DOTTED.fullmatch(name))}
        here = layer_of(module)
        for other in sorted(reached):
            there = layer_of(other)
            if module in LEAVES and other.partition(".")[0] == "driftlab":
                faults.append(f"{module} is a leaf and imports {other}")
            elif here and there and here != there and RANKS[there] >= RANKS[here]:
                faults.append(f"{module} ({here}) reaches {other} ({there})")
            elif here not in (None, "cli") and other in FRONT_DOOR - {"driftlab"}:
                faults.append(f"{module} ({here}) reaches the front door: {other}")
    return faults


def ray_outside_its_homes(trees: Trees) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, tree in trees.items()
        for name in sorted(set(imports(tree)))
        for part, homes in RAY_HOMES.items()
        if (name == part or name.startswith(f"{part}.")) and layer_of(module) not in homes
    ]


def families_that_know_each_other(trees: Trees) -> list[str]:
    """A family may know another one's base, which says what they exchange, and never its members."""
    homes = {f"driftlab.platform.{family}" for family in FAMILIES}
    return [
        f"{module} imports {name}"
        for module, tree in trees.items()
        for name in sorted(set(imports(tree)))
        if _package(module) in homes and _package(name) in homes - {_package(module)}
        if name.split(".")[3:4] not in ([], ["base"])
    ]


def cycle_of_packages(trees: Trees) -> list[str]:
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        if layer_of(module) == "platform":
            reached = {_package(name) for name in imports(tree, typing_too=False) if layer_of(name) == "platform"}
            graph.setdefault(_package(module), set()).update(reached - {_package(module)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def against_the_order_of_packages(trees: Trees) -> list[str]:
    """What a package of the platform imports from one that stands below it in the list."""
    lines = {name: line for line, names in enumerate(PACKAGES) for name in names}
    faults = []
    for module, tree in trees.items():
        here = _package(module).removeprefix("driftlab.platform.")
        for name in sorted(set(imports(tree, typing_too=False))) if layer_of(module) == "platform" else ():
            there = _package(name).removeprefix("driftlab.platform.")
            if there in lines and here in lines and lines[there] > lines[here]:
                faults.append(f"{module} imports {name}")
    return faults


def against_the_order_of_results(trees: Trees) -> list[str]:
    """What a part of the results imports from one that stands beside it or below it in the list."""
    lines = {f"driftlab.platform.results.{name}": line for line, names in enumerate(RESULTS) for name in names}
    faults = []
    for module, tree in trees.items():
        here = ".".join(module.split(".")[:4])
        for name in sorted(set(imports(tree, typing_too=False))) if here in lines else ():
            there = ".".join(name.split(".")[:4])
            if there != here and lines.get(there, -1) >= lines[here]:
                faults.append(f"{module} imports {name}")
    return faults


def results_that_draw(trees: Trees) -> list[str]:
    """What results import of the data sets beside names and colours."""
    plain = {f"{module}.{name}" for module, names in SEEN_BY_RESULTS.items() for name in names}
    return [
        f"{module} imports {name}"
        for module, tree in trees.items()
        for name in sorted(set(imports(tree)))
        if module.startswith("driftlab.platform.results.") and layer_of(name) == "datasets"
        if name not in plain | SEEN_BY_RESULTS.keys() and (module, name) != DRAWN_AGAIN
    ]


def torch_at_import(trees: Trees) -> list[str]:
    return [
        module
        for module, tree in trees.items()
        for node in tree.body
        if module.startswith(NO_TORCH_AT_IMPORT) and isinstance(node, ast.Import | ast.ImportFrom)
        if any(name.split(".")[0] in {"torch", "torchvision", "ray", "cv2"} for name in imports(ast.Module([node], [])))
    ]


def notebook_imports(text: str) -> list[str]:
    """What a notebook imports of driftlab beyond its public name and the results."""
    allowed = re.compile(r"driftlab(\.open_run|\.platform\.results(\..+)?)?")
    return [name for name in imports(ast.parse(text)) if name.startswith("driftlab") and not allowed.fullmatch(name)]


def _package(module: str) -> str:
    return ".".join(module.split(".")[:3])


@pytest.fixture(scope="session")
def trees(sources: Iterable) -> Trees:
    return {source.name: source.tree for source in sources}


@pytest.mark.slow
def test_layers_point_one_way(trees):
    assert against_the_direction(trees) == []


@pytest.mark.slow
def test_ray_stays_in_its_folders(trees):
    assert ray_outside_its_homes(trees) == []


@pytest.mark.slow
def test_families_do_not_know_each_other(trees):
    assert families_that_know_each_other(trees) == []


@pytest.mark.slow
def test_packages_of_the_platform_form_no_cycle(trees):
    assert cycle_of_packages(trees) == []


@pytest.mark.slow
def test_packages_of_the_platform_stand_on_one_another(trees):
    assert against_the_order_of_packages(trees) == []


def test_parts_of_the_results_stand_on_one_another(trees):
    assert against_the_order_of_results(trees) == []


@pytest.mark.slow
def test_results_are_drawn_from_tables(trees):
    assert results_that_draw(trees) == []


def test_every_part_of_the_results_has_its_place(root: Path):
    listed = [name for names in RESULTS for name in names]
    assert sorted(listed) == sorted(path.parent.name for path in (root / "platform/results").glob("*/__init__.py"))


def test_every_package_of_the_platform_has_its_place(root: Path):
    listed = [name for names in PACKAGES for name in names]
    assert sorted(listed) == sorted(path.name for path in (root / "platform").iterdir() if any(path.glob("*.py")))


def test_the_platform_imports_no_tensors_to_read_a_request(trees):
    assert torch_at_import(trees) == []


def test_notebooks_read_only_tables(root: Path):
    faults = {path.name: notebook_imports(path.read_text()) for path in sorted((root / "notebooks").glob("*.py"))}
    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.parametrize("folder", ROOTS)
def test_root_folders_hide_nothing(root: Path, folder: str):
    names = {path.stem for path in (root / folder).glob("*.py")}
    assert "__init__" not in names, f"{folder}/__init__.py would shadow a package called {folder}"
    assert names & sys.stdlib_module_names == set()
    assert (root / "driftlab" / folder).readlink() == Path("..", folder)


@pytest.mark.parametrize(
    ("rule", "module", "line"),
    [
        (against_the_direction, "driftlab.datasets.a", "import driftlab.platform.core.records"),
        (against_the_direction, "driftlab.datasets.a", "from driftlab import platform"),
        (against_the_direction, "driftlab.platform.lab.a", "def f():\n    from driftlab.actors import backend"),
        (against_the_direction, "driftlab.platform.lab.a", "NAME = 'driftlab.actors.backend:RayBackend'"),
        (against_the_direction, "driftlab.serve_apps.a", "from driftlab.tune_spaces import b"),
        (against_the_direction, "driftlab.errors", "from driftlab.platform.core import records"),
        (ray_outside_its_homes, "driftlab.platform.sim.nodes.a", "import ray"),
        (ray_outside_its_homes, "driftlab.actors.a", "from ray import serve"),
        (ray_outside_its_homes, "driftlab.serve_apps.a", "import ray.tune.search"),
        (families_that_know_each_other, "driftlab.platform.scaling.a", "from driftlab.platform.streaming import local"),
        (
            against_the_order_of_packages,
            "driftlab.platform.streaming.wire.a",
            "from driftlab.platform.sim.nodes import camera as device",
        ),
        (
            against_the_order_of_results,
            "driftlab.platform.results.tables.a",
            "def f():\n    from driftlab.platform.results import relations as analysis",
        ),
        (
            against_the_order_of_results,
            "driftlab.platform.results.claims.a",
            "from driftlab.platform.results.figures.b import c",
        ),
        (results_that_draw, "driftlab.platform.results.figures.a", "from driftlab.datasets.streets import travel"),
        (results_that_draw, "driftlab.platform.results.claims.a", "from driftlab.datasets.catalogue import scenery_of"),
        (torch_at_import, "driftlab.platform.results.a", "import torch.nn as nn"),
    ],
)
def test_each_rule_catches_its_breach(rule, module: str, line: str):
    assert rule({module: ast.parse(line)})


def test_a_cycle_is_found():
    trees = {
        "driftlab.platform.world.a": ast.parse("import driftlab.platform.networks.b"),
        "driftlab.platform.networks.b": ast.parse("def f():\n    from driftlab.platform.world import a"),
    }
    assert set(cycle_of_packages(trees)) == {"driftlab.platform.world", "driftlab.platform.networks"}


def test_a_type_alone_makes_no_cycle():
    trees = {
        "driftlab.platform.world.a": ast.parse("import driftlab.platform.networks.b"),
        "driftlab.platform.networks.b": ast.parse("if TYPE_CHECKING:\n    from driftlab.platform.world import a"),
    }
    assert cycle_of_packages(trees) == []


def test_a_notebook_that_reaches_inside_is_caught():
    assert notebook_imports("import driftlab\nfrom driftlab.platform.lab import run")
    assert notebook_imports("import driftlab\nfrom driftlab.platform.results import plots") == []
