"""The folder of a search: like that of any run, with the settings that it recommends beside its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from driftlab.errors import DataError, as_typed
from driftlab.platform.core.files import remove_drafts, write_atomically
from driftlab.platform.lab import paths
from driftlab.platform.lab.cells import check_files
from driftlab.platform.lab.seal import provenance
from driftlab.platform.results.relations.searches import Found, open_search
from driftlab.platform.results.tables.read import read_spec
from driftlab.platform.tune.document import SpaceDocument, validated
from driftlab.platform.tune.evaluation import experiment_of
from driftlab.platform.tune.session import TuneSession

BEST_FILE = "best.yaml"


@contextmanager
def begin_search(document: SpaceDocument, out: Path | None) -> Iterator[TuneSession]:
    """Make and lock the folder of a new search."""
    path = paths.fresh(f"tune-{document.name}") if out is None else out
    with paths.begin_run(path, document.model_dump(mode="json")) as directory:
        yield _session(document, directory)


@contextmanager
def continue_search(path: Path) -> Iterator[TuneSession]:
    """Open and lock the folder of a search that was begun before."""
    spec = dict(read_spec(path))
    if "space" not in spec:
        again = as_typed("driftlab", "run", "--resume", path)
        raise DataError(f"'{path}' is no search but a run: continue it with `{again}`.")
    document = validated(spec, str(path / paths.SPEC))
    with paths.locked(path):
        yield _session(document, path.resolve())


def _session(document: SpaceDocument, directory: Path) -> TuneSession:
    remove_drafts(directory)
    paths.keep_info(directory, provenance)
    session = TuneSession(document, directory)
    if not session.over:
        check_files(experiment_of(document.experiment, {}, document.seeds))
    return session


def write_best(directory: Path) -> Path | None:
    """Write the settings that a search recommends, with what they were chosen on; nothing where no trial ended well."""
    found = open_search(directory)
    if found.best is None:
        return None
    text = yaml.safe_dump(_best(found), sort_keys=False, allow_unicode=True)
    head = "# What a search recommends. Take it with: driftlab run EXPERIMENT --tuned FILE\n"
    write_atomically(directory / BEST_FILE, head + text)
    return directory / BEST_FILE


def _best(found: Found) -> dict[str, Any]:
    best, spec, budget = found.best, found.spec, found.budget
    assert best is not None
    held_out = {
        one.metric: {"best": one.best, "defaults": one.defaults, "answer": one.answer} for one in found.held_out()
    }
    return {
        "space": spec["name"],
        "system": spec["system"],
        "settings": dict(best.settings),
        "trial": best.number,
        "keeps_constraints": found.feasible,
        "measured": dict(best.metrics or {}),
        "held_out": held_out,
        "budget": {"trials": budget.trials, "streamed_s": budget.streamed_s, "searcher": spec["searcher"]},
        "seeds": [*spec["seeds"], *spec["held_out"]],
    }
