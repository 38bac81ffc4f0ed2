"""Digests by content: the code of cells, the code of measures, and experiments."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from driftlab import errors
from driftlab.platform.core.documents import read_text, read_yaml
from driftlab.platform.core.registry import METHODS
from driftlab.platform.core.system_table import SYSTEMS

PACKAGE = Path(errors.__file__).parent
CELLS = (  # imported by cells; `lab` makes their settings from a request
    "_torchvision.py",
    "datasets",
    *(f"platform/{room}" for room in ("core", "world", "networks", "scaling", "adaptation", "streaming", "scheduling")),
    "platform/sim",
    "platform/lab",
)
MEASURES = ("platform/results/tables", "platform/results/stats.py", "platform/results/claims/statistics.py")
RELATIONS = "platform/results/relations"
START = ("platform/sim", "platform/lab/read.py", "platform/lab/cells.py", "platform/lab/builds.py")  # imports the rest
EXPERIMENTS, SETS = "platform/lab/experiments", "platform/lab/sets.yaml"
FROM = re.compile(r"^\s*from (driftlab[\w.]*) import ([^\n(]+|\([^)]*\))", re.MULTILINE)
MODULE, QUOTED = re.compile(r"driftlab(?:\.\w+)+"), re.compile(r"[\"']([\w-]+)[\"']")


def code_digest(parts: Sequence[str] = CELLS, package: Path = PACKAGE) -> str:
    """Hash the paths and the content of the Python files in these parts of the package."""
    return _hash_of(_files(parts, package), package)


def cells_digest(experiment: str, size: str | None, package: Path = PACKAGE) -> str | None:
    """Hash the code that cells of an experiment can import; None if there is no file of the experiment.

    A benchmark, named by its file, can import all of it.
    """
    if experiment.endswith(".py"):
        return code_digest(package=package)
    if not (package / EXPERIMENTS / f"{experiment}.yaml").is_file():
        return None
    return _hash_of(cells_code(experiment, size, package), package)


def cells_code(experiment: str, size: str | None, package: Path = PACKAGE) -> list[Path]:
    """List the files that cells of an experiment can import, without methods that it does not use."""
    words = set(_words(_with_sets(_content(experiment, size, package), package)))
    words |= {member.name for name in words & SYSTEMS.keys() for member in SYSTEMS[name].members}
    used, cells = _imported([*_files(START, package), *_methods(words, package)], package), _files(CELLS, package)
    return [file for file in cells if file in used]


def measure_digest(relation: str, package: Path = PACKAGE) -> str:
    """Hash the code of a relation, such as `scores.received`, and of all statistics and tables."""
    used = _imported([package / RELATIONS / f"{relation.partition('.')[0]}.py"], package)
    relations = [file for file in _files([RELATIONS], package) if file in used]
    others = [file for file in _files(MEASURES, package) if file.name != Path(__file__).name]  # this one only hashes
    return _hash_of([*others, *relations], package)


def _files(parts: Sequence[str], package: Path) -> list[Path]:
    places = [package / part for part in parts]
    return [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*.py")))]


def _hash_of(files: Iterable[Path], package: Path) -> str:
    seen = hashlib.sha256()
    for file in files:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        seen.update(f"{file.relative_to(package).as_posix()} {content}\n".encode())
    return seen.hexdigest()


def _methods(words: set[str], package: Path) -> list[Path]:
    """List the files of the methods with these names, of the null members, and of those that these name."""
    files: dict[Path, None] = {}
    for family, methods in METHODS.items():
        place = {name: package / f"platform/{family}/{one.place.partition(':')[0]}.py" for name, one in methods.items()}
        todo = [name for name in methods if name in words or name == next(iter(methods))]
        while todo:
            file = place[todo.pop()]
            if file not in files and file.is_file():
                files[file] = None
                todo += [name for name in QUOTED.findall(read_text(file)) if name in methods]
    return list(files)


def _imported(files: Iterable[Path], package: Path) -> set[Path]:
    """Return these files and all that they import, directly or not; a module's name in a string is an import."""
    found, todo, modules = set(), list(files), set[str]()
    while todo:
        file = todo.pop()
        if file not in found:
            found.add(file)
            named = _modules_in(read_text(file)) - modules
            modules |= named
            todo += [one for module in named for one in _files_of(module, package)]
    return found


@cache
def _modules_in(text: str) -> frozenset[str]:
    names = {f"{module}.{name}" for module, names in FROM.findall(text) for name in re.findall(r"\w+", names)}
    return frozenset({*names, *MODULE.findall(text)})


@cache
def _files_of(module: str, package: Path) -> list[Path]:
    """List the files of a module and of the packages around it; the search is slow."""
    parts = module.split(".")[1:]
    around = [package.joinpath(*parts[:count], "__init__.py") for count in range(1, len(parts) + 1)]
    return [file for file in (package.joinpath(*parts).with_suffix(".py"), *around) if file.is_file()]


def experiment_digest(name: str, size: str | None, package: Path = PACKAGE) -> str | None:
    """Hash the content of an experiment's file at a size, with the sets; None if there is no such file.

    Comments and the summary do not count. Defaults count as code. Of a benchmark the file is hashed.
    """
    if name.endswith(".py"):
        return _hash_of([package.parent / name], package.parent)
    content = _content(name, size, package)
    if not content:
        return None
    return hashlib.sha256(json.dumps(_with_sets(content, package), sort_keys=True).encode()).hexdigest()


def _with_sets(content: list[object], package: Path) -> list[object]:
    """Return the content of an experiment with that of the sets that it names."""
    sets = read_yaml(read_text(package / SETS))
    words = set(_words(content))
    return [content, {f"{kind}/{name}": one for kind in sets for name, one in sets[kind].items() if name in words}]


def _words(document: Any) -> list[str]:
    """List all strings of a document, keys included."""
    if isinstance(document, dict):
        return [*map(str, document), *_words(list(document.values()))]
    if isinstance(document, list):
        return [word for item in document for word in _words(item)]
    return [document] if isinstance(document, str) else []


def _content(name: str, size: str | None, package: Path) -> list[object]:
    """List the content of an experiment's file at a size, then that of the files that it `extends`."""
    file = package / EXPERIMENTS / f"{name}.yaml"
    if not file.is_file():
        return []
    document = read_yaml(read_text(file))
    sizes, base = document.pop("sizes", {}), document.get("extends")
    usual = {key: value for key, value in document.items() if key not in ("size", "summary")}
    return [usual, sizes.get(size), *(_content(base, size, package) if base else ())]
