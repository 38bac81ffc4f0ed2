"""Apply overrides `a.b.0.c=value` to a document, at any depth; values keep their YAML types."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from driftlab.errors import RequestError, quoted, shortened
from driftlab.platform.core.documents import read_yaml

MAX_DIGITS = 9  # of a position in a list


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base` recursively; values other than mappings are replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def apply_overrides(
    document: Mapping[str, Any], overrides: Sequence[str], example: str = "workloads.0.duration_s=30"
) -> dict[str, Any]:
    """Apply overrides in order to a document in which all defaults are filled in."""
    result: dict[str, Any] = copy.deepcopy(dict(document))
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise RequestError(f"--set '{shortened(override)}' is not KEY=VALUE, such as --set {example}.")
        set_at(result, path.split("."), read_value(text, override), f"--set '{shortened(override)}'")
    return result


def read_value(text: str, override: str) -> Any:
    """Read a value as YAML, or as text if it is not valid YAML."""
    try:
        return read_yaml(text)
    except yaml.YAMLError:
        return text
    except RequestError as error:
        raise RequestError(f"--set '{shortened(override)}': {error}.") from None


def set_at(document: Any, path: list[str], value: Any, source: str) -> None:
    """Set the value at a path of a document; error messages begin with `source`."""
    *parents, last = path
    here = document
    for depth, key in enumerate(parents):
        here = here[_position(here, key, source)] if isinstance(here, list) else here.setdefault(key, {})
        if not isinstance(here, dict | list):
            place = ".".join(path[: depth + 1])
            raise RequestError(f"{source}: {place} is {quoted(here)}, which has nothing below it.")
    if isinstance(here, list):
        here[_position(here, last, source)] = value
    else:
        here[last] = value


def _position(items: list[Any], key: str, source: str) -> int:
    if not (key.isascii() and key.isdecimal()) or len(key) > MAX_DIGITS or int(key) >= len(items):
        order = " Options such as --system select items before --set." if source.startswith("--set") else ""
        raise RequestError(
            f"{source}: '{shortened(key)}' is no position in a list of {len(items)} (0 to {len(items) - 1}).{order}"
        )
    return int(key)
