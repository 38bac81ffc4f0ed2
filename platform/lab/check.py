"""Validate names, parameters and combinations of an experiment and report all faults in one message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from driftlab.datasets.catalogue import SET_PREFIX, WORKLOADS, find_workload, open_stream
from driftlab.datasets.domains.names import unfit_for_training
from driftlab.datasets.streets.presets import CLASSES
from driftlab.errors import RequestError, shortened
from driftlab.platform.lab import own_networks
from driftlab.platform.lab.cells import (
    app_specs_of,
    described,
    has_own_classes,
    measured_of,
    open_workload,
    points_of,
    scored_of,
    system_of,
)
from driftlab.platform.networks import named, zoo
from driftlab.platform.networks.tasks.tasks import SEGMENTATION, TASKS
from driftlab.platform.networks.training.weight_files import digest_of
from driftlab.platform.world import apps, hardware, link, load, load_csv

if TYPE_CHECKING:
    from driftlab.datasets.frames import Stream
    from driftlab.platform.lab.read import Experiment
from driftlab.platform.core.spec import AppPart, ComputePart, DevicePart, StudentPart, WorkloadPart

MAX_FAULTS, MAX_FAULT_LENGTH = 20, 2000


def report(source: str, faults: Sequence[str]) -> str:
    """Format the faults of one request as one message, at most `FAULTS_SHOWN` of them."""
    shown = [shortened(fault, MAX_FAULT_LENGTH) for fault in faults[:MAX_FAULTS]]
    more = [f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
    lines = "\n".join(f"  - {fault}" for fault in (*shown, *more))
    return f"{source}: {len(faults)} fault{'s' if len(faults) > 1 else ''}\n{lines}"


def faults_of(experiment: Experiment) -> list[str]:
    """List the faults of an experiment whose names, types and ranges are valid."""
    faults = [fault for place, check in _checks(experiment) for fault in fault_of(place, check)]
    faults += _gpu_faults(experiment.compute)
    faults += [
        f"window_s is {experiment.window_s:g}: shorter than a frame of '{workload.name}' ({1 / workload.fps:g} s)"
        for workload in experiment.workloads
        if experiment.window_s * workload.fps < 1
    ]
    if not faults:
        faults += _twins([point.id for point in points_of(experiment)])
    return faults or own_networks.faults_of(experiment)


def _checks(experiment: Experiment) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the place and the check of everything that an experiment names."""
    for number, system in enumerate(experiment.systems):
        yield f"systems.{number}", partial(system_of, system)
    for number, workload in enumerate(experiment.workloads):
        for index, app in enumerate(experiment.apps_of(workload)):
            place = f"workloads.{number}.apps.{index}" if workload.apps else f"workloads.{number}"
            yield place, partial(_check_app, experiment, workload, app)
            yield f"{place}.variants", partial(_check_measured, experiment, workload, app)
        yield f"workloads.{number}", partial(_check_apps, workload)
    for number, fleet in enumerate(experiment.fleets):
        for index, part in enumerate(fleet.devices):
            place = f"fleets.{number}.devices.{index}"
            yield f"{place}.hardware", partial(described, hardware, part.hardware)
            yield f"{place}.link", partial(described, link, part.link)
            yield f"{place}.load", partial(_check_load, experiment, part)
    yield "server.hardware", partial(hardware.find, experiment.server.hardware)
    yield "student.network", partial(named.find, experiment.student.network)
    for name, weights in (("student", experiment.student.weights), ("teacher", experiment.teacher.weights)):
        if weights:
            yield f"{name}.weights", partial(digest_of, weights)
    if experiment.student.pretrain_set is not None:
        yield "student.pretrain_set", partial(_check_pretrain_set, experiment.student)
    yield "student.pretrain_shifts", partial(_check_shifts, experiment.student.pretrain_shifts)
    yield "teacher.pretrain_shifts", partial(_check_shifts, experiment.teacher.pretrain_shifts)
    yield "teacher.network", partial(_check_teacher, experiment)


def _check_shifts(shifts: Sequence[str]) -> None:
    for unfit in unfit_for_training(shifts):
        raise RequestError(f"'{unfit}' is no shift of single frames with the labels as they are; name one as fog.")


