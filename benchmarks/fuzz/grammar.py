"""Draw requests from a grammar: valid, unusual and invalid ones.

The grammar covers all commands, the keys of experiments and the files of runs.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fuzz import foreign, values
from driftlab.cli.kinds import KINDS
from driftlab.platform.core.registry import FAMILIES, Member, member_class, parameters
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.lab import read
from driftlab.tune_spaces import catalogue as spaces
from driftlab.tune_spaces import ranges

INLINE = ("--backend", "inline")
TINY: dict[str, Any] = {
    "name": "tiny",
    "systems": ["no_custom"],
    "workloads": [{"name": "streets/running", "duration_s": 3, "fps": 1, "height": 32, "width": 48}],
    "bounds": False,
    "snapshots": 1,
    "student": {"network": "half", "pretrain_steps": 0},
}
NETWORKS = (
    "app,variant,accuracy,latency_ms,memory_mb\nfront,a,.5,10,1\nfront,b,.7,30,2.5\nside,a,.4,9,1\nside,b,.6,22,2\n"
)


PLAN = ("--dry-run",)


@dataclass(frozen=True)
class Request:
    """One call of the command; with `runs` it executes cells if it is valid."""

    words: tuple[str, ...]
    runs: bool = False
    limits: tuple[str, ...] = ()  # words that keep a valid one from running for hours


@dataclass(frozen=True)
class World:
    """Resources of the grammar: a folder for new files, a finished run and a video."""

    folder: Path
    finished: Path
    video: Path
    port: int = 9  # of a server that is not driftlab's


def request(dice: random.Random, world: World) -> Request:
    """Draw a request; the files that it names are written into the world's folder."""
    makers: dict[Callable[[random.Random, World], Request], int] = {
        _document: 8,
        _text: 4,
        _overrides: 6,
        _member: 6,
        _measured: 4,
        _video: 3,
        _stored: 10,
        _tune: 5,
        _field: 4,
        _words: 6,
        _options: 3,
    }
    (make,) = dice.choices(list(makers), list(makers.values()))
    return make(dice, world)


@cache
def _whole(name: str) -> Any:
    """Return an experiment with every default."""
    return (read.parse(TINY) if name == "tiny" else read.load(name)).model_dump(mode="json")


def _base(dice: random.Random) -> tuple[str, Any]:
    name = dice.choice(("tiny", "tiny", "quick", dice.choice(read.names())))
    return name, dice.choice((_whole(name), TINY)) if name == "tiny" else _whole(name)


def _run_document(dice: random.Random, world: World, document: Any) -> Request:
    """Write a document to a file; return the request to run it."""
    text = yaml.dump(document, sort_keys=False, allow_unicode=dice.random() < 0.5)
    return _run_text(world, text)


def _run_text(world: World, text: str) -> Request:
    file = world.folder / "mine.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    return Request(("run", str(file)), runs=True, limits=PLAN)


def _document(dice: random.Random, world: World) -> Request:
    return _run_document(dice, world, values.spoil(dice, _base(dice)[1], dice.choice((1, 1, 1, 2, 3))))


def _text(dice: random.Random, world: World) -> Request:
    name, document = _base(dice)
    plain = yaml.safe_dump(document) if name == "tiny" else read.find(name).read_text(encoding="utf-8")
    return _run_text(world, values.spoil_text(dice, plain))


def _overrides(dice: random.Random, world: World) -> Request:
    name, _ = _base(dice)
    places = list(values.paths(_whole(name)))
    words: list[str] = []
    for _ in range(dice.choice((1, 1, 2, 4))):
        key = ".".join(map(str, dice.choice(places)))
        if dice.random() < 0.2:
            key = values.spoil_text(dice, key)
        given = values.value(dice)
        plain = (
            given if isinstance(given, str) else yaml.safe_dump(given, default_flow_style=True).removesuffix("...\n")
        )
        words += ["--set", f"{key}={plain}".replace("\0", "\\0")]
    if name == "tiny":
        return Request((*_run_text(world, yaml.safe_dump(TINY)).words, *words), runs=True, limits=PLAN)
    return Request(("run", name, *words), limits=PLAN)


