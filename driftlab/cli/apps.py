"""`driftlab profile` and `driftlab device --app`: networks measured here, applications in real time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftlab.cli.output import print_json, print_note, print_table, say
from driftlab.cli.progress import shown
from driftlab.errors import RequestError, as_typed

if TYPE_CHECKING:
    from driftlab.platform.field.app_files import AppFile, AppSettings
    from driftlab.platform.field.shared_device import AppReport
    from driftlab.platform.lab.read import Experiment

Apps = Annotated[
    list[Path] | None,
    typer.Option("--app", metavar="FILE.yaml", help="An application; give one for each.", show_default=False),
]
Capacity = Annotated[
    float, typer.Option(min=0.01, max=1, help="With --app: the part of one core that the applications share.")
]
MemoryMb = Annotated[
    float | None,
    typer.Option(min=0.001, help="With --app: memory for all networks, in MB.  [default: the profile's]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
EXAMPLES = """\b
Examples:
  driftlab profile nestdnn-live --out mine.csv              networks of an experiment
  driftlab profile --app lane.yaml --app signs.yaml         networks of applications
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(short_help="Measure networks on this device.", epilog=EXAMPLES)(profile)


def profile(
    experiment: Annotated[str | None, typer.Argument(metavar="EXPERIMENT|FILE.yaml", show_default=False)] = None,
    apps: Apps = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the experiment.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, max=3600, help="Seconds of measurement per network.")] = 1.0,
    out: Annotated[Path, typer.Option(metavar="FILE.csv", help="File for the measurements.")] = Path("networks.csv"),
    as_json: Json = False,
) -> None:
    """Measure latency, memory and energy of the networks of an experiment or of applications.

    The key `variants` of an application reads the CSV file. Energy comes from the battery, RAPL or NVIDIA counters;
    without them it is computed from the hardware profile, as the column energy_from says.
    """
    from driftlab.platform.field.energy import sensors_here
    from driftlab.platform.field.profiling import COLUMNS, profile_experiment, write_profile
    from driftlab.platform.lab.read import load

    if (experiment is None) == (not apps):
        raise RequestError("Give an experiment, such as `driftlab profile nestdnn-live`, or files with --app.")
    if out.suffix != ".csv" or not out.absolute().parent.is_dir():
        raise RequestError(f"--out is '{out}'. Use a name that ends in .csv, in a folder that exists.")
    if apps and set_:
        raise RequestError("--set changes an experiment. Edit the files of --app instead.")
    spec = load(experiment, set_ or ()) if experiment is not None else _experiment(apps or [], settings_of_apps())[0]
    with shown() as progress:
        rows = profile_experiment(spec, seconds, sensors_here(), progress)
    write_profile(out, rows)
    cells = [["" if cell is None else cell for cell in row.cells()] for row in rows]
    if as_json:
        print_json({"file": out, "networks": [dict(zip(COLUMNS, line, strict=True)) for line in cells]})
    else:
        print_table(COLUMNS[:8], [[str(cell) for cell in line[:8]] for line in cells])
        say(f"{out}: in an experiment or an application, `variants: {out}`")


def settings_of_apps(
    system: str = "nestdnn",
    workload: dict[str, Any] | None = None,
    student: dict[str, Any] | None = None,
    seed: int = 0,
    memory_mb: float | None = None,
) -> AppSettings:
    """Return the common settings of applications; the defaults are those of `driftlab device`."""
    from driftlab.platform.field.app_files import AppSettings

    stream = {"name": "streets/walking_paris", "duration_s": 120.0, "fps": 4.0, "height": 64, "width": 96}
    memory_bytes = None if memory_mb is None else round(memory_mb * 1e6)
    return AppSettings(system, workload or stream, student or {"network": "tiny"}, seed, memory_bytes=memory_bytes)


def _experiment(files: Sequence[Path], settings: AppSettings) -> tuple[Experiment, list[AppFile]]:
    from driftlab.platform.field.app_files import experiment_of_apps, read_app_files

    apps = read_app_files(files)
    return experiment_of_apps(apps, settings), apps


def run_apps(files: Sequence[Path], settings: AppSettings, capacity: float, out: Path | None, as_json: bool) -> None:
    """Run applications on this device, and write the tables."""
    from driftlab.platform.field.shared_device import SharedDevice
    from driftlab.platform.field.tables import write_shared_run
    from driftlab.platform.lab.seal import create_run
    from driftlab.platform.sim.host import rare_garbage_searches

    experiment, apps = _experiment(files, settings)
    with create_run(experiment, out) as directory:
        with shown() as progress:
            device = SharedDevice(experiment, apps, capacity, progress)
        with rare_garbage_searches():  # one of all objects takes .1 s, and delays a frame
            device.run(_print_reports)
        write_shared_run(device, directory)
    if as_json:
        print_json({"apps": [asdict(report) for report in device.final], "directory": directory})
        return
    for report in device.final:
        say(_line(report))
    say(f"run     {directory}")
    say(f"report  {as_typed('driftlab', 'report', directory)}")


def _print_reports(reports: Sequence[AppReport]) -> None:
    for report in reports:
        print_note(_line(report))


def _line(report: AppReport) -> str:
    score = "-" if report.score_live is None else f"{report.score_live:.3f}"
    return (
        f"{report.app:16}  {report.processed} of {report.frames} frames, planned {report.planned:.0f}  "
        f"network {report.network or '-'}  live score {score}"
    )
