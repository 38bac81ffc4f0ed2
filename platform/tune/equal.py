"""Searches with equal chances: one per system, in one folder, with a file of tuned settings each."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from driftlab.platform.lab import paths
from driftlab.platform.lab.cells import check_files
from driftlab.platform.results.tables.read import SEARCHES, read_request
from driftlab.platform.tune.document import SpaceDocument, experiment_of, validated
from driftlab.platform.tune.session import TuneSession, begin_search, continue_search, write_best

TUNED = "tuned"  # the folder of files for `driftlab run --tuned`
Searches = Mapping[str, SpaceDocument | None]  # by system; None for one without parameters to search


def begin_searches(searches: Searches, out: Path | None) -> Path:
    """Make the folder of new searches, which lists all of them before the first one starts."""
    listed = {name: document and document.model_dump(mode="json") for name, document in searches.items()}
    with paths.begin_run(out or paths.fresh("tune-equal"), {SEARCHES: listed}) as directory:
        for document in filter(None, searches.values()):
            check_files(experiment_of(document.experiment, {}, document.seeds))
    return directory


def searches_in(directory: Path) -> Searches | None:
    """Read the searches that a folder lists; None if it is the folder of a single one."""
    listed = read_request(directory).get(SEARCHES)
    if listed is None:
        return None
    source = str(directory / paths.SPEC)
    return {name: document and validated(document, source) for name, document in listed.items()}


def search_of(directory: Path, system: str, document: SpaceDocument) -> AbstractContextManager[TuneSession]:
    """Open and lock the search of a system; begin it if it was not begun before."""
    own = directory / system
    return continue_search(own) if paths.is_run(own) else begin_search(document, own)


def write_tuned(directory: Path, system: str) -> Path | None:
    """Write the file of a system that `driftlab run --tuned` takes; None if no trial succeeded."""
    (directory / TUNED).mkdir(exist_ok=True)
    return write_best(directory / system, directory / TUNED / f"{system}.yaml")