def _member(dice: random.Random, world: World) -> Request:
    """Run a system of random members, with parameters of any value."""
    slots: dict[str, Any] = {}
    for family in dice.sample(sorted(FAMILIES), dice.randint(1, 3)):
        name = dice.choice(sorted(FAMILIES[family]))
        known = parameters(member_class(family, name))
        now = Member(family, name).defaults() if all(_has_default(one) for one in known.values()) else {}
        chosen = dice.sample(sorted(known), min(len(known), dice.randint(0, 2)))
        slots[family] = {
            "name": name,
            **{
                key: values.near(dice, now[key]) if key in now and dice.random() < 0.7 else values.value(dice)
                for key in chosen
            },
        }
    system = {"name": "mine", "base": dice.choice(sorted(SYSTEMS)), **slots}
    workload = {**TINY["workloads"][0], "run_networks": dice.random() < 0.8}
    if dice.random() < 0.5:
        workload |= {"apps": [{"name": "front"}, {"name": "side"}], "churn": {"min_apps": 0, "max_apps": 2}}
    return _run_document(dice, world, {**TINY, "systems": [system], "workloads": [workload], "window_s": 1.0})


def _has_default(known: tuple[Any, Any]) -> bool:
    return not repr(known[1]).startswith("<dataclasses._MISSING")


def _measured(dice: random.Random, world: World) -> Request:
    """Run on a file of measured networks, which may be damaged."""
    file = world.folder / dice.choice(("m.csv", "m.csv", "m.csv", "m.parquet", "m.txt"))
    how = dice.random()
    if how < 0.4:
        rows = [line.split(",") for line in NETWORKS.splitlines()]
        for _ in range(dice.randint(0, 3)):
            row = dice.choice(rows)
            row[dice.randrange(len(row))] = str(values.value(dice))[:6000]
        file.write_text("\n".join(map(",".join, rows)), encoding="utf-8", errors="replace")
    elif how < 0.6:
        file.write_bytes(values.spoil_bytes(dice, NETWORKS.encode()))
    elif how < 0.8:
        _put(dice, file)
    else:
        file.write_text(NETWORKS, encoding="utf-8")
    part: Any = {"file": str(file)}
    if dice.random() < 0.4:
        part = values.spoil(dice, {**part, "rename": {"accuracy": "accuracy"}, "only": {"variant": "a"}}, 1)
    apps = [{"name": name, "variants": part} for name in ("front", "side")]
    workload = {**TINY["workloads"][0], "run_networks": False, "apps": apps}
    systems = [dice.choice(("nestdnn", "mcdnn", "status_quo", {"name": "e", "base": "nestdnn", "scheduling": "exact"}))]
    document = {**TINY, "systems": systems, "workloads": [workload]}
    return _run_document(dice, world, values.spoil(dice, document, dice.choice((0, 0, 1))))


def _video(dice: random.Random, world: World) -> Request:
    """Run on a video with label maps, of which one file is damaged."""
    video = Path(shutil.copy(world.video, world.folder / "video.mp4"))
    labels = Path(shutil.copytree(f"{world.video}.labels", world.folder / "video.mp4.labels"))
    victim = dice.choice((video, labels / "classes.txt", *sorted(labels.glob("gt_*.png"))[:3]))
    if dice.random() < 0.7:
        victim.write_bytes(values.spoil_bytes(dice, victim.read_bytes()))
    else:
        _put(dice, victim)
    if dice.random() < 0.3:  # label maps are also a folder of images
        parts = dice.choice((world.folder, labels))
        for part in dice.choice((("train", "test"), ("train",), ())):
            (world.folder / part).symlink_to(dice.choice((parts, world.folder)))
        workload = {**TINY["workloads"][0], "name": f"set:images:{world.folder}"}
        return _run_document(
            dice,
            world,
            {**TINY, "workloads": [workload], "student": {"network": "tiny_classifier", "pretrain_steps": 0}},
        )
    if dice.random() < 0.2:
        return Request(("show", f"workloads/video:{video}", *dice.choice(((), ("--json",), ("--image", "x.png")))))
    workload = {**TINY["workloads"][0], "name": f"video:{video}", "duration_s": dice.choice((None, 2.0, 1e-9))}
    return _run_document(dice, world, {**TINY, "workloads": [workload]})