def _check_pretrain_set(student: StudentPart) -> None:
    """Refuse an unknown labelled set, a network that is no classifier, and skipped pre-training."""
    if not str(student.pretrain_set).startswith(SET_PREFIX):
        raise RequestError(f"'{student.pretrain_set}' is no labelled set; name one as set:signs/ri100.")
    find_workload(str(student.pretrain_set))
    if named.task_of(student.network) is not TASKS["classification"]:
        raise RequestError(f"'{student.network}' is no classifier; only classifiers train on labelled sets.")
    if student.weights or not student.pretrain_steps:
        raise RequestError(
            "student.pretrain_set needs pretrain_steps above 0 and cannot be combined with student.weights."
        )


def fault_of(place: str, check: Callable[[], Any]) -> list[str]:
    """Run a check; return its message with the place, or an empty list if it passes."""
    try:
        check()
    except RequestError as error:
        return [f"{place}: {error}"]
    return []


def _check_apps(workload: WorkloadPart) -> None:
    """Refuse duplicate names of applications and an invalid `churn`."""
    names = [app.name for app in workload.apps]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RequestError(f"apps names {', '.join(twice)} twice; give each another name")
    if workload.churn is not None:
        if "duration_s" in workload.churn:
            raise RequestError("churn holds duration_s; it lasts as long as the workload, leave it out")
        churn = apps.from_mapping({"name": "churn", **workload.churn})
        apps.check(names, churn)


def _check_load(experiment: Experiment, part: DevicePart) -> None:
    """Read a device's load; a file is read in full and repeated for the longest session."""
    profile, lengths_s = described(load, part.load), [1.0]
    if profile.file is None:
        return
    for workload in experiment.workloads if profile.repeat else ():
        with suppress(RequestError):  # the check of the workload reports it
            lengths_s.append(app_specs_of(experiment, workload)[0].stream.duration_s)
    load_csv.read(profile, max(lengths_s))


def _check_app(experiment: Experiment, workload: WorkloadPart, app: AppPart) -> None:
    """Open an application's stream; teacher.kind=oracle requires ground truth for the task."""
    seen, student = workload.seen_by(app), experiment.student_of(app, experiment.seeds[0]).network
    if app.network is not None:
        named.find(app.network)
    stream = open_workload(seen)
    scored_of(seen, stream)
    if has_own_classes(seen, stream):
        _check_own_classes(experiment, seen.name, stream)
    if not stream.has_truth and experiment.teacher.kind == "oracle":
        raise RequestError(
            f"'{seen.name}' has no ground truth, which teacher.kind=oracle requires; "
            "set teacher.kind=network, or add label maps in the folder FILE.labels"
        )
    if not named.known(student):
        return
    _check_adaptations(experiment, student)
    whose = (
        f"'{seen.name}' has truth"
        if stream.has_truth
        else f"'{seen.name}' has no truth, pre-training frames have labels"
    )
    shown = (stream if stream.has_truth else _pretraining_stream(seen)).at([])
    if named.task_of(student).truth(shown) is None:
        known = [task.name for task in TASKS.values() if task.truth(shown) is not None]
        fitting = [name for name, network in zoo.ZOO.items() if network.task.name in known]
        raise RequestError(
            f"{whose} for {' and '.join(known)}, and student.network={student} is for "
            f"{named.task_of(student).name}; take one of {', '.join(fitting)}"
        )


def _check_adaptations(experiment: Experiment, student: str) -> None:
    """Refuse adaptations that do not support the network's task."""
    task = named.task_of(student).name
    for part in experiment.systems:
        with suppress(RequestError):  # the check of the system reports its faults
            system = system_of(part)
            fitting = system.adaptation.make().tasks
            if task not in fitting:
                break
    else:
        return
    raise RequestError(
        f"system '{system.name}': adaptation '{system.adaptation}' works for {' and '.join(fitting)}, and "
        f"student.network={student} is for {task}; take another network or adaptation"
    )


