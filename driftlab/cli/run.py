"""`driftlab run`: run an experiment and write its report."""

from __future__ import annotations

import contextlib
import functools
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from driftlab.cli.kinds import complete_names
from driftlab.cli.output import print_json, print_note, print_ranked, say
from driftlab.cli.plan import print_plan, print_remaining
from driftlab.cli.progress import shown
from driftlab.errors import BackendLost, RequestError, as_typed, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from driftlab.platform.lab.grid import Outcome
    from driftlab.platform.lab.placement import Placement
    from driftlab.platform.lab.progress import Progress
    from driftlab.platform.lab.read import Experiment
    from driftlab.platform.results.report.summary.base import Part
    from driftlab.platform.sim.session import Backend


def _complete_experiments(incomplete: str) -> list[str]:
    return complete_names("experiments", incomplete)


def _complete_systems(incomplete: str) -> list[str]:
    return complete_names("systems", incomplete)


def _complete_workloads(incomplete: str) -> list[str]:
    return complete_names("workloads", incomplete)


Experiments = Annotated[
    str | None,
    typer.Argument(metavar="EXPERIMENT|FILE.yaml", show_default=False, autocompletion=_complete_experiments),
]
Systems = Annotated[
    str | None,
    typer.Option("--system", help="Only these systems: a,b.", show_default=False, autocompletion=_complete_systems),
]
Workloads = Annotated[
    str | None,
    typer.Option(
        "--workload", help="Only these workloads: w,v.", show_default=False, autocompletion=_complete_workloads
    ),
]
Seeds = Annotated[str | None, typer.Option("--seed", help="Only these seeds: 0,1,2 or 0..4.", show_default=False)]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the experiment.")]
BackendName = Annotated[Literal["ray", "inline"], typer.Option("--backend", help="Ray actors, or one process.")]
Address = Annotated[str | None, typer.Option(help="Run on this Ray cluster: HOST:PORT or auto.", show_default=False)]
Workers = Annotated[int | None, typer.Option(min=1, help="Maximum number of actors per kind.  [default: the cores]")]
PerActor = Annotated[int | None, typer.Option(min=1, help="Maximum number of devices per actor.", show_default=False)]
Dashboard = Annotated[bool, typer.Option("--dashboard", help="Start Ray's dashboard and print its address.")]
Clock = Annotated[Literal["virtual", "wall"] | None, typer.Option(help="Virtual time, or real time.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.  [default: runs/NAME-TIME]")]
Resume = Annotated[Path | None, typer.Option(help="Resume the run in this folder.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print cells, time and disk space without running.")]
Portable = Annotated[bool, typer.Option("--portable", help="Identical tables on every x86-64 processor with AVX2.")]
Tuned = Annotated[list[Path] | None, typer.Option("--tuned", metavar="FILE", help="Use the best settings of a search.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
PORTABLE = "compute.portable=true"
MAX_SEEDS = 10_000
MAX_DIGITS = 19  # characters of a seed
EXAMPLES = """\b
Examples:
  driftlab run quick                                        the smallest experiment
  driftlab run demo-streaming --dry-run                     cells, time and disk space
  driftlab run quick --system ams --workload streets/running --seed 0..4
  driftlab run quick --set workloads.0.duration_s=60        change any value of the experiment
  driftlab run ams-table1 --set size=full --out runs/full   another size of the experiment
  driftlab run mine.yaml --backend inline                   an experiment file, in one process
  driftlab run --resume runs/full                           resume an interrupted run
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(short_help="Run an experiment.", epilog=EXAMPLES)(run)


def run(
    experiment: Experiments = None,
    system: Systems = None,
    workload: Workloads = None,
    seed: Seeds = None,
    set_: Sets = None,
    backend: BackendName = "ray",
    address: Address = None,
    workers: Workers = None,
    devices_per_actor: PerActor = None,
    dashboard: Dashboard = False,
    clock: Clock = None,
    portable: Portable = False,
    out: Out = None,
    resume: Resume = None,
    dry_run: DryRun = False,
    tuned: Tuned = None,
    as_json: Json = False,
) -> None:
    """Run every system of an experiment on every workload, fleet and seed; write tables and a report.

    EXPERIMENT is a name of `driftlab list experiments` or a YAML file.
    """
    from driftlab.platform.lab.read import load

    place = BackendChoice(backend, address, workers, devices_per_actor, dashboard)
    overrides = [*(set_ or []), *([f"clock={clock}"] if clock else []), *([PORTABLE] if portable else [])]
    narrowed = bool(system or workload or seed or overrides or tuned)
    if resume is not None:
        if experiment or narrowed or out:
            raise RequestError(
                "--resume continues a run with its settings; give it alone, without an experiment or changes."
            )
        if dry_run:
            print_remaining(resume, as_json, place)
        else:
            _resume(resume, place, as_json)
    elif experiment is None:
        raise RequestError("Name an experiment, such as `driftlab run quick`, or a run to continue with --resume DIR.")
    else:
        spec = load(experiment, overrides, choice_of(system, workload, seed), tuned or ())
        if dry_run:
            place.check_device(spec)
            print_plan(spec, as_json, place.placement(spec))
        else:
            _conclude(run_in(spec, out, place, shown()), as_json)


class BackendChoice:
    """The backend that the command line requests."""

    def __init__(
        self, backend: str, address: str | None, workers: int | None, devices_per_actor: int | None, dashboard: bool
    ) -> None:
        given = {"--address": address, "--workers": workers, "--devices-per-actor": devices_per_actor}
        given["--dashboard"] = dashboard or None
        if backend == "inline" and (extra := [name for name, value in given.items() if value is not None]):
            raise RequestError(
                f"{', '.join(extra)}: only Ray has that, and --backend is inline; leave one of them out."
            )
        self.backend, self.address, self.workers = backend, address, workers
        self.devices_per_actor, self.dashboard = devices_per_actor, dashboard

    def check_device(self, spec: Experiment) -> None:
        """Raise RequestError if the run cannot use its GPU, or is on this computer and it has none."""
        from driftlab import determinism
        from driftlab.platform.sim.host import check_torch_device

        determinism.check(spec.compute.torch_device)
        if self.address is None:
            check_torch_device(spec.compute.torch_device)

    def placement(self, spec: Experiment, directory: Path | None = None) -> Placement | None:
        """Return where the nodes of a cell run, as the run in a folder began; None in one process."""
        from driftlab.platform.lab.placement import placement_of
        from driftlab.platform.results.tables.read import read_info

        if self.backend == "inline":
            return None
        begun = read_info(directory).get("placement") if directory is not None else None
        return placement_of(spec, self.workers, self.devices_per_actor, begun)

    def opener(self, spec: Experiment, directory: Path) -> Callable[[], Backend]:
        """Return the function that starts the backend of a run in this folder."""
        from driftlab.platform.lab import paths

        self.check_device(spec)
        placement = self.placement(spec, directory)
        if placement is None:
            from driftlab.one_process import OneProcess

            return functools.partial(OneProcess, spec.compute.torch_device)
        from driftlab.actors.backend import RayBackend
        from driftlab.actors.cluster import ClusterConfig
        from driftlab.platform.lab.placement import sources_of

        config = ClusterConfig(
            address=self.address,
            workers=self.workers,
            devices_per_actor=self.devices_per_actor,
            dashboard=self.dashboard,
            run=directory.name,
            gpus_per_actor=spec.compute.gpus_per_actor,
            on_gpu=spec.compute.torch_device == "cuda",
            torch_device=spec.compute.torch_device,
            placement=placement.kind,
            sources=sources_of(spec),
            go_on=_resume_command(directory),
        )

        def opened() -> RayBackend:
            paths.add_info(directory, "placement", placement.kind)
            backend = RayBackend(config)
            if self.dashboard:
                for line in backend.dashboard_notes:
                    print_note(line)
            return backend

        return opened


def choice_of(system: str | None, workload: str | None, seed: str | None) -> Any:
    """Return the part of a grid that the command line selects; None for the whole of it."""
    from driftlab.platform.lab.read import Choice

    if system is None and workload is None and seed is None:
        return None
    seeds = tuple(number for part in _split("--seed", seed) for number in _seeds(part))
    return Choice(_split("--system", system), _split("--workload", workload), seeds)


def _split(option: str, text: str | None) -> tuple[str, ...]:
    """Split a list of names; refuse an empty one, which would select everything."""
    parts = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    if text is not None and not parts:
        raise RequestError(f"{option} '{text}' names nothing; give names such as a,b, or leave {option} out.")
    return parts


def _seeds(part: str) -> Sequence[int]:
    first, dots, last = part.partition("..")
    if not _is_seed(first) or (dots and not _is_seed(last)):
        raise RequestError(f"--seed '{shortened(part)}' is no seed; give whole numbers from 0, such as 0,1,2 or 0..4.")
    begin, end = int(first), int(last if dots else first) + 1
    if not begin < end <= begin + MAX_SEEDS:
        raise RequestError(f"--seed '{part}' is no range of 1 to {MAX_SEEDS} seeds; give the lower one first.")
    return range(begin, end)


def _is_seed(text: str) -> bool:
    """Return whether a text is a whole number of at most `MAX_DIGITS` digits."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def run_in(
    spec: Experiment, out: Path | None, place: BackendChoice, progress: AbstractContextManager[Progress]
) -> Outcome:
    """Run an experiment in a new folder; print the command that resumes it if it is interrupted."""
    from driftlab.platform.lab import seal as lab
    from driftlab.platform.lab.size import announcement
    from driftlab.platform.sim.portable import restart

    restart(spec.compute.portable)
    if told := announcement(spec):
        print_note(told)
    with lab.create_run(spec, out) as directory, _with_resume_hint(directory), progress as listener:
        return lab.execute(spec, directory, place.opener(spec, directory), listener)


def _resume(path: Path, place: BackendChoice, as_json: bool) -> None:
    from driftlab.platform.lab import paths
    from driftlab.platform.lab import seal as lab
    from driftlab.platform.sim.portable import restart

    spec, directory = lab.open_run(path)
    restart(spec.compute.portable)
    with paths.locked(directory), _with_resume_hint(directory), shown() as progress:
        outcome = lab.execute(spec, directory, place.opener(spec, directory), progress)
    _conclude(outcome, as_json)


@contextlib.contextmanager
def _with_resume_hint(directory: Path) -> Iterator[None]:
    """Print the command that resumes the run if the block raises an error."""
    try:
        yield
    except (RequestError, BackendLost):  # its message has the command already
        raise
    except BaseException:
        if directory.is_dir():
            print_note(_resume_command(directory))
        raise


def _resume_command(directory: Path) -> str:
    return f"To go on: {as_typed('driftlab', 'run', '--resume', directory)}"


def _conclude(outcome: Outcome, as_json: bool) -> None:
    """Write the report and print the table; exit with code 1 if a cell or all steps of a member failed."""
    from driftlab.platform.results.report.page import write_report

    report = write_report(outcome.directory)
    failed, of_members, fatal = failures_of(outcome)
    if as_json:
        print_json({**vars(outcome), "member_failures": of_members, "report": report})
    else:
        _sum_up(outcome.directory)
        for text in (*failed, *of_members):
            say(f"FAILED {text}")
        say(f"run     {outcome.directory}")
        say(f"report  {report}")
    raise typer.Exit(1 if fatal else 0)


def failures_of(outcome: Outcome) -> tuple[list[str], list[str], bool]:
    """List failed cells and failures of members; the run failed if a cell or all steps of a member did."""
    from driftlab.determinism import in_plain_words
    from driftlab.platform.results.relations.failures import member_failures
    from driftlab.platform.results.tables.read import Tables, open_run

    failures = member_failures(Tables(open_run(outcome.directory)))
    cells = [f"{cell}: {reason}" for cell, reason in outcome.failed]
    return cells, [in_plain_words(one.text) for one in failures], bool(cells) or any(one.every for one in failures)


def _sum_up(directory: Path) -> None:
    """Print the health of the run, then the tables and warnings of the report's summary."""
    from driftlab.platform.results.figures.base import view_of
    from driftlab.platform.results.isolation import attempt
    from driftlab.platform.results.relations.failures import symptoms
    from driftlab.platform.results.relations.tuned import how_chosen, unequal_budgets
    from driftlab.platform.results.report.summary.table import summarise
    from driftlab.platform.results.tables.read import open_run

    run = open_run(directory)
    view = view_of(run)
    summary = summarise(view)
    if signs := attempt("Signs of systems that do nothing", lambda: symptoms(view.tables), []):
        for sign in signs:
            say(f"health  {sign}")
        say()
    for part in summary.parts:
        _print_part(part)
        for warning in part.warnings:
            say(warning)
        if part.warnings:
            say()
    for line in (*summary.warnings, *summary.findings):
        say(line)
    if summary.warnings or summary.findings:
        say()
    for note in (*how_chosen(view.tables), *unequal_budgets(view.tables)):
        say(note)


def _print_part(part: Part) -> None:
    """Print a table per setting: titles, units, methods with the best in bold, and bounds apart."""
    places = [place for place, column in enumerate(part.columns) if not column.detail]
    shown = [part.columns[place] for place in places]
    head = [["system", *(column.title for column in shown)], ["", *(column.unit for column in shown)]]
    for setting, rows in itertools.groupby(part.rows, lambda row: row.setting):
        say(setting)
        styled = [
            ([row.named, *(row.texts[place] for place in places)], "dim" if row.bound else "bold" if row.best else "")
            for row in rows
        ]
        print_ranked(head, styled)
        say()
