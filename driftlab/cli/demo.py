"""`driftlab demo`: an act for each of four papers, and a sentence about each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from driftlab.cli.output import print_json, print_note, say
from driftlab.cli.plan import plan_of, print_plan
from driftlab.cli.progress import shown
from driftlab.cli.run import (
    PORTABLE,
    BackendChoice,
    BackendName,
    DryRun,
    Json,
    Out,
    Portable,
    Seeds,
    choice_of,
    failures_of,
    run_in,
)

if TYPE_CHECKING:
    from driftlab.platform.lab.read import Experiment

ActName = Literal["streaming", "adaptation", "scaling", "sharing"]
ACTS: tuple[ActName, ...] = ("streaming", "adaptation", "scaling", "sharing")  # in this order


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Run four acts, one per paper, and print a sentence about each.")(demo)


def demo(
    act: Annotated[ActName | None, typer.Option("--act", help="Only this act.  [default: all]")] = None,
    seed: Seeds = None,
    out: Out = None,
    backend: BackendName = "ray",
    portable: Portable = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Compare methods of four papers on built-in data; print a sentence about each act.

    Each act is an experiment: `driftlab run demo-streaming` runs the first one and prints all of its tables.
    """
    from driftlab.platform.lab import read

    names = ACTS if act is None else (act,)
    overrides = [PORTABLE] if portable else []
    specs = {name: read.load(f"demo-{name}", overrides, choice_of(None, None, seed)) for name in names}
    place = BackendChoice(backend, None, None, None, False)
    if dry_run and as_json:
        print_json({"acts": [plan_of(spec, place.placement(spec)) for spec in specs.values()]})
    elif dry_run:
        for spec in specs.values():
            print_plan(spec, False, place.placement(spec))
    else:
        _conclude([_play(name, spec, out and out / name, place) for name, spec in specs.items()], as_json)


def _play(name: ActName, spec: Experiment, out: Path | None, place: BackendChoice) -> dict[str, Any]:
    """Run one act, write its report, and return its sentence with the numbers and the failures."""
    from driftlab.platform.results.report.acts import ACTS, result_of
    from driftlab.platform.results.report.page import write_report
    from driftlab.platform.results.tables.read import Tables, open_run

    print_note(f"{name}: {spec.summary}")
    run = run_in(spec, out, place, shown(lines=False))
    report = write_report(run.directory)
    failed, of_members, fatal = failures_of(run)
    result = result_of(ACTS[name], Tables(open_run(run.directory)))
    difference = result.difference and result.difference._asdict()
    return {
        "act": name,
        **vars(result),
        "difference": difference,
        "failures": [*failed, *of_members],
        "failed": fatal,
        "directory": run.directory,
        "report": report,
    }


def _conclude(played: list[dict[str, Any]], as_json: bool) -> None:
    """Print the sentences, then the failures and the reports; exit with code 1 if an act failed."""
    if as_json:
        print_json({"acts": played})
    else:
        for act in played:
            say(act["sentence"])
        say()
        for text in (text for act in played for text in act["failures"]):
            say(f"FAILED {text}")
        for act in played:
            say(f"report  {act['report']}")
    raise typer.Exit(1 if any(act["failed"] for act in played) else 0)
