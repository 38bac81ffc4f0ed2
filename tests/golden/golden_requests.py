"""Requests of every kind, valid and faulty, for the golden net: the parsed result or the error."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import yaml

FOLDER = "requests"  # in a recording
STORED = f"{FOLDER}/stored"  # a finished run
PLAN = ("--dry-run", "--json")
Place = tuple[str | int, ...]
Change = Callable[[Any, Any], None]

# An experiment with a key of every kind; its faults are made from it.
WHOLE: Mapping[str, Any] = {
    "name": "whole",
    "summary": "every key",
    "systems": [
        "no_custom",
        {"name": "slow", "base": "ams", "streaming": {"name": "ams", "interval_s": 5}, "zero_delay_link": True},
        {"name": "wide-{batch}", "base": "one_time", "vary": {"adaptation.batch": [2, 4]}},
        {"name": "sizes", "scaling": {"name": "nested", "keep_ratios": [1.0, 0.5]}, "scheduling": "nestdnn"},
    ],
    "workloads": [
        {"name": "streets/running", "duration_s": 4, "fps": 2.0, "height": 32, "width": 48, "params": {"pace": 2.0}},
        {
            "name": "streets/dance",
            "alias": "two-{fps}",
            "duration_s": 4,
            "vary": {"fps": {"slow": 1.0, "fast": 2.0}},
            "apps": [{"name": "a", "accuracy_goal": 0.5}, {"name": "b", "workload": "streets/driving_la"}],
            "churn": {"min_apps": 1, "max_apps": 2, "tick_s": 1.0},
        },
    ],
    "fleets": [
        {"name": "one", "gpus": 1, "devices": [{"hardware": "laptop", "link": "wifi", "load": "idle", "count": 2}]},
        {"set": "slow-phone", "devices.0.count": 3},
    ],
    "sets": {"fleets": {"mine": [{"name": "mine"}]}},
    "sizes": {"small": {"seeds": [1], "student": {"pretrain_steps": 5}}, "full": {}},
    "size": "small",
    "seeds": [0],
    "window_s": 2.0,
    "snapshots": 1,
    "bounds": True,
    "clock": "virtual",
    "student": {"network": "tiny", "pretrain_steps": 3, "pretrain_learning_rate": 0.01, "per_seed": False},
    "teacher": {"kind": "oracle", "border_noise": 0.1},
    "server": {"hardware": "server-v100", "gpus": 1, "label_s": 0.1, "step_s": None},
    "compute": {"torch_device": "cpu", "precision": "float32", "gpus_per_actor": 0.0},
    "limits": {"training_batch_s": 10.0, "member_s": 100.0},
}
TINY: Mapping[str, Any] = {
    "name": "stored",
    "systems": ["no_custom", {"name": "slow", "base": "ams", "streaming": {"name": "ams", "interval_s": 5}}],
    "workloads": [{"name": "streets/running", "duration_s": 2, "fps": 1, "height": 32, "width": 48}],
    "student": {"pretrain_steps": 0},
    "bounds": False,
    "snapshots": 0,
}
INFO: Mapping[str, Any] = {
    "command": ["driftlab", "run"],
    "packages": {"torch": "2.0"},
    "git_commit": None,
    "cores": 2,
}
BEST: Mapping[str, Any] = {  # as a search writes it
    "space": "ams",
    "system": "ams",
    "trial": 3,
    "settings": {"systems.0.streaming.interval_s": 7, "systems.0.adaptation.fraction": 0.2},
    "seeds": [100, 101],
    "budget": {"trials": 20, "streamed_s": 100.0, "searcher": "tpe"},
    "score": 0.5,
}
SOUND = (  # words after `run`
    ("quick", "--set", "window_s=5", "--set", "seeds=[0, 1]"),
    ("quick", "--set", "student.network=half"),
    ("quick", "--set", "student={network: yolov3_tiny}"),
    ("quick", "--set", "systems.0=oracle", "--set", "systems.1.streaming.sample_s=3"),
    ("quick", "--set", "systems.1.adaptation={name: distill, batch: 2}"),
    ("quick", "--set", "fleets.0.devices.0.link=wifi", "--set", "fleets.0.devices.0.count=2"),
    ("quick", "--set", "workloads.0.params.pace=2", "--set", "workloads.0.apps=[{name: a}, {name: b}]"),
    ("quick", "--system", "ams,tent,no_custom", "--seed", "3..5"),
    ("quick", "--workload", "streets/dance,streets/running", "--set", "workloads.1.fps=1"),
    ("ams-table1", "--system", "ams", "--set", "size=full", "--set", "bounds=true"),
    ("ams-table1", "--system", "ams,oracle", "--tuned", f"{FOLDER}/best.yaml"),
    ("ams-table1", "--system", "ams", "--tuned", f"{FOLDER}/best.yaml", "--set", "systems.0.streaming.interval_s=9"),
    ("many-apps", "--set", "workloads.0.apps.0.priority=2", "--portable"),
    ("many-apps", "--clock", "wall"),
    ("tta-streams", "--system", "tent", "--set", "systems.0.adaptation.stream_batch=4"),
    ("fleets", "--set", "size=twenty", "--set", "server.label_s=null"),
    (f"{FOLDER}/whole.yaml",),
    (f"{FOLDER}/whole.yaml", "--set", "size=full", "--set", "systems.2.adaptation.batch=3"),
    (f"{FOLDER}/whole.yaml", "--system", "wide-4,slow", "--workload", "two-slow", "--seed", "7"),
    (f"{FOLDER}/like.yaml",),
    (f"{FOLDER}/like.yaml", "--set", "student.pretrain_seed=4"),
    (f"{STORED}/spec.yaml",),
    (f"{STORED}/spec.yaml", "--set", "bounds=true", "--set", "systems.1.streaming.interval_s=6"),
)
LIKE: Mapping[str, Any] = {
    "name": "mine",
    "extends": "quick",
    "systems": ["no_custom"],
    "student": {"pretrain_seed": 3},
}
REFUSED = (
    ("quick", "--set", "window=5"),
    ("quick", "--set", "window_s"),
    ("quick", "--set", "window_s=-1e-3"),
    ("quick", "--set", "window_s=1e999"),
    ("quick", "--set", "window_s.x=1"),
    ("quick", "--set", "a.b.c=5"),
    ("quick", "--set", "seeds=[]"),
    ("quick", "--set", "seeds.7=1"),
    ("quick", "--set", "seeds.0.x=1"),
    ("quick", "--set", "seeds.0=1e3"),
    ("quick", "--set", "size=large"),
    ("quick", "--set", "systems.9=ams"),
    ("quick", "--set", "systems.0.name.x=1"),
    ("quick", "--set", "systems.1.streaming.sample=5"),
    ("quick", "--set", "systems.1.streaming=amms"),
    ("quick", "--set", "systems=no_custom"),
    ("quick", "--set", "systems.0.base=amms"),
    ("quick", "--set", "systems.0={name: x, vary: {adaptation.batch: [1]}}"),
    ("quick", "--set", "systems.0={name: 'x-{batch}', base: ams, vary: {adaptation.batch: [1, 2]}}"),
    ("quick", "--set", "workloads.0.fpss=5"),
    ("quick", "--set", "workloads.0.apps.0.name=a"),
    ("quick", "--set", "workloads.0.params.pase=5"),
    ("quick", "--set", "workloads.0.set=paper-streets"),
    ("quick", "--set", "fleets.1.name=b"),
    ("quick", "--set", "fleets.0.devices.0.link.up_kbps=5"),
    ("quick", "--set", "student.weights.x=1"),
    ("quick", "--set", "student.network=tinny"),
    ("quick", "--set", "student.pretrain_set=set:digits", "--set", "window_s=-1"),
    ("quick", "--set", "tune={}"),
    ("quick", "--set", "extends=ams-table1"),
    ("quick", "--set", "bound_rows=[{name: oracle, streaming: 5}]"),
    ("quick", "--set", "tuned=[{space: x}]"),
    ("quick", "--system", "no_costum"),
    ("quick", "--system", "no_custom,no_custom"),
    ("quick", "--workload", "streets/danse"),
    ("quick", "--seed", "0", "--set", "seeds.1=5"),
    ("quick", "--system", "oracle,amms", "--workload", "streets/danse"),
    ("quick", "--tuned", f"{FOLDER}/best.yaml", "--system", "oracle"),
    ("quick", "--tuned", f"{FOLDER}/best.yaml", "--system", "ams", "--seed", "100"),
    ("quick", "--tuned", f"{FOLDER}/whole.yaml"),
    ("quick", "--tuned", f"{FOLDER}/nowhere.yaml"),
    ("quik",),
    (f"{FOLDER}/nowhere.yaml",),
)
ODD: Mapping[str, Mapping[str, Any]] = {  # faults that no rule makes: keys laid over WHOLE
    "sets-list": {"sets": ["a"]},
    "sets-kind": {"sets": {"cars": {}}},
    "sets-item": {"sets": {"fleets": {"mine": 3}}, "fleets": [{"set": "mine"}]},
    "sets-item-shape": {"sets": {"fleets": {"mine": [{"nmae": "x"}]}}, "fleets": [{"set": "mine"}]},
    "set-unknown": {"fleets": [{"set": "slow-fone"}, {"set": "mine", "devices.3.count": 1}]},
    "set-in-shape": {"fleets": [{"set": "slow-fone"}], "window_s": -1, "seeds": "x"},
    "vary-empty": {"systems": [{"name": "a-{batch}", "base": "ams", "vary": {}}]},
    "vary-no-values": {"systems": [{"name": "a-{batch}", "base": "ams", "vary": {"adaptation.batch": []}}]},
    "vary-list": {"systems": [{"name": "a-{batch}", "base": "ams", "vary": [1]}]},
    "vary-slot": {"systems": [{"name": "a-{batch}", "base": "ams", "vary": {"adaption.batch": [1]}}]},
    "vary-parameter": {"systems": [{"name": "a-{bach}", "base": "ams", "vary": {"adaptation.bach": [1]}}]},
    "vary-name": {"systems": [{"name": "a", "base": "ams", "vary": {"adaptation.batch": [1, 2]}}]},
    "vary-nothing": {"systems": [{"name": "a-{b}", "base": "ams"}]},
    "vary-called": {"systems": [{"name": "a-{batch}", "base": "ams", "vary": {"adaptation.batch": ["x y", 2]}}]},
    "vary-value": {"systems": [{"name": "a-{batch}", "base": "ams", "vary": {"adaptation.batch": [-1, 2, 0]}}]},
    "vary-base": {"systems": [{"name": "a-{batch}", "base": "amms", "vary": {"adaptation.batch": [1, 2]}}]},
    "vary-many": {
        "systems": [
            {
                "name": "a-{batch}-{interval_s}",
                "base": "ams",
                "vary": {"adaptation.batch": list(range(1, 501)), "streaming.interval_s": list(range(1, 501))},
            }
        ]
    },
    "vary-and-shape": {"systems": [{"name": "a-{b}", "base": "ams"}, 3], "snapshots": -1},
    "vary-and-size": {"systems": [{"name": "a-{b}", "base": "ams"}, "ams"], "sizes": {}, "seeds": list(range(9999))},
    "vary-fleet": {"fleets": [{"name": "all", "vary": {"gpus": [1, 2]}}, {"name": "{x}", "vary": {"x": [1]}}]},
    "vary-fleet-empty": {"fleets": [{"name": "{gpus}", "vary": {"gpus": []}}, {"name": "{g}", "vary": 3}]},
    "vary-workload": {"workloads": [{"name": "streets/running", "vary": {"fps": [1.0]}}]},
    "vary-member": {"systems": [{"name": "{adaptation}", "base": "ams", "vary": {"adaptation": ["distil", "frozen"]}}]},
    "slot-nameless": {"systems": [{"name": "a", "streaming": {"interval_s": 5}}, {"name": "b", "scaling": {}}]},
    "slot-defaults": {"systems": [{"name": "a", "streaming": {"name": "ams", "defaults": [1]}}]},
    "slot-default": {"systems": [{"name": "a", "streaming": {"name": "ams", "defaults": {"gone": 1}}}]},
    "slot-unknown": {"systems": [{"name": "a", "streaming": "amms", "adaptation": {"name": "tnt", "x": 1}}, "quik"]},
    "slot-parameter": {"systems": [{"name": "a", "base": "ams", "adaptation": {"name": "distill", "batch": "x"}}]},
    "slot-together": {"systems": [{"name": "a", "streaming": "ams", "adaptation": "tent"}]},
    "slot-and-shape": {"systems": [{"name": "a", "streaming": "amms"}], "window_s": "x", "workloads": []},
    "systems-braces": {"systems": ["wide-{batch}"]},
    "systems-none": {"systems": None},
    "sizes-number": {"sizes": 3},
    "sizes-in-number": {"sizes": {"small": 3}},
    "size-unknown": {"size": "smal"},
    "size-list": {"size": ["a"]},
    "size-spoils": {"sizes": {"small": {"seeds": [], "window_s": 0}}},
    "size-merges": {"sizes": {"small": {"student": 3, "systems": {"a": 1}}}},
    "like-unknown": {"extends": "quik"},
    "like-itself": {"extends": "odd-like-itself"},
    "like-list": {"extends": ["quick"]},
    "like-over": {"extends": "quick", "student": 3},
    "churn-ticks": {"workloads": [{"name": "streets/running", "churn": {"tick_s": 0}}]},
    "churn-tick-type": {"workloads": [{"name": "streets/running", "churn": {"tick_s": "x", "lest": 1}}]},
    "churn-duration": {"workloads": [{"name": "streets/running", "churn": {"duration_s": 4}}]},
    "cells-many": {"sizes": {}, "seeds": list(range(10_000)), "fleets": [{"devices": [{"count": 5000}]}]},
    "frames-many": {"workloads": [{"name": "streets/running", "duration_s": 1e9, "height": 4096, "width": 4096}]},
    "twins": {"systems": ["ams", "ams"], "fleets": [{}, {}]},
    "window-short": {"window_s": 0.1},
    "apps-twice": {"workloads": [{"name": "streets/running", "apps": [{"name": "a"}, {"name": "a"}]}]},
    "app-network": {"workloads": [{"name": "streets/running", "apps": [{"name": "a", "network": "tinny"}]}]},
    "app-task": {"workloads": [{"name": "signs/depot", "height": 24, "width": 24}]},
    "app-variants": {"workloads": [{"name": "streets/running", "apps": [{"name": "a", "variants": {"fil": "x"}}]}]},
    "params-seed": {"workloads": [{"name": "streets/running", "params": {"seed": 3, "fps": 1}}]},
    "device-link": {"fleets": [{"devices": [{"link": {"name": "w", "up_kbps": "fast"}, "hardware": "laptp"}]}]},
    "student-elsewhere": {"student": {"pretrain_set": "digits"}, "teacher": {"network": "teachr"}},
    "student-file": {"student": {"weights": "nowhere.safetensors"}},
    "compute-portable": {"compute": {"torch_device": "cuda:x", "portable": True}},
    "tuned-shape": {"tuned": [{"space": "x", "system": "ams", "trial": -1, "settings": 3}]},
    "tuned-seeds": {"sizes": {}, "seeds": [100], "tuned": [{key: BEST[key] for key in list(BEST)[:-1]}]},
    "bound-rows": {"bound_rows": [{"name": "oracle", "streaming": "foresigt"}, {"nam": "x"}]},
    "keys-number": {1: 2, "unheard": 3, "sedes": 4},
    "no-list": {"workloads": "streets/running", "fleets": {"name": "a"}, "seeds": 3},
}
SPOILT_FILES: Mapping[str, str] = {
    "file-open": "name: [",
    "file-list": "- 1\n",
    "file-empty": "",
    "file-twice": "name: a\nsystems: [no_custom]\nname: b\n",
    "file-short": "name: a\nsystems: [no_custom]\n",
}


class Request(NamedTuple):
    """A command, and the name of the file that its outcome is kept in."""

    words: Sequence[str]
    name: str


def write_requests(out: Path, experiments: Mapping[str, Sequence[str]]) -> list[Request]:
    """Write the files of all requests into a recording with a stored run, and list them.

    `experiments` names the sizes that the file of each experiment offers.
    """
    folder = out / FOLDER
    for name, document in (("whole", WHOLE), ("like", LIKE), ("best", BEST)):
        _write(folder / f"{name}.yaml", document)
    listed = [
        Request(("run", name, *(("--set", f"size={size}") if size else ()), *PLAN), f"spec-{name}-{size or 'only'}")
        for name, sizes in experiments.items()
        for size in sizes or [""]
    ]
    for kind, asked in (("sound", SOUND), ("refused", REFUSED)):
        listed += [Request(("run", *words, *PLAN), f"{kind}-{place:02}") for place, words in enumerate(asked)]
    for name, document in faulty():
        _write(folder / f"{name}.yaml", document)
        listed.append(Request(("run", f"{FOLDER}/{name}.yaml", *PLAN), name))
    for name, text in SPOILT_FILES.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        listed.append(Request(("run", f"{FOLDER}/{name}.yaml", *PLAN), name))
    spec = yaml.safe_load((out / STORED / "spec.yaml").read_text(encoding="utf-8"))
    for name, document, info in stored(spec):
        _write(folder / name / "spec.yaml", document)
        (folder / name / "run.json").write_text(json.dumps(info), encoding="utf-8")
        listed.append(Request(("diff", STORED, f"{FOLDER}/{name}"), f"{name}-read"))
        if info is INFO:
            listed.append(Request(("run", f"{FOLDER}/{name}/spec.yaml", *PLAN), f"{name}-again"))
    return listed


def _write(file: Path, document: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def faulty() -> Iterator[tuple[str, Any]]:
    """Make faulty experiments: one fault at every place of a whole one, two at once, and odd ones."""
    single = list(faults_in(WHOLE))
    for name, change in single:
        yield f"fault-{name}", _changed(WHOLE, change)
    for (one, first), (other, second) in islice(zip(single[3::7], single[40::7], strict=False), 40):
        try:
            yield f"two-{one}-{other}", _changed(_changed(WHOLE, first), second)
        except (KeyError, IndexError, TypeError):  # the first has removed the place of the second
            continue
    for name, keys in ODD.items():
        yield f"odd-{name}", {**copy.deepcopy(dict(WHOLE)), **keys}


def stored(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Damage the stored files of a run: its spec, and its record of the host."""
    for name, change in faults_in(spec, deepest=4):
        if "defaults" not in name:
            yield f"stored-{name}", _changed(spec, change), INFO
    for key, value in (("bare", [5]), ("no-slot", [{"name": "ams"}]), ("name-only", ["ams"]), ("none", [])):
        yield f"stored-systems-{key}", {**spec, "systems": value}, INFO
    yield "stored-list", [spec], INFO
    yield "stored-unheard", {**spec, "unheard": 1, "student": {**spec["student"], "newer": 2}}, INFO
    for name, change in faults_in(INFO):
        yield f"info-{name}", spec, _changed(INFO, change)
    for name, info in (("list", [1]), ("deep", {**INFO, "a": {"b": {"c": 1}}}), ("names", {"packages": {"a": 5}})):
        yield f"info-{name}", spec, info


