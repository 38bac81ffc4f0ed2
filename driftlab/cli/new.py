"""`driftlab new`: a file to start from, with its test."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from driftlab.cli.output import say
from driftlab.errors import RequestError, as_typed

TEMPLATES = Path(__file__).parent / "templates"
PARAMS: dict[str, dict[str, object]] = {  # with which the test of a member lasts seconds
    "streaming": {"period_s": 2.0},
    "scaling": {"keep_ratios": [1.0, 0.5], "epochs": 1},
}
KindName = Literal["adaptation", "streaming", "scaling", "scheduling", "network", "experiment"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Write a method, a network or an experiment to start from.")(new)


def new(
    kind: Annotated[KindName, typer.Argument(show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and _.", show_default=False)],
) -> None:
    """Write a working file NAME of at most 40 lines, and its test, to the current folder."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise RequestError(f"'{name}' is no name of a file. Use lower-case letters, digits and _, such as my_method.")
    if kind != "experiment" and (keyword.iskeyword(name) or _is_package(name)):
        raise RequestError(f"'{name}' is a word or a package of Python, which the file would hide. Use my_{name}.")
    own = f"{name}.yaml" if kind == "experiment" else f"{name}.py"
    of_test = f"test_{kind if kind in ('network', 'experiment') else 'member'}.py.j2"
    templates = {Path(own): f"{kind}{Path(own).suffix}.j2", Path(f"test_{name}.py"): of_test}
    if there := [str(path) for path in templates if path.exists()]:
        raise RequestError(f"{' and '.join(there)}: there already. Use another NAME, or another folder.")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    for path, template in templates.items():
        path.write_text(_filled(template, name, class_name, PARAMS.get(kind, {})), encoding="utf-8")
        say(str(path))
    test = f"python -m pytest test_{name}.py"
    say(f"test it  {test}")
    for words in _next_steps(kind, name, class_name):
        say(f"go on    {as_typed('driftlab', *words)}")


def _is_package(name: str) -> bool:
    """Return whether Python imports a name from another folder than the current one."""
    found = importlib.util.find_spec(name)
    return found is not None and (found.origin is None or Path(found.origin).parent != Path.cwd())


def _filled(template: str, name: str, class_name: str, params: dict[str, object]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    reader = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True)
    return reader.get_template(template).render({"name": name, "class": class_name, "params": params})


def _next_steps(kind: str, name: str, class_name: str) -> list[tuple[str, ...]]:
    """Return the commands that use a new file."""
    if kind == "experiment":
        return [("run", f"{name}.yaml")]
    if kind == "network":
        return [("show", f"networks/{name}.py:{class_name}")]
    return [("check", f"{name}.py:{class_name}"), ("show", f"{kind}/{name}.py:{class_name}")]
