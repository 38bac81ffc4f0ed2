"""The workloads by name, with their parameters and openers; a workload is one row at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from driftlab.datasets import checks
from driftlab.datasets.city.presets import CONDITIONS, PRETRAINING, SETTINGS
from driftlab.datasets.domains.parameters import DOMAIN_PARAMETERS
from driftlab.datasets.frames import Stream
from driftlab.datasets.joined_sets import JOIN
from driftlab.datasets.labelled import SETS, SetSource, folder_digest
from driftlab.datasets.parameters import AnyParameter, Given, StreamParameter, Value, parameter_faults, read_values
from driftlab.datasets.severity import SeveritySchedule
from driftlab.datasets.signs.presets import PRESETS as SIGNS
from driftlab.datasets.streets.presets import CLASSES
from driftlab.datasets.streets.presets import PRESETS as STREETS
from driftlab.errors import RequestError, unknown_name

Asked = TypeVar("Asked")
VIDEO_PREFIX, SET_PREFIX, DOMAINS_PREFIX, CAMERA = "video:", "set:", "domains:", "camera"
JOINED = f"{SET_PREFIX}NAME{JOIN}NAME:FOLDER"
MIN_SIDE_PX, MAX_SIDE_PX = 16, 4096
MAX_FPS = 240.0


@dataclass(frozen=True)
class StreamRequest:
    """The checked arguments that an opener receives."""

    name: str
    seed: int
    height: int
    width: int
    fps: float
    duration_s: float
    params: Mapping[str, Value]

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of a frame."""
        return self.height, self.width

    @property
    def place(self) -> str:
        """The part of the name after the first colon: a file, a folder or a set."""
        return self.name.partition(":")[2]


@dataclass(frozen=True)
class SceneProperties:
    """Facts about a stream that need no frames."""

    static_scene: bool  # one scene for ever, before a stationary camera
    appearance_drift: bool  # light and weather of a scene move on to other looks
    stretches: Callable[[float], list[tuple[float, float, float, float]]] = field(repr=False)  # see streets.travel


@dataclass(frozen=True)
class Workload:
    """A kind of stream; capital letters after the last colon of its name stand for a part of the request."""

    name: str
    summary: str
    opener: Callable[[StreamRequest], Stream] = field(repr=False)
    parameters: Mapping[str, AnyParameter] = field(default_factory=lambda: MappingProxyType({}))
    own_length: bool = False  # a duration of 0 means the length of the file
    bare: bool = False  # whether a request may leave out the last colon and the rest
    family: str = "streets"  # workloads with similar frames; networks are pre-trained on frames of the family
    video: bool = True  # whether a frame mostly shows the scene of the one before it
    classes: tuple[str, ...] | None = CLASSES  # class names of its streams; None: the stream names them
    scenery: Callable[[str, int], SceneProperties] | None = field(
        default=None, repr=False
    )  # by name and seed, where known
    pretraining_streams: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType({})
    )  # worlds to teach networks on


def _open_street(request: StreamRequest) -> Stream:
    from driftlab.datasets.streets.stream import StreetRequest, StreetStream

    return _procedural(request, StreetRequest, StreetStream)


def _open_any_street(request: StreamRequest) -> Stream:
    return _open_street(replace(request, name=f"streets/{_any_kind(request.seed)}"))


def _any_kind(seed: int) -> str:
    """Select the kind of street by the seed, so that the devices of a fleet see different kinds."""
    kinds = sorted(STREETS)
    return kinds[np.random.default_rng([seed, 13]).integers(len(kinds))]


def _open_city(request: StreamRequest) -> Stream:
    from driftlab.datasets.city.stream import CityRequest, CityStream

    others = {name: value for name, value in request.params.items() if name not in CONDITIONS}
    conditions = tuple(
        (name, value) for name in CONDITIONS if isinstance(value := request.params[name], SeveritySchedule)
    )
    asked = partial(CityRequest, conditions=conditions)
    return _procedural(replace(request, params=others), asked, CityStream)


