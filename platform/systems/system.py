"""A system is four slots: how frames are sent, weights adapted, the network scaled and the machine shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from driftlab.platform.core.catalogue import Member, member_class

Bound = Literal["do_nothing", "null_link", "best_static", "oracle"]


@dataclass(frozen=True)
class System:
    """One row of the table of systems."""

    name: str
    summary: str
    streaming: Member = Member("streaming", "local")
    adaptation: Member = Member("adaptation", "frozen")
    scaling: Member = Member("scaling", "fixed")
    scheduling: Member = Member("scheduling", "uniform")
    bound: Bound | None = None  # the bound that this row stands for in a report

    @property
    def members(self) -> tuple[Member, ...]:
        return (self.streaming, self.adaptation, self.scaling, self.scheduling)

    @property
    def uses_teacher(self) -> bool:
        """Whether a teacher is ever asked, by a learner or for the device."""
        streaming = member_class("streaming", self.streaming.name)
        return bool(streaming.brings_labels or streaming.returns == "labels")

    def faults(self) -> list[str]:
        """Say why this combination makes no sense; empty when it does."""
        streaming = member_class("streaming", self.streaming.name)
        adaptation = member_class("adaptation", self.adaptation.name)
        if adaptation.needs_labels and not streaming.brings_labels:
            return [
                f"system '{self.name}': adaptation '{self.adaptation.name}' learns from a teacher's labels and "
                f"streaming '{self.streaming.name}' brings none; choose a streaming member that does, such as one_time"
            ]
        if streaming.brings_labels and not adaptation.needs_labels:
            return [
                f"system '{self.name}': streaming '{self.streaming.name}' pays for a teacher's labels and "
                f"adaptation '{self.adaptation.name}' learns from none; choose an adaptation that does, such as distill"
            ]
        return []
