"""`--dry-run` writes nothing, in any command and combination."""

from __future__ import annotations

import documents_factory as documents
import pytest
import tuning_factory as factory
import typer
import yaml
from command_factory import run_command

from driftlab.cli.app import build_app
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import create_run
from driftlab.platform.networks.training.states import FOLDER_VARIABLE
from driftlab.platform.tune.equal import begin_searches
from driftlab.platform.tune.session import begin_search

CASES = {
    "run": (
        ("quick",),
        ("tiny.yaml", "--out", "new", "--backend", "inline"),
        ("tiny.yaml", "--out", "run", "--workers", "2", "--portable", "--clock", "virtual"),
        ("--resume", "run"),
    ),
    "tune": (
        ("space.yaml", "--out", "new", "--early-stopping"),
        ("space.yaml", "--equal", "tent,no_custom", "--out", "search"),
        ("--resume", "search"),
        ("--resume", "searches"),
    ),
    "demo": (("--act", "streaming", "--out", "new"),),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Make a read-only folder with a request, a space, a run and searches that were begun."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(documents.TINY))
    (folder / "space.yaml").write_text(yaml.safe_dump(factory.raw()))
    with create_run(parse(documents.TINY), folder / "run"), begin_search(factory.document(), folder / "search"):
        begin_searches({"tent": factory.document(), "no_custom": None}, folder / "searches")
    (folder / "cache").mkdir()
    for path in (*folder.rglob("*"), folder):
        path.chmod(path.stat().st_mode & ~0o222)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


def facts_of(folder):
    """Return time and size of every file and folder."""
    paths = (folder, *sorted(folder.rglob("*")))
    return {path: (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size) for path in paths for stat in [path.stat()]}


def test_every_command_that_can_run_dry_is_checked():
    commands = typer.main.get_command(build_app()).commands
    assert {name for name, one in commands.items() if any("--dry-run" in part.opts for part in one.params)} == {*CASES}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "words"), [(name, words) for name, found in CASES.items() for words in found])
def test_a_dry_run_writes_nothing(place, command, words, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv(FOLDER_VARIABLE, str(place / "cache"))
    before = facts_of(place)
    for more in ((), *((("--json",),) if "--resume" in words else ())):
        result = run_command([command, *words, "--dry-run", *more])
        assert result.exit_code == 0, result.output + repr(result.exception)
    assert facts_of(place) == before
