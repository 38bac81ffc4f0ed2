"""YAML and JSON within bounds of size, depth and expanded aliases."""

from __future__ import annotations

import functools
import json
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from driftlab.errors import DataError, RequestError, quoted, shortened
from driftlab.renamed import name_hint

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

_LIST, _MAPPING = "give a list, such as [1, 2]", "give a mapping, such as {key: value}"
MAX_FILE_BYTES = 2**22
MAX_VALUES = 40_000  # of a document, aliases expanded
MAX_DEPTH = 100
UNLIKE = frozenset("\t?|>")  # characters that the scanner in C accepts in more places than the one in Python
SEPARATORS = 4  # commas and line ends for each value, at most
MAX_SHAPE_FAULTS = 3  # that are named of a stored document
REFUSED: Final = object()  # in the place of a value whose fault is reported already


class _Bounded(yaml.composer.Composer):  # type: ignore[misc]
    """Composes YAML of a bounded size that takes a key only once."""

    def limit(self, most: int) -> None:
        """Set how many values there may be; nothing is composed before."""
        self._most = most
        self._depth = self._values = 0
        self._weights: dict[int, int] = {}  # values in a composed node, by its identity

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count the composed values: an alias makes no new nodes, but its values are counted in full."""
        before, self._depth = self._values, self._depth + 1
        if self._depth > MAX_DEPTH:
            raise RequestError(f"it is nested more than {MAX_DEPTH} deep")
        alias = self.check_event(yaml.events.AliasEvent)
        node = super().compose_node(parent, index)
        if alias and id(node) not in self._weights:
            raise RequestError("an alias refers to a node that contains it")
        self._values = before + self._weights[id(node)] if alias else self._values + 1
        self._weights[id(node)] = self._values - before
        self._depth -= 1
        if self._values > self._most:
            raise _too_many(self._most)
        return node

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """Refuse repeated keys; the check runs before `<<` merges in the keys of another mapping."""
        node = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key, line = self.construct_object(key_node), key_node.start_mark.line + 1
            if key in lines:
                name, there = shortened(str(key)), lines[key]
                raise RequestError(f"line {line}: '{name}' stands in line {there} already; keep one of them")
            lines[key] = line
        return node


class _Reader(_Bounded, yaml.SafeLoader):  # type: ignore[misc]
    """Reads YAML as runs write it."""


NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
READERS: list[Any] = [_Reader]  # the last one reads everything and describes faults
if yaml.__with_libyaml__:

    class _FastReader(  # scanning in C saves a tenth of the time of `driftlab list`
        _Bounded,
        yaml.cyaml.CParser,  # type: ignore[misc]
        yaml.constructor.SafeConstructor,  # type: ignore[misc]
        yaml.resolver.Resolver,  # type: ignore[misc]
    ):
        def __init__(self, text: str) -> None:
            yaml.cyaml.CParser.__init__(self, text)
            for part in (yaml.composer.Composer, yaml.constructor.SafeConstructor, yaml.resolver.Resolver):
                part.__init__(self)

    READERS.insert(0, _FastReader)


@functools.cache
def _of_persons(reader: Any) -> Any:
    """Derive a reader that takes 1e-3 as a number, and refuses 12:30:00, which YAML 1.1 takes as 45 000."""

    class _OfPersons(reader):  # type: ignore[misc]
        def construct_scalar(self, node: Any) -> Any:
            value = super().construct_scalar(node)
            if node.tag in NUMBERS and ":" in value:
                line = node.start_mark.line + 1
                raise RequestError(f"line {line}: '{value}' is not a number; write seconds, or put it in quotes")
            return value

    derived: Any = _OfPersons
    derived.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
    return derived


def read_yaml(text: str, most: int = MAX_VALUES, *, stored: bool = False) -> Any:
    """Read YAML written by a person, or by a run (`stored`); raises yaml.YAMLError or RequestError."""
    if text.count(",") + text.count("\n") > SEPARATORS * most:  # composing so many values would take seconds
        raise _too_many(most)
    *fast, slow = READERS if stored else [_of_persons(reader) for reader in READERS]
    try:
        for reader in fast if not UNLIKE.intersection(text) else ():
            with suppress(yaml.YAMLError, UnicodeError):
                return _read(reader, text, most)
        return _read(slow, text, most)
    except RecursionError:
        raise RequestError("it is nested too deeply to be read") from None
    except (ValueError, OverflowError, TypeError) as error:  # 5 000 digits, the 31st of February, a list as a key
        raise RequestError(f"it holds a value that cannot be read ({quoted(str(error))})") from None


def _read(kind: type[Any], text: str, most: int) -> Any:
    reader = kind(text)
    reader.limit(most)
    try:
        return reader.get_single_data()
    finally:
        reader.dispose()


def _too_many(most: int) -> RequestError:
    return RequestError(f"it holds more than {most:,} values, aliases counted in full")


def as_yaml(document: Any) -> str:
    """Return a document as YAML, its keys in their order; libyaml writes it in a quarter of the time."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text


