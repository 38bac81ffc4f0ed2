"""`driftlab tune`: search the settings of a system; write tables, best settings and a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from driftlab.cli.output import print_columns, print_json, print_note, say
from driftlab.errors import BackendLost, RequestError, as_typed

if TYPE_CHECKING:
    from driftlab.platform.results.relations.searches import SearchResults
    from driftlab.platform.tune.document import SpaceDocument
    from driftlab.platform.tune.equal import Searches
    from driftlab.platform.tune.session import TuneSession
    from driftlab.tune_spaces.run import SearchRunner

SpaceName = Annotated[str | None, typer.Argument(metavar="SPACE|FILE.yaml", show_default=False)]
Equal = Annotated[
    str | None,
    typer.Option(metavar="SYSTEMS", help="Give each of these systems the same number of trials.", show_default=False),
]
Trials = Annotated[
    int | None, typer.Option(min=1, help="Number of trials, including the defaults.", show_default=False)
]
SearcherName = Annotated[
    Literal["tpe", "nsga2", "cmaes", "evolution", "reinforce", "random", "grid"] | None,
    typer.Option("--searcher", help="Search algorithm.", show_default=False),
]
Early = Annotated[bool, typer.Option("--early-stopping", help="Stop poor trials early (ASHA).")]
Workers = Annotated[int | None, typer.Option(min=1, help="Parallel trials.  [default: the cores]")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the searcher.", show_default=False)]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the space.")]
Address = Annotated[str | None, typer.Option(help="Run on this Ray cluster: HOST:PORT or auto.", show_default=False)]
Log = Annotated[
    list[str] | None, typer.Option("--log", metavar="NAME", help="Also log to tensorboard, mlflow or wandb.")
]
Portable = Annotated[bool, typer.Option("--portable", help="Identical tables on every x86-64 processor with AVX2.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.  [default: runs/tune-NAME-TIME]")]
Resume = Annotated[Path | None, typer.Option(help="Resume the search in this folder.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the search space without running.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

SHOWN = 8  # printed trials of the front
NOTHING = "nothing to tune"  # of a system without parameters to search


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Search the settings of a system.")(tune)


def tune(
    space: SpaceName = None,
    equal: Equal = None,
    trials: Trials = None,
    searcher: SearcherName = None,
    early_stopping: Early = False,
    workers: Workers = None,
    seed: Seed = None,
    set_: Sets = None,
    address: Address = None,
    log: Log = None,
    portable: Portable = False,
    out: Out = None,
    resume: Resume = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Search the settings of a system, and compare the best with the defaults on held-out seeds.

    SPACE is a name of `driftlab list spaces` or a YAML file. With --equal, it is a space or an experiment that gives
    streams, seeds and objectives, and each of the systems is searched over its space.
    """
    given = {"trials": trials, "searcher": searcher, "seed": seed, "early_stopping": "true" if early_stopping else None}
    overrides = [*(set_ or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]
    overrides += ["compute.portable=true"] if portable else []
    runner = _TrialRunner(workers, address, tuple(log or ()))
    if runner.log:
        from driftlab.tune_spaces.loggers import check_loggers

        check_loggers(runner.log)
    if resume is not None:
        if space or equal or overrides or out:
            raise RequestError("--resume continues a search with its settings; give it alone.")
        _plan_in(resume, as_json) if dry_run else _resume(resume, runner, as_json)
        return
    if equal is not None:
        from driftlab.tune_spaces.catalogue import load_equal

        searches = load_equal([name.strip() for name in equal.split(",")], space, overrides)
        _check_devices(searches.values(), runner)
        if dry_run:
            _plan_each(searches, as_json)
        else:
            _start_each(searches, out, runner, as_json)
        return
    if space is None:
        raise RequestError("Name a space, such as `driftlab tune ams`, or a search to continue with --resume DIR.")
    from driftlab.tune_spaces.catalogue import load

    document = load(space, overrides)
    _check_devices([document], runner)
    if dry_run:
        _plan(document, as_json)
    else:
        _start(document, out, runner, as_json)


@dataclass(frozen=True)
class _TrialRunner:
    """The processes that run trials, as the command line requests them."""

    workers: int | None
    address: str | None
    log: tuple[str, ...]


def _start(document: SpaceDocument, out: Path | None, runner: _TrialRunner, as_json: bool) -> None:
    from driftlab.platform.sim.portable import restart
    from driftlab.platform.tune.session import begin_search

    restart(document.portable)
    _warn_of_idle_defaults(document)
    with begin_search(document, out) as session, _on_ray(runner, session.directory, [document]) as on_ray:
        _work(session, on_ray, runner.log)
    _conclude(session.directory, as_json)


def _start_each(searches: Searches, out: Path | None, runner: _TrialRunner, as_json: bool) -> None:
    from driftlab.platform.sim.portable import restart
    from driftlab.platform.tune.equal import begin_searches

    restart(any(document.portable for document in searches.values() if document))
    _work_each(begin_searches(searches, out), searches, runner, as_json)


def _resume(path: Path, runner: _TrialRunner, as_json: bool) -> None:
    from driftlab.platform.sim.portable import restart
    from driftlab.platform.tune.equal import searches_in
    from driftlab.platform.tune.session import continue_search

    if (searches := searches_in(path)) is not None:
        restart(any(document.portable for document in searches.values() if document))
        _check_devices(searches.values(), runner)
        _work_each(path.resolve(), searches, runner, as_json)
        return
    with continue_search(path) as session:
        restart(session.document.portable)
        _check_devices([session.document], runner)
        with _on_ray(runner, session.directory, [session.document]) as on_ray:
            _work(session, on_ray, runner.log)
    _conclude(session.directory, as_json)


def _work_each(directory: Path, searches: Searches, runner: _TrialRunner, as_json: bool) -> None:
    """Run the remaining trials of one system after another; write the report and tuned settings of each."""
    from driftlab.platform.lab.paths import locked
    from driftlab.platform.results.report.page import write_report
    from driftlab.platform.tune.equal import search_of, write_tuned

    files: dict[str, Path | None] = {}
    with locked(directory), _on_ray(runner, directory, searches.values()) as on_ray:
        for name, document in searches.items():
            if document is None:
                continue
            print_note(f"system {name}")
            with search_of(directory, name, document) as session:
                _work(session, on_ray, runner.log)
            write_report(session.directory)
            files[name] = write_tuned(directory, name)
    _conclude_each(directory, searches, files, as_json)


def _check_devices(documents: Iterable[SpaceDocument | None], runner: _TrialRunner) -> None:
    """Raise RequestError if a search cannot use its GPU, or is on this computer and it has none."""
    from driftlab import determinism
    from driftlab.platform.sim.host import check_torch_device

    for compute in _compute_of(documents):
        device = compute.get("torch_device") or "cpu"
        determinism.check(device)
        if runner.address is None:
            check_torch_device(device)


def _compute_of(documents: Iterable[SpaceDocument | None]) -> list[Mapping[str, Any]]:
    return [document.experiment.get("compute") or {} for document in documents if document is not None]


def _on_ray(runner: _TrialRunner, folder: Path, documents: Iterable[SpaceDocument | None]) -> SearchRunner:
    """Return the runner of a folder's searches."""
    from driftlab.actors.cluster import ClusterConfig
    from driftlab.tune_spaces.run import SearchRunner

    go_on = f"To go on: {as_typed('driftlab', 'tune', '--resume', folder)}"
    gpus = max((compute.get("gpus_per_actor") or 0.0 for compute in _compute_of(documents)), default=0.0)
    config = ClusterConfig(
        address=runner.address, workers=runner.workers, gpus_per_actor=gpus, placement="cells", go_on=go_on
    )
    return SearchRunner(config)


def _work(session: TuneSession, on_ray: SearchRunner, log: Sequence[str]) -> None:
    """Run the remaining trials; print the command that resumes the search if it is interrupted."""
    from driftlab.cli.trials import shown_trials
    from driftlab.platform.sim.host import in_batch
    from driftlab.tune_spaces.loggers import loggers_of

    callbacks = loggers_of(log, session.directory)
    try:
        with shown_trials(session) as on_end, in_batch():
            on_ray.run(session, on_end, callbacks)
    except (RequestError, BackendLost):  # its message has the command already
        raise
    except BaseException:
        print_note(on_ray.config.go_on)
        raise


def _warn_of_idle_defaults(document: SpaceDocument) -> None:
    from driftlab.platform.tune.document import experiment_of, is_idle

    if is_idle(experiment_of(document.experiment, document.defaults(), document.seeds)):
        print_note(
            f"note: with its defaults '{document.system}' acts after the end of every session, so that trial 0 scores "
            "as the unadapted network does. A gain over it is not one over a working default."
        )


def _plan(document: SpaceDocument, as_json: bool) -> None:
    """Print the settings with domain, default and reason."""
    _warn_of_idle_defaults(document)
    if as_json:
        print_json(document.model_dump(mode="json"))
        return
    defaults = document.defaults()
    rows = [(path, str(part.domain()), str(defaults[path]), part.why) for path, part in document.space.items()]
    print_columns([("setting", "domain", "default", "why"), *rows])
    count = document.problem.space.count
    say(
        f"{document.trials} trials by {document.searcher} out of {count or 'endlessly many'} settings, "
        f"{len(document.seeds)} seeds each; nothing was run."
    )


def _plan_in(path: Path, as_json: bool) -> None:
    """Print the settings of the searches in a folder, and write nothing to it."""
    from driftlab.platform.tune.equal import searches_in
    from driftlab.platform.tune.session import document_in

    searches = searches_in(path)
    _plan(document_in(path), as_json) if searches is None else _plan_each(searches, as_json)


def _plan_each(searches: Searches, as_json: bool) -> None:
    """Print the settings of every system."""
    if as_json:
        print_json({name: document and document.model_dump(mode="json") for name, document in searches.items()})
        return
    for name, document in searches.items():
        say(f"{name}: {NOTHING}\n" if document is None else name)
        if document is not None:
            _plan(document, as_json)
            say()


def _conclude_each(directory: Path, searches: Searches, files: Mapping[str, Path | None], as_json: bool) -> None:
    """Print trials, held-out score and file of every system; exit with code 1 if a file is missing."""
    from driftlab.platform.results.relations.searches import open_search

    found = {name: open_search(directory / name) for name in files}
    if as_json:
        systems = {
            name: {
                "tuned_file": files[name],
                "budget": asdict(one.budget),
                "held_out": list(map(asdict, one.held_out())),
            }
            for name, one in found.items()
        }
        print_json({"directory": directory, "systems": {name: systems.get(name) for name in searches}})
    else:
        rows = [
            (name, str(found[name].budget.trials), *_gain(found[name]), str(files[name] or "no trial ran to its end"))
            if name in found
            else (name, "0", "", "", "", "", NOTHING)
            for name in searches
        ]
        print_columns([("system", "trials", "metric", "defaults", "tuned", "verdict", "file"), *rows])
    if None in files.values():
        raise typer.Exit(1)


def _gain(found: SearchResults) -> tuple[str, ...]:
    """Return the first objective on held-out seeds: metric, defaults, recommended settings and verdict."""
    metric = found.objectives[0].metric
    (row,) = (row for row in found.held_out() if row.metric == metric)
    tuned = row.best if found.supported and row.best is not None else row.defaults  # which ran once if they are best
    return metric, _figure(row.defaults), _figure(tuned), row.verdict


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _conclude(directory: Path, as_json: bool) -> None:
    """Write the report and the best settings; print the leading trials, the held-out score and the paths."""
    from driftlab.platform.results.relations.searches import open_search
    from driftlab.platform.results.report.page import write_report
    from driftlab.platform.tune.session import write_best

    best, report, found = write_best(directory), write_report(directory), open_search(directory)
    if as_json:
        chosen = found.recommended
        recommended = chosen and {"trial": chosen.number, "settings": chosen.settings}
        held_out = [asdict(row) for row in found.held_out()]
        paths = {"directory": directory, "best_file": best, "report": report}
        print_json({**paths, "budget": asdict(found.budget), "best": recommended, "held_out": held_out})
    else:
        _sum_up(found)
        say(f"best    {best or 'none: no trial ran to its end'}")
        say(f"report  {report}")
    if found.best is None:
        raise typer.Exit(1)


def _sum_up(found: SearchResults) -> None:
    """Print the leading trials and the findings at the top of the report."""
    from driftlab.platform.results.figures.searches import front, summarise_search

    if shown := front(found):
        (grid,) = shown.grids
        rows = [(name, *(entry.text for entry in entries)) for name, entries in grid.rows.items()]
        print_columns([(grid.title, *grid.columns), *rows[:SHOWN]])
        if len(rows) > SHOWN:
            say(f"and {len(rows) - SHOWN} more on the front")
        say()
    for sentence in summarise_search(found):
        say(sentence)
    say()