def _open_any_city(request: StreamRequest) -> Stream:
    """Open the kind that the seed chooses, with the settings of that kind where the request has none."""
    name = f"city/{_any_kind(request.seed)}"
    return _open_city(
        replace(request, name=name, params={**read_values(WORKLOADS[name].parameters, {}), **request.params})
    )


def _street_scenery(name: str, seed: int) -> SceneProperties:
    from driftlab.datasets.streets.travel import draw_travel

    preset = STREETS[name.partition("/")[2] or _any_kind(seed)]
    moves = any(speed for _, speed in preset.speed_mps)
    static_scene = not moves and len(preset.visits) == 1
    return SceneProperties(static_scene, preset.drift_s > 0, draw_travel(preset, seed).stretches)


def _open_signs(request: StreamRequest) -> Stream:
    from driftlab.datasets.signs.stream import SignsRequest, SignsStream

    return _procedural(request, SignsRequest, SignsStream)


def _procedural(request: StreamRequest, asked: Callable[..., Asked], stream: Callable[[Asked], Stream]) -> Stream:
    """Open a procedural stream; the part of its name after the slash is its preset."""
    return stream(
        asked(
            preset=request.name.partition("/")[2],
            seed=request.seed,
            height=request.height,
            width=request.width,
            fps=request.fps,
            duration_s=request.duration_s,
            **request.params,
        )
    )


def _open_video(request: StreamRequest) -> Stream:
    from driftlab.datasets.video import VideoStream

    return VideoStream(request.place, request.size, request.fps, request.duration_s)


def _open_slides(request: StreamRequest) -> Stream:
    from driftlab.datasets.slides import Slides

    return Slides(request.name, request.place, request.size, request.fps, request.duration_s, request.seed)


def _open_driving(request: StreamRequest) -> Stream:
    from driftlab.datasets.cityscapes import DrivingPictures

    layout, folder = request.name.partition(":")[0], Path(request.place).expanduser()
    found = DrivingPictures(request.name, folder, request.size, request.fps, request.duration_s, layout)
    _ = found.pictures  # a folder that is laid out otherwise is refused here, not in the middle of a run
    return found


def _open_pictures(request: StreamRequest) -> Stream:
    from driftlab.datasets.pictures import PicturesStream

    folder = Path(request.place).expanduser()
    found = PicturesStream(request.name, folder, request.size, request.fps, request.duration_s)
    _ = found.paths  # a folder without pictures is refused here, not in the middle of a run
    return found


def _open_camera(request: StreamRequest) -> Stream:
    from driftlab.datasets.remote import RemoteStream

    return RemoteStream(request.name, request.size, request.fps, request.duration_s)


def _open_domains(request: StreamRequest) -> Stream:
    from driftlab.datasets.domains.workload import open_domains

    base = find_workload(request.place)
    own = {key: value for key, value in request.params.items() if key in base.parameters}
    return open_domains(request, partial(base.opener, replace(request, name=base.name, params=own)))


_STREET_PARAMETERS: Mapping[str, StreamParameter] = MappingProxyType(
    {
        "pace": StreamParameter(1.0, 0.01, 100.0, "how many times as fast as usual the scenes change"),
        "crowd": StreamParameter(1.0, 0.0, 2.0, "how many times the usual number of people, cars and trees"),
        "noise": StreamParameter(1.0, 0.0, 5.0, "how many times the usual noise of the sensor"),
    }
)
_SIGNS_PARAMETERS: Mapping[str, StreamParameter] = MappingProxyType(
    {
        "classes": StreamParameter(8, 2, 100, "how many kinds of signs there are", whole=True),
        "difficulty": StreamParameter(
            2.0, 0.0, 10.0, "how far signs stray, how much hangs before them and how much noise"
        ),
        "pace": StreamParameter(1.0, 0.01, 100.0, "how many times as fast as usual the scenes change"),
    }
)
_PLAIN_CITY: Mapping[str, StreamParameter] = MappingProxyType(
    {
        **{name: _STREET_PARAMETERS[name] for name in ("pace", "crowd")},
        "variety": StreamParameter(
            1.0, 0.0, 3.0, "how far colours stray from the usual ones, and how many kinds there are"
        ),
        "photos": StreamParameter(0.0, 0.0, 1.0, "share of photographs in the textures; above 0 it needs scikit-image"),
        **{
            name: StreamParameter(one.default, 0.0, one.high, one.summary, neutral=one.neutral)
            for name, one in CONDITIONS.items()
        },
    }
)