def _put(dice: random.Random, file: Path) -> None:
    """Replace a file by a pipe, a folder, a link, other bytes, or nothing."""
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=True)
    dice.choice(
        (
            lambda: os.mkfifo(file),
            lambda: file.mkdir(),
            lambda: file.symlink_to(file.name),
            lambda: file.symlink_to("/dev/zero"),
            lambda: file.symlink_to("/nowhere"),
            lambda: file.symlink_to("."),
            lambda: file.write_bytes(dice.randbytes(dice.choice((0, 1, 4, 4096)))),
            lambda: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 2**36),
            lambda: None,
        )
    )()


def _stored(dice: random.Random, world: World) -> Request:
    """Damage the files of a finished run, then read or resume it."""
    run = Path(shutil.copytree(world.finished, world.folder / "run"))
    for _ in range(dice.choice((1, 1, 2))):
        _spoil_stored(dice, run)
    other = dice.choice((world.finished, run, world.folder))
    return dice.choice(
        (
            Request(("report", str(run))),
            Request(("report", str(run), "--json")),
            Request(("claims", str(run))),
            Request(("claims", str(run), "--json")),
            Request(("diff", str(run), str(other))),
            Request(("diff", str(other), str(run), "--json")),
            _export(dice, world, run),
            Request(("run", "--resume", str(run), *INLINE), runs=True),
            Request(("run", "--resume", str(run), *INLINE, "--json"), runs=True),
            Request(("run", str(run / "spec.yaml")), runs=True, limits=PLAN),
        )
    )


def _export(dice: random.Random, world: World, run: Path) -> Request:
    """Export a run for other tools, only into the folders of the world."""
    out = dice.choice(((), ("--out", str(dice.choice((world.folder / "out", run, run / "spec.yaml", world.finished))))))
    to = dice.choice(("csv", "csv", "mlflow", "tensorboard", "csv,mlflow", str(values.value(dice))[:6000]))
    return Request(("export", str(run), "--to", to.replace("\0", ""), *out, *dice.choice(((), ("--json",)))))


def _tune(dice: random.Random, world: World) -> Request:
    """Plan a search of a space: as shipped, damaged, or with other values."""
    name = dice.choice((dice.choice(ranges.files()), dice.choice(ranges.names())))
    document = spaces.raw(name)
    words: list[str] = []
    if dice.random() < 0.6:
        file = world.folder / "space.yaml"
        file.write_text(yaml.dump(values.spoil(dice, document, dice.choice((0, 1, 1, 2))), sort_keys=False))
        name = str(file)
    for _ in range(dice.choice((0, 1, 2))):
        key = ".".join(map(str, dice.choice(list(values.paths(document)))))
        words += ["--set", f"{key}={values.value(dice)}".replace("\0", "\\0")[:6000]]
    if dice.random() < 0.3:
        option = dice.choice(("--trials", "--searcher", "--seed", "--log", "--workers"))
        words += [option, str(dice.choice((1, 12, "tpe", "grid", "csv", values.value(dice)))).replace("\0", "")[:6000]]
    return Request(("tune", name, *words, *dice.choice(((), ("--json",)))), limits=PLAN)


def _spoil_stored(dice: random.Random, run: Path) -> None:
    parts = [part for part in sorted(run.rglob("*")) if not part.is_symlink() or part.exists()]
    named = [part for part in parts if part.name in ("spec.yaml", "run.json")]
    part = dice.choice(dice.choice((named or parts, parts)))
    if part.is_dir() or dice.random() < 0.2:
        _put(dice, part)
    elif not part.is_file() or part.stat().st_size > 2**20:
        return
    elif part.name in ("spec.yaml", "run.json") and dice.random() < 0.7:
        with contextlib.suppress(yaml.YAMLError, UnicodeError):  # the file may be damaged already
            changed = values.spoil(dice, yaml.safe_load(part.read_text(encoding="utf-8")), dice.randint(1, 3))
            text = yaml.dump(changed) if part.suffix == ".yaml" else _json(changed)
            part.write_bytes(text.encode(errors="replace"))
    else:
        part.write_bytes(values.spoil_bytes(dice, part.read_bytes()))


