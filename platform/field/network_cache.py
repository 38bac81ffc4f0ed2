"""The network on a device's disk, for a resumed device: the initial weights and every update since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from driftlab.errors import WireError
from driftlab.platform.core.files import make_folder, write_atomically
from driftlab.platform.field.messages import ResultMessage, decode_results

FOLDER, NEWEST = "network", "newest"  # next to the tables; file of the newest result that is not an update


@dataclass
class CachedNetwork:
    """The downloaded parts of a network and the results that were applied to it."""

    folder: Path | None = None  # of the device's run; None before the run
    fetched: dict[str, bytes] = field(default_factory=dict)  # by name of the part

    def part(self, name: str, fetch: Callable[[], bytes]) -> bytes:
        """Return a part from memory, from disk, or by calling `fetch`."""
        file = None if self.folder is None else self.folder / FOLDER / name
        if name not in self.fetched:
            self.fetched[name] = file.read_bytes() if file is not None and file.exists() else fetch()
        return self.fetched[name]

    def begin(self, folder: Path) -> None:
        """Write the downloaded parts to the folder of a run, and store later results there."""
        self.folder = folder
        make_folder(folder / FOLDER)
        for name, data in self.fetched.items():
            if not (folder / FOLDER / name).exists():
                write_atomically(folder / FOLDER / name, data)

    def add(self, result: ResultMessage, fps: float) -> None:
        """Store an accepted result: every update, and the newest of all other kinds."""
        if self.folder is not None:
            name = f"{result.number:08d}" if result.kind == "update" else NEWEST
            write_atomically(self.folder / FOLDER / name, result.encode(fps))

    def results(self, fps: float) -> Iterator[tuple[ResultMessage, float]]:
        """Yield the results in order of their numbers, each with the wall-clock time at which it was applied."""
        files = [] if self.folder is None else (self.folder / FOLDER).glob("*")
        stored = []
        for file in files:
            if file.name.isdigit() or file.name == NEWEST:
                try:
                    stored += [(result, file.stat().st_mtime) for result in decode_results(file.read_bytes(), fps)]
                except WireError:  # written by another version: the server still has the results
                    return
        yield from sorted(stored, key=lambda pair: pair[0].number)
