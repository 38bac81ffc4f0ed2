"""A system has four slots: members for streaming, adaptation, scaling and scheduling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from driftlab.platform.core.registry import Member, member_class

Bound = Literal["no_adaptation", "zero_delay_link", "best_static", "oracle", "true_load", "true_gains"]
FUTURE_BOUNDS: frozenset[Bound] = frozenset({"best_static", "oracle", "true_load", "true_gains"})


@dataclass(frozen=True)
class System:
    """A row of the table of systems."""

    name: str
    summary: str
    streaming: Member = Member("streaming", "local")
    adaptation: Member = Member("adaptation", "frozen")
    scaling: Member = Member("scaling", "fixed")
    scheduling: Member = Member("scheduling", "uniform")
    bound: Bound | None = None  # the bound that this row is in a report

    @property
    def members(self) -> tuple[Member, ...]:
        return (self.streaming, self.adaptation, self.scaling, self.scheduling)

    @property
    def uses_teacher(self) -> bool:
        """Return whether a learner or the device uses a teacher."""
        streaming = self.streaming.make()
        adaptation = member_class("adaptation", self.adaptation.name)
        return bool(streaming.label_tracking or (streaming.feeds_learner and adaptation.labels == "teacher"))

    @property
    def needs_server(self) -> bool:
        """Return whether a server trains or labels for the devices."""
        streaming = self.streaming.make()
        return bool(streaming.learner_site == "server" and (streaming.feeds_learner or streaming.label_tracking))

    @property
    def trains_several(self) -> bool:
        """Return whether a learner may train other networks of a family than the first one."""
        return bool(member_class("streaming", self.streaming.name).feeds_learner) and self.scaling.name != "fixed"

    @property
    def uses_future(self) -> bool:
        """Return whether it is a bound whose members may use frames or loads before their time."""
        return self.bound in FUTURE_BOUNDS

    def faults(self) -> list[str]:
        """List the reasons why this combination is invalid; empty if it is valid."""
        streaming = member_class("streaming", self.streaming.name)
        adaptation, whose = self.adaptation.make(), f"system '{self.name}'"
        if not self.uses_future and (ahead := self._ahead()):
            return [f"{whose}: {claim}" for claim in ahead]
        if streaming.feeds_learner:
            if self.adaptation.name == "frozen":
                return [
                    f"{whose}: streaming '{self.streaming.name}' takes samples for a learner, and adaptation 'frozen' "
                    "learns nothing; choose an adaptation that learns, such as distill"
                ]
            if adaptation.only_on_stream:
                return [
                    f"{whose}: adaptation '{self.adaptation.name}' adapts predictions on the stream, and streaming "
                    f"'{self.streaming.name}' trains in phases; choose streaming 'local'"
                ]
            if getattr(adaptation, "episodic", False) == "batch":
                return [
                    f"{whose}: adaptation '{self.adaptation.name}' is reset before each batch of the stream (episodic: "
                    f"batch), and streaming '{self.streaming.name}' trains in phases; choose streaming 'local'"
                ]
            if streaming.needs_labels and adaptation.labels == "none":
                return [
                    f"{whose}: streaming '{self.streaming.name}' compares the student with a teacher's labels, and "
                    f"adaptation '{self.adaptation.name}' uses none; choose one that does, such as distill"
                ]
        elif adaptation.labels == "teacher":
            return [
                f"{whose}: adaptation '{self.adaptation.name}' learns from a teacher's labels, and streaming "
                f"'{self.streaming.name}' feeds no learner; choose a streaming member that does, such as one_time"
            ]
        elif self.adaptation.name != "frozen" and not adaptation.learns_on_stream:
            return [
                f"{whose}: adaptation '{self.adaptation.name}' learns in phases, and streaming '{self.streaming.name}' "
                "plans none; choose a streaming member that does, such as on_device"
            ]
        return []

    def _ahead(self) -> list[str]:
        """List the members that only a bound may have, with a way out for each."""
        faults = []
        if self.streaming.make().free:
            faults.append(
                f"streaming '{self.streaming.name}' is free: it may send frames before they are shown, which only "
                "bounds of the table of systems may; choose one with free = False, or the system 'oracle'"
            )
        if self.scaling.make().uses_true_load:
            faults.append(
                f"scaling '{self.scaling.name}' uses_true_load: it gets loads before their time, which only bounds of "
                "the table of systems may; choose one with uses_true_load = False, or the system 'clairvoyant'"
            )
        if self.scheduling.make().uses_true_gains:
            faults.append(
                f"scheduling '{self.scheduling.name}' uses_true_gains: it gets accuracies on later frames, which only "
                "bounds of the table of systems may; choose one with uses_true_gains = False, or the system 'optimum'"
            )
        return faults