_SET_BY_PRESETS = sorted({name for settings in SETTINGS.values() for name in settings})


def _city_parameters(preset: str | None) -> Mapping[str, StreamParameter]:
    """Return the parameters with the settings of a preset; for no preset in particular, of the chosen one."""
    settings: Mapping[str, float | None] = SETTINGS[preset] if preset else dict.fromkeys(_SET_BY_PRESETS)
    return MappingProxyType(
        {**_PLAIN_CITY, **{name: replace(_PLAIN_CITY[name], default=value) for name, value in settings.items()}}
    )


def _city(name: str, summary: str, opener: Callable[[StreamRequest], Stream], preset: str | None) -> Workload:
    parameters = _city_parameters(preset)
    return Workload(
        name, summary, opener, parameters, family="city", scenery=_street_scenery, pretraining_streams=PRETRAINING
    )


def _labelled(key: str, source: SetSource) -> Workload:
    """Describe a labelled set: networks are pre-trained on its training part, streams show its test part."""
    name = f"{SET_PREFIX}{key}:FOLDER" if source.in_folder else f"{SET_PREFIX}{key}"
    summary = f"Labelled set: {source.summary}."
    return Workload(name, summary, _open_slides, family=name, video=False, classes=None, bare=source.in_folder)


_ROWS = (
    *(
        Workload(f"streets/{one.name}", one.summary, _open_street, _STREET_PARAMETERS, scenery=_street_scenery)
        for one in STREETS.values()
    ),
    Workload(
        "any-street",
        "One of the kinds of streets; which, the seed decides.",
        _open_any_street,
        _STREET_PARAMETERS,
        scenery=_street_scenery,
    ),
    *(_city(f"city/{name}", STREETS[name].summary, _open_city, name) for name in SETTINGS),
    _city("any-city", "One of the kinds of city streets; which, the seed decides.", _open_any_city, None),
    *(
        Workload(f"signs/{one.name}", one.summary, _open_signs, _SIGNS_PARAMETERS, family="signs", classes=None)
        for one in SIGNS.values()
    ),
    *(_labelled(key, source) for key, source in SETS.items()),
    Workload(
        JOINED,
        "Labelled sets joined by +, such as set:cifar10+svhn:FOLDER with FOLDER/cifar10 and FOLDER/svhn.",
        _open_slides,
        classes=None,
    ),
    Workload(
        "video:PATH",
        "Any file that PyAV decodes; truth from label maps next to it, if any.",
        _open_video,
        own_length=True,
    ),
    Workload(
        "cityscapes:FOLDER",
        "The validation pictures of a folder laid out like Cityscapes, city after city, with label maps.",
        _open_driving,
        video=False,
    ),
    Workload(
        "acdc:FOLDER",
        "The pictures of ACDC with label maps, in the order fog, night, rain, snow; FOLDER/train for those of CoTTA.",
        _open_driving,
        video=False,
    ),
    Workload("shift:FOLDER", "The frames of a view of SHIFT with label maps and boxes.", _open_driving),
    Workload(
        "folder:FOLDER",
        "The PNG and JPEG pictures of a folder in the order of their names, without truth.",
        _open_pictures,
    ),
    Workload(
        "camera:SOURCE",
        "A camera in real time, for `driftlab device` alone: a device file, or an address that PyAV opens.",
        _open_camera,
        bare=True,
    ),
    Workload(
        "domains:WORKLOAD",
        "Any other workload shifted, domain after domain, such as domains:set:digits.",
        _open_domains,
        DOMAIN_PARAMETERS,
        classes=None,
    ),
)
WORKLOADS: Mapping[str, Workload] = MappingProxyType({workload.name: workload for workload in _ROWS})


