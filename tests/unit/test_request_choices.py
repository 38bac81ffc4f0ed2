"""Overrides, sizes and choices of an experiment."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from request_factory import DOCUMENT, document, refusal

from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import Choice, parse


class TestOverrides:
    CHANGES = (
        "name=other",
        "summary=words",
        "systems.0=oracle",
        "limits.training_batch_s=30",
        "grace_s=0.5",
        "limits.member_s=60",
        "systems.1.name=another",
        "systems.1.streaming.sample_s=6",
        "systems.1.streaming.rate_fps=2",
        "systems.1.adaptation={name: distill, batch: 2}",
        "workloads.0.name=streets/dance",
        "workloads.0.duration_s=9",
        "workloads.0.fps=1e0",
        "workloads.0.height=48",
        "workloads.0.width=64",
        "workloads.0.params.pace=2",
        "workloads.0.alias=short",
        "fleets.0.name=two",
        "fleets.0.devices.0.hardware=laptop",
        "fleets.0.devices.0.link=wifi",
        "fleets.0.devices.0.count=2",
        "seeds=[0, 1]",
        "seeds.0=4",
        "window_s=5",
        "snapshots=0",
        "bounds=true",
        "clock=wall",
        "student.network=small",
        "student.pretrain_steps=7",
        "student.pretrain_learning_rate=0.1",
        "student.pretrain_batch=16",
        "student.per_seed=true",
        "student.pretrain_set_steps=7",
        "student.pretrain_seed=3",
        "teacher.kind=network",
        "teacher.network=tiny",
        "teacher.pretrain_steps=7",
        "teacher.pretrain_learning_rate=0.1",
        "teacher.pretrain_batch=16",
        "teacher.pretrain_seed=3",
        "teacher.border_noise=0.5",
        "teacher.label_jitter_px=2",
        "server.hardware=laptop",
        "server.gpus=2",
        "server.label_s=null",
        "server.step_s=1e-3",
        "server.order=round_robin",
        "compute.torch_device=cuda",
        "compute.gpus_per_actor=0.5",
        "compute.precision=bfloat16",
    )

    @pytest.mark.parametrize("override", CHANGES)
    def test_every_override_changes_the_experiment(self, override):
        assert parse(document(), [override]) != parse(document())

    def test_every_setting_can_be_overridden(self):
        def leaves(value: Any, place: str = "") -> set[str]:
            if isinstance(value, dict):
                return {leaf for key, below in value.items() for leaf in leaves(below, f"{place}.{key}")}
            return {place.strip(".").partition(".0")[0] if isinstance(value, list) else place.strip(".")}

        settings = leaves(parse(document()).model_dump(mode="json"))
        overridden = {override.partition("=")[0] for override in self.CHANGES}
        untouched = {leaf for leaf in settings if not any(f"{o}.".startswith(f"{leaf}.") for o in overridden)}
        assert untouched == {
            "size",
            "bound_rows",
            "tuned",
            "student.weights",
            "student.pretrain_set",
        }  # files

    def test_a_whole_number_may_stand_for_a_float_and_no_float_for_a_count(self):
        assert parse(document(), ["window_s=5"]).window_s == 5.0
        assert "seeds.0 is 1000.0: input should be a valid integer" in refusal(document(), ("seeds.0=1e3",))

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("window=5", "window is not known here. Did you mean 'window_s'?"),
            ("a.b.c=5", "a is not known here"),
            ("workloads.0.fpss=5", "workloads.0.fpss is not known here. Did you mean 'fps'?"),
            ("workloads.0.params.pase=5", "Did you mean 'pace'?"),
            ("systems.1.streaming.sample=5", "did you mean 'sample_s'?"),
            ("systems.0.name.x=1", "systems.0.name is 'no_custom', which has nothing below it"),
            ("window_s=-1e-3", "window_s is -0.001"),
            ("window_s=1e999", "window_s is inf"),
            ("window_s=", "window_s is None"),
        ],
    )
    def test_names_in_a_choice_must_exist_and_fit(self, override, message):
        assert message in refusal(document(), (override,))


class TestSizes:
    SIZED = document(sizes={"small": {"seeds": [7], "student": {"pretrain_steps": 3}}, "full": {}}, size="full")

    def test_the_default_is_used_unless_another_is_given(self):
        assert parse(self.SIZED).seeds == (0,)
        assert parse(self.SIZED, ["size=small"]).seeds == (7,)
        assert parse(self.SIZED, ["size=small"]).student.pretrain_steps == 3

    @pytest.mark.parametrize(
        ("changes", "overrides", "message"),
        [
            ({}, ("size=smal",), "Unknown size 'smal'. Did you mean 'small'? Known: full, small."),
            ({"sizes": 3}, (), "sizes is 3; give changes by name"),
            ({"sizes": {"a": 3}}, (), "give changes by name"),
            ({"size": ["a"]}, (), "Unknown size '['a']'"),
            ({"sizes": {"bad": {"seeds": []}}, "size": "bad"}, (), "seeds is empty"),
        ],
    )
    def test_wrong_sizes(self, changes, overrides, message):
        assert message in refusal({**copy.deepcopy(self.SIZED), **changes}, overrides)

    def test_an_experiment_without_sizes_has_none(self):
        assert parse(document()).size is None
        assert "Unknown size 'small'. Known: none." in refusal(document(), ("size=small",))


class TestChoice:
    def cells(self, choice: Choice, **changes: Any) -> list[str]:
        return [cell.id for cell in cells_of(parse(document(**changes), (), choice))]

    def test_chosen_systems_keep_settings_of_the_experiment(self):
        (cell,) = cells_of(parse(document(bounds=True), (), Choice(systems=("one_time",))))
        assert dict(cell.system.streaming.params) == {"sample_s": 5}

    def test_a_system_that_is_not_listed_is_added_as_the_table_has_it(self):
        assert self.cells(Choice(systems=("oracle",))) == ["oracle/running/one/seed-0"]

    def test_a_workload_that_is_not_listed_is_read_like_the_first(self):
        (workload,) = parse(document(), (), Choice(workloads=("streets/dance",))).workloads
        assert (workload.name, workload.duration_s, workload.height) == ("streets/dance", 8, 32)

    def test_workloads_are_known_by_name_and_by_alias(self):
        both = [{**DOCUMENT["workloads"][0], "alias": alias} for alias in ("a", "b")]
        assert len(self.cells(Choice(workloads=("streets/running",)), workloads=both)) == 4
        assert {cell.split("/")[1] for cell in self.cells(Choice(workloads=("b",)), workloads=both)} == {"b"}

    def test_workloads_are_known_by_the_label_in_reports(self):
        assert [one.name for one in parse(document(), (), Choice(workloads=("running",))).workloads] == [
            "streets/running"
        ]

    def test_seeds_are_replaced(self):
        assert parse(document(), (), Choice(seeds=(3, 4))).seeds == (3, 4)

    def test_overrides_apply_to_chosen_systems(self):
        chosen = parse(document(), ["workloads.0.fps=1"], Choice(workloads=("streets/dance",)))
        assert chosen.workloads[0].fps == 1

    @pytest.mark.parametrize(
        ("choice", "message"),
        [
            (Choice(systems=("no_costum",)), "Did you mean 'no_custom'?"),
            (Choice(workloads=("streets/danse",)), "Did you mean 'streets/dance'?"),
            (Choice(workloads=("depot",)), "'signs/depot' has truth for classification"),
            (Choice(workloads=("dance",)), "Use streets/dance or city/dance."),
            (Choice(systems=("no_custom", "no_custom")), "would run twice"),
            (Choice(seeds=(-1,)), "seeds.0 is -1"),
        ],
    )
    def test_wrong_choices(self, choice, message):
        assert message in refusal(document(), (), choice)
