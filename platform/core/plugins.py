"""Members from outside: `path/to/file.py:Class` or `package.module:Class` stands for a member's name.

A file becomes a module named after its path, so that every process can import it by that name: a worker that
unpickles a member's object has only the module's name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

from driftlab.errors import RequestError, unknown_name

SUFFIX = ".py"
_PREFIX = "file:"


def is_outside(name: str) -> bool:
    """Return whether a name means a user's class rather than one of the registry."""
    return ":" in name or name.endswith(SUFFIX)


def make_absolute(name: str) -> str:
    """Make the path of a file absolute; other names are returned unchanged."""
    place, colon, cls = name.rpartition(":")
    return _absolute(place) + colon + cls if place.endswith(SUFFIX) else name


def drop_folder(name: str) -> str:
    """Remove the folder from a name: tables must not depend on it."""
    place, colon, cls = name.rpartition(":")
    return Path(place).name + colon + cls if place.endswith(SUFFIX) else name


def code_digest(name: str) -> str | None:
    """Hash the file of a member; None for a member of the registry or of a package."""
    place = name.rpartition(":")[0]
    return hashlib.sha256(content_of(place)).hexdigest() if place.endswith(SUFFIX) else None


def sources_of(names: Iterable[str], others: Iterable[str] = ()) -> dict[str, bytes]:
    """Read the files of members and networks, and other files, by path, for computers that lack them."""
    places = [place for name in names if (place := name.rpartition(":")[0]).endswith(SUFFIX)]
    return {_absolute(file): content_of(file) for file in dict.fromkeys([*places, *others])}


def content_of(file: str) -> bytes:
    """Read a file that a request names; on another computer it is the one that came with the driver."""
    finder, place = _finder(), _absolute(file)
    carried = None if finder is None else finder.carried.get(place)
    return Path(place).read_bytes() if carried is None else carried


def _absolute(file: str) -> str:
    return os.path.abspath(os.path.expanduser(file))


def load_class(family: str, name: str, base: type[Any], adopt: Callable[[type[Any]], type[Any]] | None) -> type[Any]:
    """Import a class and check that it can be a member of the family; `adopt` wraps a plain class."""
    chosen = find_class(f"{family} member", name)
    if adopt is not None and not issubclass(chosen, base):
        chosen = adopt(chosen)
    if faults := list(_faults(chosen, base)):
        raise RequestError(f"{family} member '{make_absolute(name)}': " + "; ".join(faults))
    return chosen


def find_class(kind: str, name: str) -> type[Any]:
    """Import a class from outside as it is; messages name its kind."""
    found: type[Any] = _find(kind, name, "class", "MyMember", inspect.isclass)
    return found


def find_factory(kind: str, name: str) -> Callable[..., Any]:
    """Import a function or class from outside as it is; messages name its kind."""
    found: Callable[..., Any] = _find(kind, name, "function", "make", callable)
    return found


def _find(kind: str, name: str, noun: str, example: str, fits: Callable[[Any], bool]) -> Any:
    given = make_absolute(name)
    place, colon, attribute = given.rpartition(":")
    if not colon:
        raise RequestError(f"{kind} '{given}': name the {noun} in it too, such as {given}:{example}.")
    module = _imported(kind, given, place)
    found = {key: value for key, value in vars(module).items() if fits(value)}
    if attribute not in found:
        mine = [key for key, value in found.items() if value.__module__ == module.__name__]
        raise RequestError(f"{kind} '{given}': {unknown_name(noun, attribute, mine)}")
    return found[attribute]


def install_finder(carried: Mapping[str, bytes] | None = None) -> None:
    """Register the import hook for plug-in files; `carried` are files of another computer, by path."""
    finder = _finder()
    if finder is None:
        sys.meta_path.append(finder := _Finder())
    finder.carried.update(carried or {})


def _finder() -> _Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.carried: dict[str, bytes] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        place = unquote(fullname.removeprefix(_PREFIX))
        loader = _CarriedLoader(place, self.carried[place]) if place in self.carried else None
        return spec_from_file_location(fullname, place, loader=loader)


class _CarriedLoader(SourceLoader):
    """Loads a module from the source that came with the driver, which this computer may lack."""

    def __init__(self, place: str, source: bytes) -> None:
        self._place, self._source = place, source

    def get_filename(self, fullname: str) -> str:
        return self._place

    def get_data(self, path: str | bytes | os.PathLike[str]) -> bytes:
        return self._source


def _imported(kind: str, given: str, place: str) -> ModuleType:
    finder = _finder()
    is_carried = finder is not None and place in finder.carried
    if place.endswith(SUFFIX) and not is_carried and not Path(place).is_file():
        raise RequestError(
            f"{kind} '{given}': there is no file '{place}'. A path is read from the folder where driftlab is "
            "started; give FILE.py:Class or package.module:Class."
        )
    try:
        return importlib.import_module(_module_name(place) if place.endswith(SUFFIX) else place)
    except (Exception, SystemExit) as error:  # a user's file may fail in any way, and its message is for the user
        where = next((f", line {frame.lineno}" for frame in _frames(error) if frame.filename == place), "")
        fix = "" if place.endswith(SUFFIX) else ". Give FILE.py:Class or package.module:Class"
        raise RequestError(
            f"{kind} '{given}': cannot import it{where}: {type(error).__name__}: {error}{fix}"
        ) from error


def _module_name(file: str) -> str:
    """Name a file's module by its path; a dot would mean a package."""
    return _PREFIX + file.replace("%", "%25").replace(".", "%2E")


def _frames(error: BaseException) -> Iterator[traceback.FrameSummary]:
    yield from reversed(traceback.extract_tb(error.__traceback__))


def _faults(cls: type[Any], base: type[Any]) -> Iterator[str]:
    """Yield the reasons why a class cannot be a member."""
    if not issubclass(cls, base):
        yield f"it must be a subclass of {base.__module__}.{base.__name__}"
        return
    if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        yield "it must be a @dataclass(frozen=True): its fields are the parameters"
        return
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        yield f"it lacks {', '.join(missing)}"
    yield from _signature_faults(cls)
    if unsaid := [name for name in inspect.get_annotations(base) if not hasattr(cls, name)]:
        yield f"it must say {', '.join(unsaid)}, True or False"
    needed = [field.name for field in dataclasses.fields(cls) if field.init and _is_required(field)]
    if needed:
        yield f"every parameter needs a default: {', '.join(needed)}"


def _signature_faults(cls: type[Any]) -> Iterator[str]:
    """Yield the methods of a user's class that cannot take the arguments of the method that they replace."""
    ours = [part for part in cls.__mro__ if part.__module__.startswith("driftlab.")]
    if cls in ours:
        return
    for name, verb in inspect.getmembers(cls, inspect.isfunction):
        bases = [vars(part)[name] for part in ours if inspect.isfunction(vars(part).get(name))]
        if name.startswith("_") or not bases or verb in bases:
            continue
        expected = inspect.signature(bases[0]).parameters.values()
        named = {one.name: None for one in expected if one.kind is one.KEYWORD_ONLY}
        try:
            inspect.signature(verb).bind(*[None] * (len(expected) - len(named)), **named)
        except TypeError:
            yield f"{heading(verb)} must be {heading(bases[0])}"


def heading(verb: Callable[..., Any]) -> str:
    """Format a method's name and arguments without their types."""
    signature = inspect.signature(verb)
    plain = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    plain = [one if one.default in (one.empty, None) else one.replace(default=...) for one in plain]
    text = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    return verb.__name__ + text.replace("Ellipsis", "...")


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING
