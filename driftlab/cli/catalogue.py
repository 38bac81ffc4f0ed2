"""`driftlab list` and `driftlab show`: names by kind, and the parameters and page of one name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftlab.cli.kinds import KINDS, Entry, complete_entry, complete_kind, kind_of
from driftlab.cli.output import print_columns, print_json, print_note, say
from driftlab.errors import RequestError, unknown_name
from driftlab.renamed import name_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driftlab.datasets.frames import Stream
    from driftlab.datasets.parameters import AnyParameter

LOAD_S = 120.0  # drawn length of a load
SHEET_S, SHEET_FRAMES = 240.0, 12  # span and frames of the contact sheet of an endless stream
VIDEO_FPS, VIDEO_S = 30.0, 60.0
DRAWN_KINDS = ("workloads", "shifts", "loads")
DRAWN_SIZE = {"height": 144, "width": 256}
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list", short_help="List the kinds of names, or the names of one kind.")(list_names)
    app.command(short_help="Show the parameters and the page of one name.")(show)


def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(help=f"One of {', '.join(KINDS)}.", show_default=False, autocompletion=complete_kind),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the kinds with the number of their names, or the names of one kind with one line about each."""
    if kind is None and not as_json:
        print_columns([(name, len(kind_of(name).names()), f"driftlab list {name}") for name in KINDS])
        return
    listed = {name: kind_of(name).summaries() for name in ([kind] if kind is not None else KINDS)}
    if as_json:
        print_json({name: [{"name": n, "summary": s} for n, s in rows.items()] for name, rows in listed.items()})
    else:
        print_columns(listed[str(kind)].items())


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="KIND/NAME", help="For example workloads/streets/driving_la.", autocompletion=complete_entry
        ),
    ],
    as_json: Json = False,
    image: Annotated[Path | None, typer.Option(help="Draw a workload, a shift or a load.", metavar="FILE.png")] = None,
    video: Annotated[
        Path | None, typer.Option(help="Write a workload as a video with label maps.", metavar="FILE.mp4")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Length of the video.  [default: 60]", min=1, max=3600, show_default=False)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the drawn stream or load.  [default: 0]", min=0, show_default=False),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of the drawn workload.")
    ] = None,
) -> None:
    """Show the description, parameters, defaults and documentation page of one name."""
    kind, slash, rest = name.partition("/")
    if not slash or not rest:
        kind, rest = _only_kind(name), name
    if image is None and video is None:
        given = {"--set": set_, "--seed": seed, "--seconds": seconds}
        if extra := [option for option, value in given.items() if value not in (None, [])]:
            raise RequestError(f"{extra[0]} has an effect only with --image or --video. Add one of them.")
    if seconds is not None and video is None:
        raise RequestError("--seconds is the length of a video. Add --video FILE.mp4, or leave --seconds out.")
    entry = kind_of(kind).describe(rest)
    writers = []
    if image is not None:
        writers.append(_draw(entry, image, seed or 0, set_ or []))
    if video is not None:
        writers.append(_video(entry, video, VIDEO_S if seconds is None else seconds, seed or 0, set_ or []))
    for write in writers:  # after all checks, so that a refused request writes no file
        write()
    if as_json:
        print_json(asdict(entry))
    else:
        _print_entry(entry)


def _only_kind(name: str) -> str:
    """Return the only kind that has a name; raise RequestError if none or several have it."""
    kind = name.rstrip("/")
    if kind in KINDS:
        raise RequestError(f"'{name}' names a kind: `driftlab list {kind}` lists its names, for KIND/NAME.")
    known = {kind: own.summaries() for kind, own in KINDS.items()}
    found = [kind for kind, names in known.items() if name in names]
    if len(found) == 1:
        return found[0]
    if found:
        fix = f" Use {' or '.join(f'{kind}/{name}' for kind in found)}."
    else:
        fix = f"{name_hint(name, {one for names in known.values() for one in names})} Kinds: {', '.join(KINDS)}."
    raise RequestError(f"'{name}' is not KIND/NAME, such as systems/no_custom.{fix}")


