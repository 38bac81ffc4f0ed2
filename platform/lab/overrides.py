"""Overrides `a.b.0.c=value`: they reach any depth, must meet something that exists, and keep types."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from driftlab.errors import RequestError


class _Reader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML that takes 1e-3 for the number that it is (YAML 1.1 asks for a point and a sign) and a key only once."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """Look at the keys as they are written: later, those of a `<<` stand among them."""
        node = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key, line = self.construct_object(key_node), key_node.start_mark.line + 1
            if key in lines:
                raise RequestError(f"line {line}: '{key}' stands in line {lines[key]} already; keep one of them")
            lines[key] = line
        return node


_Reader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read(text: str) -> Any:
    """Read YAML as people write it."""
    try:
        return yaml.load(text, _Reader)
    except RecursionError:
        raise RequestError("it is nested too deeply to be read") from None


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one mapping over another; mappings merge, everything else is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def apply_overrides(document: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply overrides in order to a complete document, so that every key that may be set is there to be met."""
    result: dict[str, Any] = copy.deepcopy(dict(document))
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise RequestError(f"--set '{override}' is not KEY=VALUE, such as --set workloads.0.duration_s=30.")
        _set(result, path.split("."), _value(text, override), override)
    return result


def _value(text: str, override: str) -> Any:
    """Read a value; what is no YAML is a text."""
    try:
        return read(text)
    except yaml.YAMLError:
        return text
    except RequestError as error:
        raise RequestError(f"--set '{override}': {error}.") from None


def _set(document: Any, path: list[str], value: Any, override: str) -> None:
    *parents, last = path
    here = document
    for depth, key in enumerate(parents):
        here = here[_position(here, key, override)] if isinstance(here, list) else here.setdefault(key, {})
        if not isinstance(here, dict | list):
            place = ".".join(path[: depth + 1])
            raise RequestError(f"--set '{override}': {place} is {here!r}, which has nothing below it.")
    if isinstance(here, list):
        here[_position(here, last, override)] = value
    else:
        here[last] = value


def _position(items: list[Any], key: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise RequestError(
            f"--set '{override}': '{key}' is no position in a list of {len(items)} (0 to {len(items) - 1})."
        )
    return int(key)
