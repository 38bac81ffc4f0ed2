"""Pydantic's validation errors in the vocabulary of YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_LIST, _MAPPING = "give a list, such as [1, 2]", "give a mapping, such as {key: value}"
WORDS: Mapping[str, str] = {
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "dataclass_type": _MAPPING,
}


def describe_fault(detail: ErrorDetails) -> str:
    """Describe a fault: in pydantic's words unless they presume knowledge of Python."""
    return WORDS.get(detail["type"]) or f"{detail['msg'][0].lower()}{detail['msg'][1:]}"
