"""Experiments: valid ones, refused ones, and a message with the place of every fault."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from experiments_factory import each_experiment, loaded, sizes, sizes_with_inherited
from request_factory import DOCUMENT, document, refusal

from driftlab.errors import RequestError
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import Choice, find, load, parse
from driftlab.platform.lab.size import size_of


def faults(changed: dict[str, Any]) -> list[str]:
    first, *lines = refusal(changed).splitlines()
    assert first == f"experiment: {len(lines)} fault{'s' if len(lines) > 1 else ''}"
    return [line.removeprefix("  - ") for line in lines]


class TestBuiltIn:
    @pytest.mark.slow
    @each_experiment
    def test_every_size_is_valid_called_like_its_file_and_counted(self, name):
        for size in sizes(name):
            experiment = loaded(name, size)
            assert experiment.name == name
            assert 0 < len(cells_of(experiment)) <= size_of(experiment).cells

    @each_experiment
    def test_its_head_has_the_command_the_duration_and_the_expectation(self, name):
        head = "".join(line for line in find(name).read_text().splitlines(keepends=True) if line.startswith("#"))
        assert f"driftlab run {name}" in head
        assert set(re.findall(r"--set size=(\w+)", head)) <= sizes_with_inherited(name)
        assert re.search(r"about \S+ (s|seconds|minutes?|hours?)\b", head)
        assert "xpect" in head


class TestShape:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sedes": [1]}, "sedes is not known here. Did you mean 'seeds'? Known: name, "),
            ({"window_s": -3}, "window_s is -3: input should be greater than 0"),
            ({"window_s": 0}, "window_s is 0: input should be greater than 0"),
            ({"window_s": float("inf")}, "window_s is inf: input should be a finite number"),
            ({"window_s": float("nan")}, "window_s is nan: input should be a finite number"),
            ({"window_s": "10"}, "window_s is '10': input should be a valid number"),
            ({"window_s": True}, "window_s is True: input should be a valid number"),
            ({"seeds": [True]}, "seeds.0 is True: input should be a valid integer"),
            ({"seeds": [1.0]}, "seeds.0 is 1.0: input should be a valid integer"),
            ({"seeds": [-1]}, "seeds.0 is -1: input should be greater than or equal to 0"),
            ({"seeds": [2**63]}, "seeds.0 is 9223372036854775808: input should be less than"),
            ({"seeds": 1}, "seeds is 1: give a list, such as [1, 2]"),
            ({"workloads": ["streets/dance"]}, "workloads.0 is 'streets/dance': give a mapping, such as {key: value}"),
            ({"student": "tiny"}, "student is 'tiny': give a mapping, such as {key: value}"),
            ({"bounds": 1}, "bounds is 1: input should be a valid boolean"),
            ({"systems": []}, "systems is empty: give at least one"),
            ({"workloads": []}, "workloads is empty: give at least one"),
            ({"fleets": []}, "fleets is empty: give at least one"),
            ({"seeds": []}, "seeds is empty: give at least one"),
            ({"fleets": [{"devices": []}]}, "fleets.0.devices is empty: give at least one"),
            ({"fleets": [{"devices": [{"count": 0}]}]}, "fleets.0.devices.0.count is 0: input should be greater"),
            ({"systems": [{"name": "a", "streming": "local"}]}, "systems.0.streming is not known here. Did you mean"),
            ({"systems": [{"base": "ams"}]}, "systems.0.name is missing"),
            ({"systems": [3]}, "systems.0 is 3: give a system, such as {name: mine, base: ams}"),
            ({"server": {"gpu": 1}}, "server.gpu is not known here. Did you mean 'gpus'?"),
            ({"clock": "walll"}, "clock is 'walll': input should be 'virtual' or 'wall'"),
            ({"teacher": {"kind": "human"}}, "teacher.kind is 'human': input should be 'oracle' or 'network'"),
            ({"name": "No Name"}, "name is 'No Name': string should match pattern"),
            ({1: 2}, "1 is 1: keys should be strings"),
        ],
    )
    def test_one_fault_is_one_line_with_its_place(self, changes, message):
        (fault,) = faults({**document(), **changes})
        assert fault.startswith(message)

    def test_all_faults_of_the_shape_at_once(self):
        found = faults({"name": 3, "systems": [], "workloads": [{"fps": -1}], "seed": 1})
        assert [fault.split()[0] for fault in found] == [
            "name",
            "systems",
            "workloads.0.name",
            "workloads.0.fps",
            "seed",
        ]


class TestRowsThatVary:
    ROW = {  # noqa: RUF012
        "name": "ams-{fraction}-{interval_s}",
        "base": "ams",
        "streaming": {"name": "ams", "adaptive_training": False},
        "vary": {"adaptation.fraction": [0.1, 1.0], "streaming.interval_s": [10, 20]},
    }

    def varied(self, overrides: tuple[str, ...] = (), **changes: Any) -> list[Any]:
        return list(parse(document(systems=["oracle", {**self.ROW, **changes}, "no_custom"]), overrides).systems)

    def test_varied_rows_equal_rows_written_one_by_one(self):
        one_by_one = [
            {
                "name": f"ams-{fraction}-{interval_s}",
                "base": "ams",
                "streaming": {"name": "ams", "adaptive_training": False, "interval_s": interval_s},
                "adaptation": {"name": "distill", "fraction": fraction},
            }
            for fraction in (0.1, 1.0)
            for interval_s in (10, 20)
        ]
        written = parse(document(systems=["oracle", *one_by_one, "no_custom"]))
        assert list(written.systems) == self.varied()
        assert "vary" not in yaml.safe_dump(written.model_dump(mode="json"))

    def test_a_row_keeps_the_other_parameters_of_its_base(self):
        row = {"name": "jit-{batch}", "base": "just_in_time", "vary": {"adaptation.batch": [2]}}
        (written,) = parse(document(systems=[row])).systems
        assert written.adaptation["optimiser"] == "momentum"

    def test_labels_name_values_that_make_no_good_names_and_whole_members_vary_too(self):
        vary = {"scaling": ["fixed", "usnet"], "scheduling": {"halves": {"name": "nestdnn", "units": 2}}}
        rows = self.varied(name="{scaling}-{scheduling}", vary=vary)
        assert [row.name for row in rows[1:3]] == ["fixed-halves", "usnet-halves"]
        assert [row.scaling["name"] for row in rows[1:3]] == ["fixed", "usnet"]
        assert rows[2].scheduling == {"name": "nestdnn", "units": 2}

    def test_overrides_and_choices_meet_the_rows_that_are_written_out(self):
        rows = self.varied(("systems.4.streaming.interval_s=30", "systems.5=oracle", "systems.0=no_custom"))
        assert rows[4].streaming["interval_s"] == 30
        chosen = parse(document(systems=[self.ROW]), (), Choice(systems=("ams-1.0-20",)))
        assert [row.name for row in chosen.systems] == ["ams-1.0-20"]
        assert chosen.systems[0].streaming["interval_s"] == 20

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"name": "a", "vary": {}}, ["vary is empty: give at least one"]),
            (
                {"name": "a-{fraction}", "vary": {"adaptation.fraction": []}},
                ["vary.adaptation.fraction is empty: give at least one"],
            ),
            (
                {"name": "a-{fraction}", "vary": {"adaptation.fraction": {}}},
                ["vary.adaptation.fraction is empty: give at least one"],
            ),
            ({"vary": {"adaptation.fraction": 0.1}}, ["vary.adaptation.fraction is 0.1: "]),
            ({"vary": [0.1]}, ["vary is [0.1]: "]),
            (
                {"name": "a-{fractoin}", "vary": {"adaptation.fractoin": [0.1], "adaptasion": ["frozen"]}},
                [
                    "vary.adaptation.fractoin: Unknown parameter 'fractoin'. Did you mean 'fraction'?",
                    "vary.adaptasion: Unknown slot 'adaptasion'. Did you mean 'adaptation'?",
                    "name is 'a-{fractoin}': it does not hold {adaptasion}, so all its rows would be called alike",
                ],
            ),
            ({"base": "asm"}, ["vary.adaptation.fraction: Unknown system 'asm'", "vary.streaming.interval_s: Unk"]),
            ({"streaming": "asm"}, ["vary.streaming.interval_s: Unknown streaming member 'asm'. Did you mean 'ams'?"]),
            (
                {"name": "ams-{fraction}-{interval}"},
                [
                    "name is 'ams-{fraction}-{interval}': it does not hold {interval_s}",
                    "name is 'ams-{fraction}-{inter",
                ],
            ),
            (
                {"vary": None},
                ["name is 'ams-{fraction}-{interval_s}': nothing varies {fraction}; varied: nothing", "n"],
            ),
            (
                {"name": "a-{batch}", "vary": {"adaptation.batch": [2], "scaling.batch": [2]}, "scaling": "nested"},
                ["vary has 2 keys 'batch', which the placeholders of a name cannot distinguish"],
            ),
            (
                {"name": "a-{keep_ratios}", "vary": {"scaling.keep_ratios": [[0.5], [0.6]]}, "scaling": "nested"},
                ["name would be 'a-[0.5]', allowed are letters, digits", "name would be 'a-[0.6]', allowed are"],
            ),
            ({"name": "ams-{fraction}-{interval_s}-{"}, ["name would be 'ams-0.1-10-{', allowed are"] + ["n"] * 3),
        ],
    )
    def test_wrong_documents_are_refused_with_every_fault(self, changes, message):
        found = faults(document(systems=["oracle", {**self.ROW, **changes}]))
        assert len(found) == len(message), found
        for fault, start in zip(found, message, strict=True):
            assert fault.startswith(f"systems.1.{start}")

    def test_values_that_their_member_refuses_are_refused_row_by_row(self):
        found = faults(
            document(systems=["oracle", {**self.ROW, "vary": {**self.ROW["vary"], "adaptation.fraction": [2]}}])
        )
        assert [fault.partition(":")[0] for fault in found] == ["systems.1", "systems.2"]
        assert all("'fraction' is 2.0, must be in (0, 1]" in fault for fault in found)


class TestMeaning:
    def test_all_wrong_names_are_reported_with_places_and_suggestions(self):
        found = faults(
            document(
                systems=["nocustom", {"name": "z", "streaming": {"name": "one_time", "sample_sec": 3}}],
                workloads=[{"name": "streets/runing"}],
                fleets=[{"devices": [{}, {"hardware": "jetson-nz", "link": "ltee"}]}],
                server={"hardware": "server-v10"},
                student={"network": "tny"},
                teacher={"network": "techer"},
                compute={"torch_device": "gpu"},
            )
        )
        places = [fault.partition(": ")[0] for fault in found[:-1]]
        device = "fleets.0.devices.1"
        assert places == [
            "systems.0",
            "systems.1",
            "workloads.0",
            f"{device}.hardware",
            f"{device}.link",
            "server.hardware",
            "student.network",
            "teacher.network",
        ]
        assert all("id you mean '" in fault for fault in found[:-1])
        assert found[-1] == "compute.torch_device is 'gpu'; allowed: cpu, cuda, cuda:N"

    @pytest.mark.parametrize(
        ("system", "message"),
        [
            ({"name": "z", "streaming": "one_time"}, "and adaptation 'frozen' learns nothing; choose an adaptation"),
            ({"name": "z", "adaptation": "distill"}, "'local' feeds no learner; choose a streaming member"),
            ({"name": "z", "base": "one_tme"}, "Unknown system 'one_tme'. Did you mean 'one_time'?"),
            ({"name": "z", "streaming": {"rate": 1}}, "it has no 'name', such as {name: local}"),
            (
                {"name": "z", "adaptation": {"batch": 1}},
                "it has no 'name', such as {name: frozen}; only a mapping",
            ),
            ({"name": "one_time", "streaming": {"name": "one_time", "iterations": True}}, "is True, expected int"),
            ({"name": "one_time", "streaming": {"name": "one_time", "iterations": [1]}}, "is [1], expected int"),
            ({"name": "one_time", "streaming": {"name": "one_time", "rate_fps": -1}}, "must be above 0"),
        ],
    )
    def test_an_invalid_system_is_refused(self, system, message):
        (fault,) = faults(document(systems=[system]))
        assert re.match(r"systems\.0(: |\.(streaming|adaptation) is )", fault)
        assert message in fault

    @pytest.mark.parametrize(
        ("workload", "message"),
        [
            ({"params": {"pace": -1}}, "pace is -1, allowed are numbers from 0.01 to 100"),
            ({"params": {"pase": 1}}, "Did you mean 'pace'?"),
            ({"params": {"seed": 3, "fps": 1}}, "params holds fps, seed; write such settings next to params"),
            ({"duration_s": None}, "1e+07; only a file has a fixed length"),
            ({"name": "video:/nowhere/a.mp4"}, "There is no video file '/nowhere/a.mp4'"),
        ],
    )
    def test_a_workload_that_cannot_be_opened_is_refused(self, workload, message):
        (fault,) = faults(document(workloads=[{**DOCUMENT["workloads"][0], **workload}]))
        assert fault.startswith("workloads.0: ")
        assert message in fault

    def test_a_load_that_repeats_too_often_for_the_session(self, tmp_path):
        file = tmp_path / "load.csv"
        file.write_text("time_s,cpu\n0,.1\n0.000001,.2\n")
        device = {"load": {"file": str(file), "repeat": True}}
        (fault,) = faults(document(fleets=[{"name": "mine", "devices": [device]}]))
        assert fault.startswith("fleets.0.devices.0.load: ")
        assert "allowed are 1,000,000" in fault

    def test_hardware_and_links_may_be_described(self):
        device = {"hardware": {"name": "mine", "macs_per_s": -1}, "link": {"name": "wire", "up_kbps": "fast"}}
        first, second = faults(document(fleets=[{"devices": [device]}]))
        assert first.startswith("fleets.0.devices.0.hardware: Bad hardware 'mine': 'macs_per_s' is -1")
        assert second.startswith("fleets.0.devices.0.link: Bad link 'wire': 'up_kbps' is 'fast'")

    @pytest.mark.parametrize(
        "changes",
        [
            {"systems": ["no_custom", "no_custom"]},
            {"workloads": DOCUMENT["workloads"] * 2},
            {"fleets": [{}, {}]},
            {"seeds": [0, 1, 0]},
        ],
    )
    def test_no_cell_runs_twice(self, changes):
        (fault,) = faults(document(**changes))
        assert fault.startswith("these cells would run twice: no_custom/running/one/seed-0")

    def test_an_alias_separates_two_readings_of_one_stream(self):
        slow = {**DOCUMENT["workloads"][0], "fps": 1, "alias": "slow"}
        experiment = parse(document(workloads=[DOCUMENT["workloads"][0], slow]))
        assert {cell.workload for cell in cells_of(experiment)} == {"running", "slow"}


def test_oracle_teacher_requires_ground_truth(tmp_path):
    import cv2
    import numpy as np

    path = tmp_path / "a.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 5, (48, 32))
    for value in range(10):
        writer.write(np.full((32, 48, 3), 20 * value, np.uint8))
    writer.release()
    workload = {"name": f"video:{path}", "duration_s": None, "fps": 2, "height": 32, "width": 48}
    (fault,) = faults(document(workloads=[workload]))
    assert "has no ground truth, which teacher.kind=oracle requires" in fault
    assert "set teacher.kind=network" in fault
    experiment = parse(document(workloads=[workload], teacher={"kind": "network"}))
    assert cells_of(experiment)[0].duration_s == pytest.approx(2.0)


class TestFiles:
    def test_one_that_extends_another_holds_the_differences(self, tmp_path):
        path = tmp_path / "mine.yaml"
        path.write_text("{name: mine, extends: quick, systems: [no_custom], student: {pretrain_seed: 3}}")
        mine, quick = load(str(path)), load("quick")
        assert (mine.name, mine.workloads, mine.summary) == ("mine", quick.workloads, quick.summary)
        assert len(mine.systems) == 1
        assert mine.student == quick.student.model_copy(update={"pretrain_seed": 3})
        assert load(str(path), ["student.pretrain_seed=4"]).student.pretrain_seed == 4

    @pytest.mark.parametrize("base", ["quik", "7", "{}"])
    def test_an_unknown_base_is_refused(self, tmp_path, base):
        path = tmp_path / "mine.yaml"
        path.write_text(f"{{name: mine, extends: {base}}}")
        with pytest.raises(RequestError, match="Unknown experiment"):
            load(str(path))

    def test_an_application_has_its_own_network_and_the_rest_from_the_student(self):
        apps = [{"name": "a", "pretrain_seed": 5}, {"name": "b", "network": "half"}]
        experiment = parse(document(workloads=[{**DOCUMENT["workloads"][0], "apps": apps}]))
        a, b = (experiment.student_of(app, 0) for app in experiment.workloads[0].apps)
        assert (a.pretrain_seed, a.network) == (5, experiment.student.network)
        assert (b.pretrain_seed, b.network) == (0, "half")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"name: [", "is not readable as YAML"),
            (b"\xff\xfe\x00name", "is not readable as YAML"),
            (b"- 1\n", "holds [1], expected a mapping that begins with 'name:'"),
            (b"", "holds nothing, expected a mapping"),
            (b"name: a\nsystems: [no_custom]\n", "1 fault\n  - workloads is missing"),
            (b"name: a\nsystems: [no_custom]\nname: b\n", "mine.yaml: line 3: 'name' stands in line 1 already"),
        ],
    )
    def test_a_file_without_an_experiment_is_refused(self, tmp_path, content, message):
        path = tmp_path / "mine.yaml"
        path.write_bytes(content)
        with pytest.raises(RequestError) as caught:
            load(str(path))
        assert message in str(caught.value)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            ("quik", "Unknown experiment 'quik'. Did you mean 'quick'?"),
            ("nowhere/mine.yaml", "There is no experiment file 'nowhere/mine.yaml'. Built-in experiments: "),
            ("/tmp", "must end in .yaml or .yml; a run goes on with --resume"),
        ],
    )
    def test_a_missing_request_is_refused(self, request_, message):
        with pytest.raises(RequestError) as caught:
            load(request_)
        assert message in str(caught.value)
