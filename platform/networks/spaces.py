"""Spaces of operators by name, and spaces of a user: stages in a YAML file, or the same as text.

A file lists the operators of each stage. It is read where the request is read, and replaced by its text, so that the
spec of a run, other computers and the cache of networks hold the space itself. Importing this does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from driftlab.errors import DataError, RequestError, first_line, quoted, unknown_name
from driftlab.platform.core.documents import read_text, read_yaml
from driftlab.platform.networks.paths import BASE, CRITICAL, FIVE, MERGED, SPARSE, Operators, PathSpace
from driftlab.renamed import name_hint

# By the paper's classes of operators: structure, architecture search, connections, decomposition.
CLASSES: Mapping[str, tuple[str, ...]] = {
    "structural": ("dwsep", "fire", "bneck", "shuffle", "ghost", "share"),
    "searched": ("mbconv", "resolution", "identity"),
    "connected": ("dense",),
    "decomposed": ("svd", "asym"),
}
NAMES = (*(name for names in CLASSES.values() for name in names), *SPARSE, MERGED)
SPACES: Mapping[str, Operators] = {
    "tiny": (("dwsep", "svd", BASE),) * 4,
    "small": (("dwsep", "fire", "svd", BASE),) * 4,
    "lego": ((*SPARSE, BASE),) * 4,
    "supernet": ((MERGED, "sparse40", BASE),) * 4,
    "paper480": (FIVE, FIVE, CRITICAL, FIVE),
    # All operators that the paper names or cites, in as many paths as it states; each stage mixes the four classes.
    "named480": (
        ("resolution", "dwsep", "ghost", "asym", BASE),
        ("shuffle", "bneck", "dense", "svd", BASE),
        CRITICAL,
        ("share", "mbconv", "identity", "dense", BASE),
    ),
}
MAX_STAGES, MAX_PATHS = 4, 2000
STAGE_END, NEXT = "/", ","
EXAMPLE = "`stages: [[dwsep, svd], [dense]]`"


def find_space(text: str) -> Operators:
    """Return the operators of each stage of a space by its name or text; refuse faults."""
    if faults := space_faults(text):
        raise RequestError("; ".join(faults))
    return SPACES[text] if text in SPACES else _stages(text)


def space_faults(text: str) -> list[str]:
    """List why a text is neither the name of a space nor a valid one; empty if it is."""
    if text in SPACES:
        return []
    if STAGE_END not in text and NEXT not in text:
        return [str(unknown_name("space", text, SPACES)) + f" A space of your own is a YAML file with {EXAMPLE}."]
    stages = _stages(text)
    faults = [fault for number, names in enumerate(stages, 1) for fault in _stage_faults(number, names)]
    if len(stages) > MAX_STAGES:
        faults.append(f"a space has {len(stages)} stages, allowed are {MAX_STAGES}")
    elif not faults and len(PathSpace(stages)) > MAX_PATHS:
        faults.append(f"a space has {len(PathSpace(stages)):,} paths, allowed are {MAX_PATHS:,}; list fewer operators")
    return faults


def stages_faults(text: str, setting: str, stages: int) -> list[str]:
    """Return the faults of a space, or that it has fewer stages than a setting requires."""
    faults = space_faults(text)
    if not faults and len(find_space(text)) < stages:
        count = len(find_space(text))
        faults = [f"'{setting}' is {stages}, the space has {count} stages; set {setting}: {count} or list more stages"]
    return faults


def is_space_file(value: object) -> bool:
    """Return whether a value names a file of a space."""
    return isinstance(value, str) and value.endswith((".yaml", ".yml"))


def read_space(file: Path) -> str:
    """Return the text of a YAML file's space; DataError or RequestError names the file and the fault."""
    try:
        document = read_yaml(read_text(file))
    except (OSError, DataError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RequestError(f"space '{file}' cannot be read: {first_line(error)}.") from error
    text = STAGE_END.join(NEXT.join(names) for names in _listed(file, document))
    if faults := space_faults(text):
        raise RequestError(f"space '{file}': {'; '.join(faults)}.")
    return text


def _listed(file: Path, document: Any) -> list[list[str]]:
    """Return the lists of a file, each with the stage's own blocks last."""
    if not isinstance(document, dict) or set(document) != {"stages"}:
        raise RequestError(f"space '{file}' must have the key 'stages' and no other, such as {EXAMPLE}.")
    stages = document["stages"]
    if not isinstance(stages, list) or not stages:
        raise RequestError(f"space '{file}': stages is {quoted(stages)}; give a list per stage, such as {EXAMPLE}.")
    for number, names in enumerate(stages, 1):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RequestError(f"space '{file}': stage {number} is {quoted(names)}; give a list of operators.")
    return [[*(name for name in names if name != BASE), BASE] for names in stages]


def _stages(text: str) -> Operators:
    return tuple(tuple(name.strip() for name in part.split(NEXT)) for part in text.split(STAGE_END))


def _stage_faults(number: int, names: tuple[str, ...]) -> list[str]:
    unknown = [name for name in names if name not in (*NAMES, BASE)]
    faults = [
        f"stage {number} of a space has no operator '{name}'{name_hint(name, NAMES)}; known: {', '.join(NAMES)}"
        for name in unknown
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    faults += [f"stage {number} of a space lists '{name}' twice" for name in twice]
    if names[-1] != BASE:
        faults.append(f"stage {number} of a space must end with '{BASE}', its own blocks")
    return faults
