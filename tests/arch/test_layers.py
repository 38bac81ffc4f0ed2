"""The direction of imports: the table of the platform's packages and the folders around them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once

ROOTS = ("datasets", "platform", "actors", "serve_apps", "tune_spaces")
# `platform` is the bare folder: each room in it has its own row
FREE = "errors renamed determinism _torchvision datasets platform"
METHODS = f"{FREE} core world networks scaling adaptation streaming scheduling"
PLATFORM = f"{METHODS} sim results lab tune field"
MAY_IMPORT: Mapping[str, str] = {  # allowed imports: the rows above the row; `base` is one module
    "renamed": "",
    "errors": "renamed",
    "determinism": "errors",
    "_torchvision": "",
    "datasets": "errors _torchvision",
    "core": FREE,
    "world": f"{FREE} core",
    "networks": f"{FREE} core",
    "scaling": f"{FREE} core world networks",
    "adaptation": f"{FREE} core networks scaling.base",
    "streaming": f"{FREE} core world networks adaptation.base",
    "scheduling": f"{FREE} core world",
    "sim": METHODS,
    "results": f"{FREE} core world networks",
    "lab": f"{METHODS} sim results",
    "one_process": f"{METHODS} sim results lab",
    "tune": f"{METHODS} sim results lab one_process",
    "field": f"{METHODS} sim results lab one_process",
    "actors": PLATFORM,
    "serve_apps": f"{PLATFORM} actors",
    "tune_spaces": f"{PLATFORM} actors",
    "cli": f"{PLATFORM} one_process actors serve_apps tune_spaces",
}
OTHERS = ("renamed", "errors", "determinism", "_torchvision", "one_process", "cli")
ROOMS = tuple(name for name in MAY_IMPORT if name not in (*OTHERS, *ROOTS))
EXCEPTIONS = {  # imports against the table, each for one function or table without any state
    "driftlab.platform.results.relations.traffic": "driftlab.platform.streaming.wire.values.bytes_of",
    "driftlab.platform.results.relations.sharing": "driftlab.platform.scheduling.costs.weigh_cost",
}
RESULTS = (
    ("tables",),
    ("relations",),
    ("claims", "figures"),
    ("report", "board"),
)  # each imports from lines above its own; neighbours stay apart
SEEN_BY_RESULTS = {  # of the data sets: names and colours; a stream only to draw scenes that older runs did not record
    "driftlab.datasets.catalogue": {"label_of", "shifts_of_domains", "VIDEO_PREFIX"},
    "driftlab.datasets.frames": {"IGNORE"},
    "driftlab.datasets.sheet": {"PALETTE"},
    "driftlab.datasets.streets.presets": {"CLASSES"},
}
DRAWN_AGAIN = ("driftlab.platform.results.relations.scenery", "driftlab.datasets.catalogue.scene_properties")
RAY_HOMES = {"ray": {"actors", "serve_apps", "tune_spaces"}, "ray.serve": {"serve_apps"}, "ray.tune": {"tune_spaces"}}
NO_TORCH_AT_IMPORT = (
    "driftlab.platform.core",
    "driftlab.platform.results",
    "driftlab.platform.lab",
    "driftlab.platform.tune",
    "driftlab.platform.sim",
    "driftlab.cli",
)
COMPUTES = "driftlab.platform.sim.nodes"  # the part of the simulator that runs networks
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
        elif not isinstance(node, ast.expr):  # most nodes; none holds an import
            yield from imports(node, typing_too=typing_too)


def room_of(module: str) -> str | None:
    """The row of the table that a module belongs to; None for the front door and for other packages."""
    top, *parts = module.split(".")
    name = parts[1] if parts[:1] == ["platform"] and len(parts) > 1 else "".join(parts[:1])
    return name if top == "driftlab" and name in {*MAY_IMPORT, "platform", "__main__"} else None


def allowed(module: str, name: str) -> bool:
    here, there = room_of(module) or "", room_of(name)
    row = {here, *MAY_IMPORT[here].split()}
    of_base = f"{there}.base" in row and f"{name}.".startswith(f"driftlab.platform.{there}.base.")
    return there is None or there in row or of_base or f"{EXCEPTIONS.get(module)}.".startswith(f"{name}.")


def against_the_table(trees: Trees) -> list[str]:
    """List the imports of a module that the table forbids, in strings as well as in statements."""
    faults = []
    for module, tree in trees.items():
        strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        named = {text.partition(":")[0] for text in strings if isinstance(text, str) and DOTTED.fullmatch(text)}
        reached = {*imports(tree), *(name for name in named if room_of(name) not in ROOMS)}
        if room_of(module) in MAY_IMPORT:
            faults += [f"{module} imports {name}" for name in sorted(reached) if not allowed(module, name)]
    return faults


def circle_of(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def ray_outside_its_homes(trees: Trees) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, tree in trees.items()
        for name in sorted(set(imports(tree)))
        for part, homes in RAY_HOMES.items()
        if (name == part or name.startswith(f"{part}.")) and room_of(module) not in homes
    ]


def against_the_order_of_results(trees: Trees) -> list[str]:
    """List the imports of a part of the results from parts on its level or below it."""
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
    """List the imports of the results from the data sets, except names and colours."""
    plain = {f"{module}.{name}" for module, names in SEEN_BY_RESULTS.items() for name in names}
    return [
        f"{module} imports {name}"
        for module, tree in trees.items()
        for name in sorted(set(imports(tree)))
        if module.startswith("driftlab.platform.results.") and room_of(name) == "datasets"
        if name not in plain | SEEN_BY_RESULTS.keys() and (module, name) != DRAWN_AGAIN
    ]


def torch_at_import(trees: Trees) -> list[str]:
    return [
        module
        for module, tree in trees.items()
        for node in tree.body
        if module.startswith(NO_TORCH_AT_IMPORT)
        and not module.startswith(COMPUTES)
        and isinstance(node, ast.Import | ast.ImportFrom)
        if any(name.split(".")[0] in {"torch", "torchvision", "ray", "cv2"} for name in imports(ast.Module([node], [])))
    ]


def notebook_imports(text: str) -> list[str]:
    """List the imports of a notebook from driftlab, except its public names and the results."""
    allowed = re.compile(r"driftlab(\.open_run|\.platform\.results(\..+)?)?")
    return [name for name in imports(ast.parse(text)) if name.startswith("driftlab") and not allowed.fullmatch(name)]


@pytest.fixture(scope="session")
def trees(sources: Iterable) -> Trees:
    return {source.name: source.tree for source in sources}


@pytest.mark.slow
def test_rooms_import_only_as_the_table_allows(trees):
    assert against_the_table(trees) == []


def test_a_circle_is_found():
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(circle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


def test_every_exception_is_needed(trees):
    assert {module for module, name in EXCEPTIONS.items() if name in set(imports(trees[module]))} == set(EXCEPTIONS)


def test_rows_name_only_rows_above_their_own():
    above: set[str] = {"platform"}
    for room, row in MAY_IMPORT.items():
        assert {name.removesuffix(".base") for name in row.split()} <= above, room
        above.add(room)


def test_every_package_has_a_row(root: Path):
    assert sorted(ROOMS) == sorted(path.name for path in (root / "platform").iterdir() if any(path.glob("*.py")))


def readme_imports(text: str) -> set[str]:
    """The rooms and folders that a README says may be imported, apart from those that are free for all."""
    line = re.search(r"^May import: (.+?)\.[ \n]", text, re.MULTILINE | re.DOTALL)
    names = set(re.findall(r"`([\w.]+)/?`", line[1])) if line else {"no such line"}
    return names - {"platform"} | set(ROOMS) if "platform" in names else names


@pytest.mark.parametrize("room", [name for name in MAY_IMPORT if name in {*ROOMS, *ROOTS}])
def test_each_readme_gives_the_row_of_the_table(root: Path, room: str):
    text = (root / "platform" / room if room in ROOMS else root / room).joinpath("README.md").read_text()
    assert readme_imports(text) == set(MAY_IMPORT[room].split()) - set(FREE.split())


@pytest.mark.parametrize("folder", [*ROOTS, *(f"platform/{room}" for room in ROOMS), "driftlab", "tests", "benchmarks"])
def test_files_named_in_a_readme_exist(root: Path, folder: str):
    text = (root / folder / "README.md").read_text()
    names = re.findall(r"`([\w/.]+(?:\.(?:py|yaml|md)|/))`", text)
    assert [
        name for name in names if not any((root / place / name).exists() for place in (folder, "", "platform"))
    ] == []


@pytest.mark.slow
def test_modules_import_each_other_in_no_circle(trees):
    """Imports inside functions count, those for types only do not."""
    graph = {
        module: {
            name
            for name in imports(tree, typing_too=False)
            if name in trees and name != module and not module.startswith(f"{name}.")
        }
        for module, tree in trees.items()
    }
    assert circle_of(graph) == []


@pytest.mark.slow
def test_ray_stays_in_its_folders(trees):
    assert ray_outside_its_homes(trees) == []


def test_parts_of_the_results_stand_on_one_another(trees):
    assert against_the_order_of_results(trees) == []


@pytest.mark.slow
def test_results_are_drawn_from_tables(trees):
    assert results_that_draw(trees) == []


def test_every_part_of_the_results_has_its_place(root: Path):
    listed = [name for names in RESULTS for name in names]
    assert sorted(listed) == sorted(path.parent.name for path in (root / "platform/results").glob("*/__init__.py"))


def test_the_platform_imports_no_tensors_to_read_a_request(trees):
    assert torch_at_import(trees) == []


def test_notebooks_read_only_tables(root: Path):
    faults = {path.name: notebook_imports(path.read_text()) for path in sorted((root / "notebooks").glob("*.py"))}
    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.parametrize("folder", ROOTS)
def test_root_folders_shadow_no_package(root: Path, folder: str):
    names = {path.stem for path in (root / folder).glob("*.py")}
    assert "__init__" not in names, f"{folder}/__init__.py would shadow a package called {folder}"
    assert names & sys.stdlib_module_names == set()
    assert (root / "driftlab" / folder).readlink() == Path("..", folder)


@pytest.mark.parametrize(
    ("rule", "module", "line"),
    [
        (against_the_table, "driftlab.datasets.a", "import driftlab.platform.core.records"),
        (against_the_table, "driftlab.datasets.a", "from driftlab import platform"),
        (against_the_table, "driftlab.platform.lab.a", "def f():\n    from driftlab.actors import backend"),
        (against_the_table, "driftlab.platform.lab.a", "NAME = 'driftlab.actors.backend:RayBackend'"),
        (against_the_table, "driftlab.serve_apps.a", "from driftlab.tune_spaces import b"),
        (against_the_table, "driftlab.errors", "from driftlab.platform.core import records"),
        (against_the_table, "driftlab.platform.core.a", "from driftlab import __main__"),
        (against_the_table, "driftlab.platform.scaling.a", "from driftlab.platform.streaming import local"),
        (against_the_table, "driftlab.platform.streaming.a", "from driftlab.platform.adaptation.tent import Tent"),
        (against_the_table, "driftlab.platform.streaming.wire.a", "from driftlab.platform.sim.nodes import camera"),
        (against_the_table, "driftlab.platform.core.spec", "from driftlab.platform.networks import branched"),
        (ray_outside_its_homes, "driftlab.platform.sim.nodes.a", "import ray"),
        (ray_outside_its_homes, "driftlab.actors.a", "from ray import serve"),
        (ray_outside_its_homes, "driftlab.serve_apps.a", "import ray.tune.search"),
        (
            against_the_order_of_results,
            "driftlab.platform.results.tables.a",
            "def f():\n    from driftlab.platform.results import relations",
        ),
        (
            against_the_order_of_results,
            "driftlab.platform.results.claims.a",
            "from driftlab.platform.results.figures.b import c",
        ),
        (results_that_draw, "driftlab.platform.results.figures.a", "from driftlab.datasets.streets import travel"),
        (
            results_that_draw,
            "driftlab.platform.results.claims.a",
            "from driftlab.datasets.catalogue import scene_properties",
        ),
        (torch_at_import, "driftlab.platform.results.a", "import torch.nn as nn"),
    ],
)
def test_each_rule_catches_its_breach(rule, module: str, line: str):
    assert rule({module: ast.parse(line)})


def test_a_notebook_that_reaches_inside_is_caught():
    assert notebook_imports("import driftlab\nfrom driftlab.platform.lab import run")
    assert notebook_imports("import driftlab\nfrom driftlab.platform.results import plots") == []
