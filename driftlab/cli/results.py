"""`driftlab report`, `board`, `claims`, `diff` and `export`: read finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftlab.cli.output import print_json, print_note, print_table, say

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
MAX_SHOWN = 20  # differences that are printed


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(short_help="Write report.html and report.md from a run's tables.")(report)
    app.command(short_help="Write one page about many runs.")(board)
    app.command(short_help="Test the papers' claims on a run's tables.")(claims)
    app.command(short_help="Compare the tables of two runs.")(diff)
    app.command(short_help="Export a run to CSV, MLflow, TensorBoard or wandb.")(export)


def report(
    run: Folder,
    compare_to: Annotated[
        Path | None,
        typer.Option(
            help="Another run or search to compare with: a simulation and a device, or ASHA and full trials.",
            show_default=False,
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Print a table of a paper cell by cell instead, such as ams-table1; a wrong name lists all.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write report.html, a self-contained file with plots, and report.md from a run's tables."""
    from driftlab.platform.results.report.page import write_report
    from driftlab.platform.results.tables.integrity import warnings_of
    from driftlab.platform.results.tables.read import open_run

    if paper is not None:
        _print_paper_table(run, paper, as_json)
        return
    path = write_report(run, compare_to)
    for warning in warnings_of(open_run(run)):
        print_note(warning)
    if as_json:
        print_json({"report": path})
    else:
        say(str(path))


def _print_paper_table(run: Path, name: str, as_json: bool) -> None:
    """Print a table of a paper with the values of a run."""
    from driftlab.platform.results.claims import base, cells
    from driftlab.platform.results.tables.read import Tables, open_run

    table, opened = cells.table_of(name), open_run(run)
    verdicts = cells.compare(table, Tables(opened))
    if as_json:
        print_json({"run": run, "table": name, "source": table.source, "cells": base.as_records(verdicts)})
        return
    print_note(f"{table.source}: {table.title}")
    print_table(cells.COLUMNS, cells.as_rows(verdicts), whole=("cell", "paper", "ours"))
    print_note(", ".join(f"{count} {word}" for word, count in base.count_results(verdicts).items()))


def board(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="The folder that holds the runs.")] = Path("runs"),
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page.  [default: DIR/board.html]")] = None,
    as_json: Json = False,
) -> None:
    """Write one page about all runs below a folder, to filter, sort and compare them.

    The page is one file that opens offline, and links the report of each run.
    """
    from driftlab.platform.results.board.page import write_board

    page, entries = write_board(folder, out)
    for entry in entries:
        if entry.health == "damaged":
            print_note(f"{entry.name}: {entry.notes[0]}")
    if not entries:
        print_note(f"There is no run in '{folder}': the page is empty.")
    if as_json:
        print_json({"board": page, "runs": {entry.name: entry.health for entry in entries}})
    else:
        say(str(page))


def claims(
    run: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The folder of a run.  [default: the newest in runs/]")
    ] = None,
    as_json: Json = False,
    record: Annotated[
        bool,
        typer.Option(
            "--record", help="Add the claims and cells that a finished run measures to evidence/ledger.jsonl."
        ),
    ] = False,
) -> None:
    """Test every claim on a run's tables: reproduced, not reproduced, or not testable here."""
    from driftlab.platform.lab.evidence import check_evidence
    from driftlab.platform.results.claims import base, cells, ledger
    from driftlab.platform.results.tables.read import Tables, newest_run, open_run

    folder = run or newest_run()
    opened = open_run(folder)
    if record:
        check_evidence(folder)
    verdicts = base.evaluate(opened)
    if as_json:
        origin = {key: opened.spec.get(key) for key in ("size", "seeds")}
        origin |= {"experiment": opened.spec.get("name"), "commit": opened.info.get("git_commit")}
        print_json(
            {"run": folder, **origin, "counts": base.count_results(verdicts), "claims": base.as_records(verdicts)}
        )
    else:
        print_note(f"Run: {folder}")
        if measured := [verdict for verdict in verdicts if verdict.measured]:
            print_table(base.COLUMNS, base.as_rows(measured))
            say()
        never = [verdict for verdict in verdicts if verdict.claim.not_testable]
        print_table(
            ("not testable here", "why"), base.untestable_by_reason(one for one in verdicts if one not in never).items()
        )
        say()
        print_table((base.NO_RUN, "why"), base.untestable_by_reason(never).items())
        print_note(", ".join(f"{count} {word}" for word, count in base.count_results(verdicts).items()))
    if record:
        verdicts += [one for _, found in cells.compared_with(Tables(opened)) for one in found]
        added = ledger.append(ledger.LEDGER, ledger.lines_of(opened, verdicts, ledger.Digests()))
        print_note(f"Added {added} lines to {ledger.LEDGER}")


def diff(
    first: Folder,
    second: Folder,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Compare scores and traffic up to this relative difference.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the tables of two runs without host-time columns; exit code 1 if they differ.

    With --tolerance, print scores and traffic of each cell for both runs, such as a simulation and a field run.
    """
    from driftlab.platform.results.tables.diff import differences, figure_differences
    from driftlab.platform.results.tables.read import open_run
    from driftlab.platform.results.tables.run_pair import HEADER, compare_figures, rows_of

    differing = differences(first, second) if tolerance is None else figure_differences(first, second, tolerance)
    figures = [] if tolerance is None else compare_figures(open_run(first), open_run(second))
    if as_json:
        listed = {"figures": [{**vars(one), "share": one.share} for one in figures]} if figures else {}
        print_json({"identical": not differing, "differences": differing, **listed})
        raise typer.Exit(1 if differing else 0)
    if figures:
        print_table(HEADER, rows_of(figures))
        say()
    if differing:
        for line in differing[:MAX_SHOWN]:
            say(line)
        if len(differing) > MAX_SHOWN:
            say(f"and {len(differing) - MAX_SHOWN} more")
    else:
        say("No difference." if tolerance is None else f"No figure differs by more than {tolerance:.1%}.")
    raise typer.Exit(1 if differing else 0)


def export(
    run: Folder,
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help="csv, mlflow, tensorboard, wandb.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Output folder.  [default: DIR/export/FORMAT]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Export a run: every table and the scores as CSV, or one MLflow, TensorBoard or wandb run per cell.

    Nothing is sent anywhere; `wandb sync` sends an export for Weights & Biases.
    """
    from driftlab.platform.results.report.export import export as write_export

    folder = write_export(run, to, out)
    if as_json:
        print_json({"format": to, "folder": folder})
    else:
        say(str(folder))
