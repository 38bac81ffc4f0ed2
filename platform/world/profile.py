"""Parse a mapping of a spec into a profile, or report all of its faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from driftlab.errors import RequestError, quoted, shortened
from driftlab.platform.core.documents import describe_fault
from driftlab.platform.core.parameters import checker_of
from driftlab.renamed import name_note

if TYPE_CHECKING:
    from pydantic import ConfigDict
    from pydantic_core import ErrorDetails

Profile = TypeVar("Profile")
STRICT: ConfigDict = {"extra": "forbid"}  # the __pydantic_config__ of every profile and its parts


def parse(cls: type[Profile], kind: str, given: Mapping[str, Any]) -> Profile:
    """Return a frozen dataclass whose fields have limits; refuse the mapping with all faults at once."""
    from pydantic import ValidationError

    try:
        return cast("Profile", checker_of(cls).validate_python(dict(given)))
    except ValidationError as error:
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        faults = "; ".join(_fault(detail, known) for detail in error.errors())
        raise RequestError(f"Bad {kind} '{shortened(str(given.get('name', 'without a name')))}': {faults}.") from None


def _fault(detail: ErrorDetails, known: list[str]) -> str:
    place = ".".join(shortened(str(part)) for part in detail["loc"])
    if detail["type"] == "unexpected_keyword_argument":
        if len(detail["loc"]) > 1:
            return f"unknown field '{place}'"
        return f"unknown field '{place}'{name_note(place, known)}, allowed: {', '.join(known)}"
    if detail["type"] in {"missing", "missing_argument"}:
        return f"'{place}' is missing"
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    return f"'{place}' is {quoted(detail['input'])}: {describe_fault(detail)}"
