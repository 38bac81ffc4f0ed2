"""Messages over a device's links: queued, counted, damaged, charged to its radio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from driftlab.platform.sim.device import DeviceSim
from driftlab.platform.sim.messages import Message
from driftlab.platform.sim.rows import transfer_row
from driftlab.platform.sim.runtime import CellRuntime, Process


@dataclass
class Transport:
    """Sends messages over links; a message within a device arrives at once and has no row."""

    parts: CellRuntime
    devices: dict[str, DeviceSim]

    def carry(self, message: Message, size: int) -> Process:
        """Send a message to the other end and count it."""
        app = message.app
        message.arrive_s = self.parts.clock.now
        if not app.local:
            app.messages[message.direction] += 1
            message.sequence = app.messages[message.direction]
            link = app.up if message.direction == "up" else app.down
            message.transfer = yield from link.send(size)
            message.arrive_s = message.transfer.arrive_s
            app.account.sent(message.direction, message.transfer)
            app.account.spend("radio", self.devices[app.device].radio.add(message.transfer, message.direction))
        message.refused = message.missed or message.refused

    def arrived(self, message: Message, **columns: Any) -> None:
        """Write a message's row, after its receiver has accepted or refused it."""
        if message.transfer is not None:
            self.parts.ledger.row("transfers", **transfer_row(message), **columns)
