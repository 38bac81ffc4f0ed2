"""What a device keeps on its disk to answer at once when it goes on: its first network, and every update since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from driftlab.errors import WireError
from driftlab.platform.core.files import write_atomically
from driftlab.platform.field.messages import ResultMessage, decode_results

FOLDER, NEWEST = "network", "newest"  # beside the tables; the newest result of another kind than an update


@dataclass
class KeptNetwork:
    """The parts of a network that were fetched, by name, and the results that were applied."""

    folder: Path | None = None  # of the device's run; None before there is one
    fetched: dict[str, bytes] = field(default_factory=dict)

    def part(self, name: str, fetch: Callable[[], bytes]) -> bytes:
        """Return a part from the disk, or fetch it."""
        file = None if self.folder is None else self.folder / FOLDER / name
        if name not in self.fetched:
            self.fetched[name] = file.read_bytes() if file is not None and file.exists() else fetch()
        return self.fetched[name]

    def begin(self, folder: Path) -> None:
        """Write what was fetched."""
        self.folder = folder
        (folder / FOLDER).mkdir(exist_ok=True)
        for name, data in self.fetched.items():
            if not (folder / FOLDER / name).exists():
                write_atomically(folder / FOLDER / name, data)

    def add(self, result: ResultMessage, fps: float) -> None:
        """Keep a result that the application has accepted; of labels and plans only the newest."""
        if self.folder is not None:
            name = f"{result.number:08d}" if result.kind == "update" else NEWEST
            write_atomically(self.folder / FOLDER / name, result.encode(fps))

    def results(self, fps: float) -> Iterator[tuple[ResultMessage, float]]:
        """Read the results in the order of their numbers, each with the wall clock at which it was applied."""
        files = [] if self.folder is None else (self.folder / FOLDER).glob("*")
        found = []
        for file in files:
            if file.name.isdigit() or file.name == NEWEST:
                try:
                    found += [(one, file.stat().st_mtime) for one in decode_results(file.read_bytes(), fps)]
                except WireError:  # of another version: the server has the results
                    return
        yield from sorted(found, key=lambda one: one[0].number)