def faults_in(document: Any, deepest: int = 9) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """List changes that make one place of a document faulty, each with a name; rules alternate."""
    for number, place in enumerate(places(document)):
        if len(place) > deepest:
            continue
        value = _at(document, place)
        for rule in _rules(value, number):
            yield f"{'.'.join(map(str, place))}-{rule}", _change(place, rule, value)


def places(document: Any, at: Place = ()) -> Iterator[Place]:
    """List every place in a document."""
    parts: Any = ()
    if isinstance(document, Mapping):
        parts = document.items()
    elif isinstance(document, list):
        parts = enumerate(document)
    for key, part in parts:
        yield (*at, key)
        yield from places(part, (*at, key))


def _rules(value: Any, number: int) -> list[str]:
    """Choose rules for a value: its type is always wrong once, and one more thing."""
    usual = ("missing", "misspelt", "unheard", "null")
    if isinstance(value, bool) or value is None:
        return ["type", usual[number % 4]]
    if isinstance(value, int | float):
        return ["type", ("below", "above", "infinite", "text")[number % 4]]
    if isinstance(value, str):
        return ["type", ("name", "missing", "misspelt", "upper")[number % 4]]
    return ["type", "empty" if number % 2 else usual[number % 4]]


def _change(place: Place, rule: str, value: Any) -> Callable[[Any], None]:
    """Describe a change of the value at a place."""
    *where, last = place
    others: Mapping[str, Any] = {
        "type": {str: 7, bool: "yes", int: [1], float: "fast", list: {"a": 1}, dict: [1]}.get(type(value), {"a": 1}),
        "null": None,
        "below": -1,
        "above": 10**13,
        "infinite": float("inf"),
        "text": f"{value}",
        "name": f"{value}x",
        "upper": f"{value} X",
        "empty": type(value)() if isinstance(value, list | dict) else None,
    }

    def change(document: Any) -> None:
        part = _at(document, where)
        if rule == "missing":
            del part[last]
        elif rule == "misspelt" and isinstance(part, dict):
            part[f"{last}s"] = part.pop(last)
        elif rule in ("unheard", "misspelt") and isinstance(part[last], dict):
            part[last]["unheard"] = 1
        else:
            part[last] = others.get(rule, [[]])

    return change


def _at(document: Any, place: Sequence[str | int]) -> Any:
    for key in place:
        document = document[key]
    return document


def _changed(document: Any, change: Callable[[Any], None]) -> Any:
    found = copy.deepcopy(document if isinstance(document, list) else dict(document))
    change(found)
    return found