def _json(document: Any) -> str:
    import json

    try:
        return json.dumps(document, default=str)
    except (TypeError, ValueError):  # keys or numbers that JSON lacks
        return str(document)[:10_000]


def _words(dice: random.Random, world: World) -> Request:
    """Show or list items, under names that may not exist."""
    kind = dice.choice((*KINDS, *KINDS, "x", ""))
    names = [*KINDS[kind].summaries()] if kind in KINDS else ["x"]
    name = dice.choice(
        (dice.choice(names), values.spoil_text(dice, dice.choice(names)), str(values.value(dice))[:6000])
    )
    plain = f"{kind}/{name}".replace("\0", "")
    return dice.choice(
        (
            Request(("show", plain)),
            Request(("show", plain, "--json")),
            Request(("show", plain, "--image", str(world.folder / dice.choice(("x.png", "no/x.png", "x.txt", "."))))),
            Request(
                (
                    "show",
                    plain,
                    "--seed",
                    str(dice.choice(values.NUMBERS))[:300],
                    "--image",
                    str(world.folder / "y.png"),
                )
            ),
            Request(("list", dice.choice((kind, plain)) or "x")),
            Request(("list", "--json", *([kind] if kind else []))),
        )
    )


def _field(dice: random.Random, world: World) -> Request:
    """Start a device with a foreign server, or a server with an invalid request."""

    def unusual() -> str:
        return str(values.value(dice)).replace("\0", "")[:6000]

    if dice.random() < 0.2:
        return Request(
            ("serve", "--token", "short", dice.choice(("--port", "--max-sessions", "--state-dir")), unusual())
        )
    server = f"http://127.0.0.1:{world.port}"
    url = dice.choice((*[server] * 4, *ADDRESSES, unusual()))
    token = dice.choice((*map(foreign.token_of, range(len(foreign.REPLIES))), unusual()))
    if dice.random() < 0.4:
        wanted = {"workload": {"name": "streets/running"}, "student": {"network": "half"}}
        ticket = {"server": url, "id": "a", "token": token, "asked": wanted, "began": 1.0}
        file = world.folder / "field.json"
        file.write_text(_json(values.spoil(dice, ticket, dice.randint(0, 2))), "utf-8", "replace")
        if dice.random() < 0.3:
            _put(dice, file)
        return Request(("device", "--resume", str(world.folder), *dice.choice(((), ("--json",)))))
    options = ("--workload", "--seconds", "--system", "--network", "--fps", "--size", "--seed", "--pretrain-steps")
    words = [word for option in dice.sample(options, dice.randint(0, 2)) for word in (option, unusual())]
    return Request(("device", "--server", url, "--token", token, *words, "--out", str(world.folder / "out")))


ADDRESSES = (
    *("http://127.0.0.1:9", "http://127.0.0.1:99999", "http://127.0.0.1:x", "http://[::1", "http://", "127.0.0.1:9"),
    *("https://127.0.0.1:9", "http://127.0.0.1:9/a\nb", "http://:9", f"http://{'x' * 300}.invalid:9"),
)
OPTIONS = (
    *(
        "--system",
        "--workload",
        "--seed",
        "--set",
        "--backend",
        "--address",
        "--workers",
        "--devices-per-actor",
        "--clock",
        "--out",
    ),
    *("--resume", "--json", "--dashboard", "--help", "--version", "-v", "--", "-", "--image"),
)
COMMANDS = (
    *("run", "report", "claims", "diff", "show", "list", "doctor", "demo", "tune", "export", "device"),
    *("", "rnu", "--version", "-h"),
)
PLANNED = ("run", "tune")  # commands that could start Ray or a long run


def _options(dice: random.Random, world: World) -> Request:
    """Pass random options to any command; commands that could start Ray only plan."""
    command = dice.choice(COMMANDS)
    words = [command] if command else []
    if command == "run":
        words.append(dice.choice(("quick", "tiny", "nowhere.yaml", str(world.folder))))
    for _ in range(dice.randint(0, 3)):
        option = dice.choice(OPTIONS)
        given = str(values.value(dice)).replace("\0", "")[:6000]
        words += [option] if dice.random() < 0.2 else [option, given]
    if command == "demo":
        words += ["--out", "/dev/null"]
    return Request(tuple(words), limits=PLAN if command in PLANNED else ())
