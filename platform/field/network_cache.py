"""The network on a device's disk, for a resumed device: the initial weights and the updates since.

An update with all weights replaces the older ones. If the updates outgrow the network, the device writes such an
update itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from driftlab.errors import WireError
from driftlab.platform.core.files import make_folder, write_atomically
from driftlab.platform.field.messages import ResultMessage, decode_results
from driftlab.platform.streaming.wire import channel_mask
from driftlab.platform.streaming.wire.delta import is_self_contained

FOLDER, NEWEST = "network", "newest"  # next to the tables; file of the newest result that is not an update
MAX_UPDATES = 200  # on disk, before they are replaced by one


@dataclass
class CachedNetwork:
    """The downloaded parts of a network and the results that were applied to it."""

    folder: Path | None = None  # of the device's run; None before the run
    fetched: dict[str, bytes] = field(default_factory=dict)  # by name of the part
    updates: dict[int, int] = field(default_factory=dict)  # bytes of those on disk, by number
    is_masked: bool = False  # an update has a channel mask, whose network is a part of a larger one

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
        """Store an accepted result; an update with all weights replaces the older ones."""
        if self.folder is None:
            return
        data, is_update = result.encode(fps), result.kind == "update"
        write_atomically(self.folder / FOLDER / (f"{result.number:08d}" if is_update else NEWEST), data)
        if is_update:
            self._count(result, len(data))
            if is_self_contained(result.payload) and not self.is_masked:
                self._delete_before(result.number)

    @property
    def is_long(self) -> bool:
        """Return whether one update with all weights should replace the stored ones."""
        limit, size = len(self.fetched.get("weights", b"")), sum(self.updates.values())
        return not self.is_masked and len(self.updates) > 1 and (size > limit or len(self.updates) > MAX_UPDATES)

    def _count(self, result: ResultMessage, size: int) -> None:
        self.updates[result.number] = size
        self.is_masked |= result.payload[: len(channel_mask.MAGIC)] == channel_mask.MAGIC

    def _delete_before(self, number: int) -> None:
        """Delete the updates before one with all weights."""
        assert self.folder is not None
        for older in [one for one in self.updates if one < number]:
            (self.folder / FOLDER / f"{older:08d}").unlink(missing_ok=True)
            del self.updates[older]

    def results(self, fps: float) -> Iterator[tuple[ResultMessage, float]]:
        """Yield the results that make the newest network, each with the wall-clock time of its use."""
        files = [] if self.folder is None else (self.folder / FOLDER).glob("*")
        stored, first = [], 0
        for file in files:
            if file.name.isdigit() or file.name == NEWEST:
                try:
                    found = [(result, file.stat().st_mtime) for result in decode_results(file.read_bytes(), fps)]
                except WireError:  # written by another version: the server still has the results
                    return
                stored += found
        stored.sort(key=lambda pair: pair[0].number)
        for result, _ in stored:
            if result.kind == "update":
                self._count(result, len(result.payload))
                first = result.number if is_self_contained(result.payload) else first
        first = 0 if self.is_masked else first
        yield from (pair for pair in stored if pair[0].kind != "update" or pair[0].number >= first)