def find_workload(name: str) -> Workload:
    """Look up a workload by name; capital letters in a row stand for a file, a folder or a name."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    if name.startswith(SET_PREFIX) and JOIN in name.removeprefix(SET_PREFIX).partition(":")[0]:
        return replace(WORKLOADS[JOINED], name=name, family=name)
    for row in WORKLOADS.values():
        stem, _, place = row.name.rpartition(":")
        if place.isupper() and (name.startswith(f"{stem}:") or (row.bare and name == stem)):
            if row.opener is _open_domains:
                return _in_domains(name)
            return replace(row, name=name, family=name if row.family == row.name else row.family)
    raise unknown_name("workload", name, WORKLOADS)


def _in_domains(name: str) -> Workload:
    """Describe the domains of a workload: they have its parameters and their own, and its networks."""
    base = find_workload(name.removeprefix(DOMAINS_PREFIX))
    if base.opener is _open_domains:
        raise RequestError(f"Workload '{name}' shifts a shifted workload; give domains:WORKLOAD once.")
    summary = f"{base.summary.rstrip('.')}, shifted domain after domain."
    parameters = MappingProxyType({**DOMAIN_PARAMETERS, **base.parameters})
    return replace(base, name=name, summary=summary, opener=_open_domains, parameters=parameters, scenery=None)


def scene_properties(name: str, seed: int) -> SceneProperties | None:
    """Describe a stream without opening it; None where its workload is no procedural street."""
    describe = find_workload(name).scenery
    return describe(name, seed) if describe else None


def shifts_of_domains(name: str, params: Mapping[str, Given]) -> list[str]:
    """Return the shift of each domain of a workload under domains, in the order of their numbers."""
    from driftlab.datasets.domains.workload import domains_of

    values: Mapping[str, Any] = read_values(find_workload(name).parameters, params)
    return [shift for shift, _ in domains_of(values["shifts"], values["severities"])]


def label_of(name: str) -> str:
    """Return a workload's name in tables and plots: streets/running is running, video:a/b.mp4 is b."""
    return Path(name.rpartition(":")[2]).stem


def folder_digest_of(name: str) -> str:
    """Return a digest of the folder of a labelled set; empty for every other workload."""
    name = name.removeprefix(DOMAINS_PREFIX)
    return folder_digest(name.removeprefix(SET_PREFIX)) if name.startswith(SET_PREFIX) else ""


def open_stream(
    name: str,
    *,
    seed: int,
    height: int,
    width: int,
    fps: float,
    duration_s: float | None,
    **params: Given,
) -> Stream:
    """Open a workload. The same arguments give the same frames in every process and in any order.

    A condition is a number or, where it comes and goes, a mapping of severity, schedule and period_s.
    """
    workload = find_workload(name)
    faults = [
        *checks.check_integer("seed", seed, 0, 2**63 - 1),
        *checks.check_integer("height", height, MIN_SIDE_PX, MAX_SIDE_PX),
        *checks.check_integer("width", width, MIN_SIDE_PX, MAX_SIDE_PX),
        *checks.check_number("fps", fps, 1e-3, MAX_FPS),
        *_check_length(workload, duration_s),
        *parameter_faults(workload.parameters, params),
    ]
    if faults:
        raise RequestError(f"Workload '{name}' cannot be opened: {'; '.join(faults)}.")
    values = read_values(workload.parameters, params)
    return workload.opener(StreamRequest(name, seed, height, width, float(fps), float(duration_s or 0), values))


def _check_length(workload: Workload, duration_s: float | None) -> list[str]:
    if workload.own_length and not duration_s:
        return []
    faults = checks.check_number("duration_s", duration_s, 1e-3, 1e7)
    return [f"{fault}; only a file has a fixed length" for fault in faults] if duration_s is None else faults