def read_json(text: str) -> Any:
    """Read JSON; ValueError for invalid JSON and for deep nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_text(file: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Read a file of bounded size; FileNotFoundError if missing, DataError if no file or too large."""
    check_file(file, most_bytes)
    return file.read_text(encoding="utf-8")


def check_file(file: Path, most_bytes: int) -> None:
    """Refuse a path that is not a regular file (opening a pipe would block) and a file that is too large."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"'{file}' is no regular file.")
    if found.st_size > most_bytes:
        raise DataError(f"'{file}' has {found.st_size:,} bytes, allowed are {most_bytes:,}.")


TEXTS = ("str", "constrained-str")  # pydantic's names of the type of a text
WORDS: Mapping[str, str] = {
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dataclass_type": _MAPPING,
}


def describe_fault(detail: ErrorDetails) -> str:
    """Describe a fault: in pydantic's words unless they presume knowledge of Python, or are a check's own."""
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    return WORDS.get(detail["type"]) or f"{detail['msg'][0].lower()}{detail['msg'][1:]}"


def shape_faults(
    details: Sequence[Any], model: type[BaseModel], numbers: Mapping[str, Sequence[int]] | None = None
) -> list[str]:
    """Describe the errors that pydantic lists in plain words, with the most similar valid name.

    `numbers` gives for the items of a list the numbers that a reader knows them by.
    """
    return [_shape_fault(detail, model, numbers or {}) for detail in details if not _follows(detail)]


def shape_fault(model: type[BaseModel], document: Any, *, lenient: bool = False) -> str:
    """Describe the type and key faults of a stored document; empty if there are none.

    With `lenient` it may have keys that the model does not have: another version may have written them.
    """
    from pydantic import ValidationError

    try:
        model.model_validate(document, extra="ignore" if lenient else None)
    except ValidationError as error:
        return "; ".join(shape_faults(error.errors(), model)[:MAX_SHAPE_FAULTS])
    return ""


def _follows(detail: Any) -> bool:
    """Return whether a fault is a consequence of another, as a list without its faulty items is too short."""
    given, branch = detail["input"], detail["loc"][-1] if detail["loc"] else ""
    if given is REFUSED:
        return True
    if detail["type"] == "too_short":
        return bool(given)
    if branch in TEXTS:
        return isinstance(given, Mapping)
    return detail["type"] in {"model_type", "model_attributes_type", "dict_type"} and _is_union_tag(branch)


def _shape_fault(detail: Any, model: type[BaseModel], numbers: Mapping[str, Sequence[int]]) -> str:
    parts = [part for part in detail["loc"] if not _is_union_tag(part)]
    if len(parts) > 1 and parts[0] in numbers:
        parts[1] = numbers[parts[0]][parts[1]]
    place = ".".join(shortened(str(part)) for part in parts)
    if detail["type"] == "missing":
        return f"{place} is missing"
    if detail["type"] == "too_short":
        return f"{place} is empty: give at least one"
    if detail["type"] != "extra_forbidden":
        return f"{place} is {quoted(detail['input'])}: {describe_fault(detail)}"
    known = _fields(model, detail["loc"][:-1])
    hint = name_hint(
        shortened(str(detail["loc"][-1])), [*known, *(() if parts[1:] else getattr(model, "other_keys", ()))]
    )
    return f"{place} is not known here.{hint} Known: {', '.join(known)}"


def _is_union_tag(part: Any) -> bool:
    """Return whether a part of a place is the name of one of several types, which pydantic adds."""
    return isinstance(part, str) and (
        part in {*TEXTS, "float", "int"} or part.endswith(("Part", "Request")) or "[" in part
    )


def _fields(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """List the keys that may stand at a place."""
    here = model
    for part in path:
        if part in here.model_fields:
            here = next(models_in(here.model_fields[part].annotation), here)
    return [field.alias or name for name, field in here.model_fields.items()]


def models_in(hint: Any) -> Iterator[type[BaseModel]]:
    """List the models in a type."""
    if hasattr(hint, "model_fields"):
        yield hint
    for inner in getattr(hint, "__args__", ()):
        yield from models_in(inner)