def _draw(entry: Entry, image: Path, seed: int, settings: list[str]) -> Callable[[], None]:
    """Check a request for an image, and return the function that writes it."""
    if entry.kind not in DRAWN_KINDS:
        raise RequestError(f"--image draws workloads, shifts and loads, but not {entry.kind}/{entry.name}.")
    if image.suffix.lower() != ".png":
        raise RequestError(f"--image '{image}' is not the name of a PNG file. Use a name that ends in .png.")
    if entry.kind != "workloads" and settings:
        raise RequestError(
            f"--set changes parameters of workloads; {entry.kind}/{entry.name} has none. Leave --set out."
        )
    if entry.kind == "loads":
        return _draw_load(entry.name, image, seed)
    if entry.kind == "shifts":
        return _draw_shift(entry.name, image, seed)
    stream = _stream(entry.name, seed, SHEET_S, settings)

    def write() -> None:
        from driftlab.datasets.sheet import contact_sheet, save_png

        times_s = [stream.duration_s * (index + 0.5) / SHEET_FRAMES for index in range(SHEET_FRAMES)]
        save_png(contact_sheet(stream, times_s), image)
        print_note(f"Drawn to {image}")

    return write


def _video(entry: Entry, file: Path, seconds: float, seed: int, settings: list[str]) -> Callable[[], None]:
    """Check a request for a video, and return the function that writes it."""
    if entry.kind != "workloads":
        raise RequestError(f"--video writes workloads, but {entry.kind}/{entry.name} has no frames.")
    from driftlab.datasets.video_writer import check_video, save_video

    stream = _stream(entry.name, seed, seconds, settings)
    check_video(stream, file)

    def write() -> None:
        save_video(stream, file)
        print_note(f"Written to {file}, label maps to {file}.labels; the name of the workload is video:{file}")

    return write


def _stream(name: str, seed: int, length_s: float, settings: list[str]) -> Stream:
    """Open a workload at a camera's frame rate: its full length, or `length_s` of an endless stream."""
    from driftlab.datasets.catalogue import find_workload, open_stream
    from driftlab.platform.lab.overrides import apply_overrides

    workload = find_workload(name)
    params = apply_overrides({}, settings, _example(workload.parameters))
    for key in set(params) - set(workload.parameters):
        raise unknown_name("parameter", key, workload.parameters)
    span_s = None if workload.own_length else length_s
    return open_stream(name, seed=seed, fps=VIDEO_FPS, duration_s=span_s, **DRAWN_SIZE, **params)


def _example(parameters: Mapping[str, AnyParameter]) -> str:
    """Return a setting of one parameter to its default, as an example for an error message."""
    for name, parameter in parameters.items():
        if not isinstance(parameter.default, tuple):
            return f"{name}={parameter.default:g}"
    return "KEY=VALUE"


def _draw_load(name: str, image: Path, seed: int) -> Callable[[], None]:
    """Return the function that draws the load of the first device in a run with this seed."""
    from driftlab.platform.core.seeding import rng_for
    from driftlab.platform.results.figures.load import save_load_plot
    from driftlab.platform.world import load, load_csv

    drawn = load_csv.load_of(load.find(name), LOAD_S, rng_for(seed, "load", 0))
    if drawn is None:
        raise RequestError(f"loads/{name} cannot be drawn: no other program runs on the device.")

    def write() -> None:
        save_load_plot(drawn, LOAD_S, image)
        print_note(f"Drawn to {image}")

    return write


def _draw_shift(name: str, image: Path, seed: int) -> Callable[[], None]:
    """Return the function that draws a sign of 32 pixels and a street of 64 pixels at each severity."""
    from driftlab.datasets.catalogue import open_stream
    from driftlab.datasets.domains.names import shift_of
    from driftlab.datasets.domains.sheet import shift_sheet
    from driftlab.datasets.sheet import save_png

    if shift_of(name).picks:
        raise RequestError(f"shifts/{name} cannot be drawn: it selects images without changing them.")
    shown = [
        open_stream(workload, seed=seed, height=side, width=side, fps=1.0, duration_s=SHEET_S)
        for workload, side in (("signs/town", 32), ("streets/driving_la", 64))
    ]

    def write() -> None:
        save_png(shift_sheet([name], shown), image)
        print_note(f"Drawn to {image}")

    return write


def _print_entry(entry: Entry) -> None:
    say(f"{entry.kind}/{entry.name}")
    for part in (entry.summary, entry.text):
        if part:
            say()
            say(part)
    if entry.facts:
        say()
        print_columns([tuple(entry.facts[0]), *(tuple(fact.values()) for fact in entry.facts)], indent="  ")
    if entry.page:
        say()
        say(f"More: {entry.page}")
