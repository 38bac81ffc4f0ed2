"""`driftlab boxes`: import the boxes of a video from other formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftlab.cli.output import say
from driftlab.errors import RequestError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Import boxes of a video from COCO, MOT or Scalabel.")(boxes)


def boxes(
    source: Annotated[Path, typer.Argument(help="JSON of COCO, Scalabel or BDD100K, or gt.txt of MOT.")],
    video: Annotated[Path, typer.Argument(help="The video file that the boxes belong to.")],
    rename: Annotated[
        list[str] | None, typer.Option("--class", metavar="NAME=NEW", help="Rename a class, such as truck=car.")
    ] = None,
) -> None:
    """Write the boxes of a video to VIDEO.boxes.jsonl, from which `video:VIDEO` reads its ground truth."""
    from driftlab.datasets.boxes import SUFFIX, import_boxes, write_boxes

    for path in (source, video):
        if not path.is_file():
            raise RequestError(f"There is no file '{path}'. Give the file of the boxes, then the video.")
    if video.with_name(video.name + SUFFIX).exists():
        raise RequestError(f"'{video}{SUFFIX}' is there already. Remove it first.")
    names = dict(_renamed(given) for given in rename or ())
    found = import_boxes(source, names)
    counts = {name: sum(box.name == name for box in found) for name in sorted({box.name for box in found})}
    file = write_boxes(video, found)
    listed = ", ".join(f"{number} {name}" for name, number in counts.items())
    say(f"{file}: {len(found)} boxes in {len({box.frame for box in found})} frames ({listed})")


def _renamed(given: str) -> tuple[str, str]:
    name, equals, new = given.partition("=")
    if not (name and equals and new):
        raise RequestError(f"--class '{given}' is not NAME=NEW, such as --class truck=car.")
    return name, new