def _check_measured(experiment: Experiment, workload: WorkloadPart, app: AppPart) -> None:
    """Read measured networks; where networks run, their names are compared when they are built."""
    if not measured_of(app) or not workload.run_networks:
        return
    for part in experiment.systems:
        with suppress(RequestError):  # the check of the system reports its faults
            system = system_of(part)
            if system.adaptation.make().learns_on_stream and not system.streaming.make().feeds_learner:
                break
    else:
        return
    raise RequestError(
        f"system '{system.name}' learns on its stream, at times that are computed; take one that does not, or set "
        "run_networks: false in this workload"
    )


def _pretraining_stream(workload: WorkloadPart) -> Stream:
    """Open a short stream of the workload's family, as used for pre-training."""
    family = find_workload(workload.name).family
    name = next(name for name in WORKLOADS if name.startswith(f"{family}/"))
    return open_stream(name, seed=0, height=workload.height, width=workload.width, fps=1.0, duration_s=1.0)


def _check_own_classes(experiment: Experiment, name: str, stream: Stream) -> None:
    """Require label maps or weights for the classes of a video file: pre-training images lack them."""
    labels_it = experiment.teacher.kind == "network" and experiment.teacher.weights
    whose = f"'{name}' defines its own classes ({', '.join(stream.classes)})"
    if not stream.has_truth and not (labels_it and experiment.student.weights):
        raise RequestError(
            f"{whose} but no label maps to train on; put label maps next to the file, or remove its classes.txt"
        )
    if experiment.teacher.kind == "network" and not labels_it:
        raise RequestError(
            f"{whose}, and teacher.kind=network predicts {', '.join(CLASSES)}; set teacher.kind=oracle "
            "to train on the label maps, or teacher.weights to a file with these classes"
        )
    if learners := ", ".join(sorted(_learners(experiment))):
        raise RequestError(
            f"{whose}, and scaling={learners} builds its networks on pictures of {', '.join(CLASSES)}; "
            "take scaling=fixed"
        )


def _learners(experiment: Experiment) -> set[str]:
    """Return the names of scaling members that train before a run starts."""
    found = set()
    for part in experiment.systems:
        with suppress(RequestError):  # the check of the system reports its faults
            scaling = system_of(part).scaling
            found |= {scaling.name} if scaling.make().needs_data else set()
    return found


def _check_teacher(experiment: Experiment) -> None:
    """Require a teacher for the student's task, and segmentation for label noise at borders."""
    student, teacher = experiment.student.network, experiment.teacher
    if teacher.kind == "network" and not teacher.weights and not teacher.pretrain_steps:
        raise RequestError("a teacher without training needs weights; set teacher.weights, or pretrain_steps above 0")
    named.find(teacher.network)
    if not named.known(student):
        return
    task = named.task_of(student)
    if teacher.kind == "network" and named.task_of(teacher.network) is not task:
        fitting = [name for name, network in zoo.ZOO.items() if network.task is task]
        raise RequestError(
            f"'{teacher.network}' is for {named.task_of(teacher.network).name}, student.network={student} is for "
            f"{task.name}; take one of {', '.join(fitting)}"
        )
    for name in ("border_noise", "label_jitter_px"):
        if (amount := getattr(teacher, name)) and task is not SEGMENTATION:
            raise RequestError(f"teacher.{name} is {amount:g}; predictions in {task.name} have no borders")


def _gpu_faults(compute: ComputePart) -> list[str]:
    torch_device = compute.torch_device
    if torch_device == "cpu":
        return []
    kind, _, index = torch_device.partition(":")
    if kind != "cuda" or (index and not (index.isascii() and index.isdigit())):
        return [f"compute.torch_device is '{torch_device}'; allowed: cpu, cuda, cuda:N"]
    if index and compute.gpus_per_actor:
        return [f"compute.torch_device is '{torch_device}' and Ray assigns the GPUs of gpus_per_actor; write cuda"]
    if compute.portable:
        return [f"compute.portable is true and compute.torch_device is '{torch_device}'; only cpu can be portable"]
    return []


def _twins(ids: Iterable[str]) -> list[str]:
    twice = sorted(cell for cell, count in Counter(ids).items() if count > 1)
    if not twice:
        return []
    return [
        f"these cells would run twice: {shortened(', '.join(twice), MAX_FAULT_LENGTH // 2)}; "
        "give systems or fleets other names, workloads an alias, and each seed once"
    ]
