"""Build the networks of a run before its cells start: each network once, all in parallel."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from driftlab.datasets.catalogue import find_workload, folder_digest_of
from driftlab.errors import RequestError
from driftlab.platform.core import plugins
from driftlab.platform.core.registry import Member, builder_of, packer_of
from driftlab.platform.lab.cells import has_own_classes, measured_of, open_workload, systems_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.tuned import tuned_by
from driftlab.platform.networks.named import task_of
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe, SourceSummaryRecipe, is_kept
from driftlab.platform.networks.training.states import training_of
from driftlab.platform.networks.training.weight_files import digest_of
from driftlab.platform.sim.session import Backend, Job, NodeId, Session
from driftlab.platform.sim.setting import AppNetworks, BuiltNetwork, TeacherSpec, TrainingSite, WorkloadSetup, setup_key
from driftlab.platform.world import hardware
from driftlab.platform.world.cost import inference_s

if TYPE_CHECKING:
    from driftlab.platform.lab.read import Experiment
from driftlab.platform.core.spec import AppPart, StudentPart, TeacherPart, WorkloadPart

WATCH_S = 1.0  # between two reports of a training
FIXED = Member("scaling", "fixed")


def settings_of(experiment: Experiment, backend: Backend, progress: Progress) -> dict[str, WorkloadSetup]:
    """Build all networks and return the setup of each workload, scaling member and seed, by `setup_key`."""
    asked = _asked(experiment)
    wanted = recipes_of(experiment)
    session = backend.open("artefacts")
    with _watched(wanted.values(), progress):
        built = _build(wanted, session, progress, experiment.limits.member_s)
    packs = _packs([one for one, _ in asked], session, experiment.limits.member_s)
    settings = {}
    for one, sharing in asked:
        setting = _setup(one, built, packs)
        settings.update({setup_key(one.workload.label, one.scaling, seed): setting for seed in sharing})
    return settings


@contextmanager
def _watched(recipes: Iterable[FamilyRecipe], progress: Progress) -> Iterator[None]:
    """Report the trainings on this computer until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(WATCH_S):
            for recipe in recipes:
                if not is_kept(recipe) and (state := training_of(recipe.network)) is not None:
                    progress.training(_named(recipe), *state)

    watching = threading.Thread(target=watch, name="training progress", daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def recipes_of(experiment: Experiment) -> dict[str, FamilyRecipe]:
    """List the recipes of an experiment's networks by key, without duplicates."""
    asked = _asked(experiment)
    return {recipe.key(): recipe for one, _ in asked for app in one.apps for recipe in _recipes(one, app)}


def students_of(experiment: Experiment, workload: WorkloadPart) -> list[Recipe]:
    """Return the recipe of the network of each application, before a family is built from it."""
    asked = BuildCondition(experiment, workload, FIXED, experiment.seeds[0])
    return [_recipes(asked, app)[0].network for app in asked.apps]


def _asked(experiment: Experiment) -> list[tuple[BuildCondition, tuple[int, ...]]]:
    """List workload and scaling member of all networks, each with the seeds that share these networks."""
    members = {repr(system.scaling): system.scaling for system in systems_of(experiment)}
    return [
        (BuildCondition(experiment, workload, scaling, sharing[0]), sharing)
        for workload in experiment.workloads
        for scaling in members.values()
        for sharing in _sharing(experiment)
    ]


def _sharing(experiment: Experiment) -> list[tuple[int, ...]]:
    """Group the seeds that share networks."""
    return [(seed,) for seed in experiment.seeds] if experiment.student.per_seed else [experiment.seeds]


@dataclass(frozen=True)
class BuildCondition:
    """Workload, scaling member and seed that networks are built for."""

    experiment: Experiment
    workload: WorkloadPart
    scaling: Member
    seed: int

    @property
    def apps(self) -> tuple[AppPart, ...]:
        return self.experiment.apps_of(self.workload)


def _recipes(asked: BuildCondition, app: AppPart) -> list[FamilyRecipe]:
    """List the recipes of an application's student and, for teacher.kind=network, its teacher."""
    experiment, seen = asked.experiment, asked.workload.seen_by(app)
    stream = open_workload(seen)
    student = experiment.student_of(app, asked.seed)
    parts: list[tuple[StudentPart | TeacherPart, Member]] = [(student, asked.scaling)]
    if experiment.teacher.kind == "network":
        parts.append((experiment.teacher, FIXED))
    return [
        FamilyRecipe(
            Recipe(
                network=part.network,
                classes=len(stream.classes),
                height=seen.height,
                width=seen.width,
                workloads=find_workload(seen.name).family,
                steps=part.pretrain_steps,
                batch=part.pretrain_batch,
                lr=part.pretrain_learning_rate,
                seed=part.pretrain_seed,
                content=folder_digest_of(seen.name),
                lessons=tuple(sorted(find_workload(seen.name).pretraining_streams.items())),
                fresh_head=has_own_classes(seen, stream) and not (part.weights and not part.pretrain_steps),
                start=part.weights or "",
                start_digest=digest_of(part.weights) if part.weights else "",
                elsewhere=(pretrain_set := getattr(part, "pretrain_set", None) or ""),
                elsewhere_steps=part.pretrain_set_steps if isinstance(part, StudentPart) and pretrain_set else 0,
                elsewhere_content=folder_digest_of(pretrain_set),
                shifts=part.pretrain_shifts,
                device=experiment.compute.torch_device,
                precision=experiment.compute.precision,
                portable=experiment.compute.portable,
                code=plugins.code_digest(part.network) or "",
            ),
            builder_of(member),
        )
        for part, member in parts
    ]


def _build(
    recipes: Mapping[str, FamilyRecipe], session: Session, progress: Progress, limit_s: float
) -> dict[str, BuiltNetwork]:
    """Start all builds, then wait for them. Each has its own builder, so that builds run in parallel."""
    jobs = []
    for number, recipe in enumerate(recipes.values()):
        progress.building(_named(recipe), number + 1, len(recipes))  # the inline backend builds within `call`
        builder = NodeId("builder", f"builder-{number}")
        session.place(builder)
        jobs.append(session.call(builder, "build", recipe, limit_s))
    networks = {}
    for done, ((name, recipe), job) in enumerate(zip(recipes.items(), jobs, strict=True), start=1):
        progress.building(_named(recipe), done, len(recipes))
        facts = session.result(job).facts
        networks[name] = BuiltNetwork(recipe.network.network, facts.profile, facts.digest, job)
        progress.built(_named(recipe, len(facts.profile)), done, len(recipes))
    return networks


def _packs(asked: Sequence[BuildCondition], session: Session, limit_s: float) -> dict[tuple[str, str], Job]:
    """Compute the source statistics of adaptations with `packs`, once per network family and adaptation."""
    members = {repr(system.adaptation): system.adaptation for one in asked[:1] for system in systems_of(one.experiment)}
    wanted = {
        (name, family.key()): SourceSummaryRecipe(family, packer_of(member))
        for name, member in members.items()
        if member.make().has_source_summary
        for one in asked
        for app in one.apps
        for family in _recipes(one, app)[:1]
    }
    jobs = {}
    for number, (which, recipe) in enumerate(wanted.items()):
        builder = NodeId("builder", f"packer-{number}")
        session.place(builder)
        jobs[which] = session.call(builder, "pack", recipe, limit_s)
    for job in jobs.values():
        session.result(job)
    return jobs


def _named(recipe: FamilyRecipe, count: int | None = None) -> str:
    """Name a network and its size; `count` is the number of networks in its family, if known."""
    network, many = recipe.network, "" if count is None else f"{count} "
    family = f", {many}by {recipe.scaling}" if recipe.scaling.make().needs_data else ""
    return f"{plugins.drop_folder(network.network)} {network.height}x{network.width}{family}"


def _setup(
    asked: BuildCondition, built: Mapping[str, BuiltNetwork], packs: Mapping[tuple[str, str], Job]
) -> WorkloadSetup:
    experiment, part = asked.experiment, asked.experiment.server
    server = TrainingSite(hardware.find(part.hardware), part.label_s, part.step_s)
    apps = {}
    for app in asked.apps:
        recipes = _recipes(asked, app)
        known = {name: job for (name, family), job in packs.items() if family == recipes[0].key()}
        measured = measured_of(app)
        runs = bool(measured) and asked.workload.run_networks
        networks = _app_setup(experiment, app, recipes, built, server)
        apps[app.name] = replace(networks, packs=known, measured=measured, runs_measured=runs)
        try:
            apps[app.name].variants(server.hardware)
        except RequestError as error:
            raise RequestError(f"Application '{app.name}': {error}.") from error
    return WorkloadSetup(
        experiment=experiment.name,
        clock=experiment.clock,
        window_s=experiment.window_s,
        grace_s=experiment.grace_s,
        snapshots=experiment.snapshots,
        apps=apps,
        server=server,
        server_order=part.order,
        run_networks=asked.workload.run_networks,
        domain_oracle=asked.workload.domain_labels == "oracle",
        domains_detected=asked.workload.domain_labels == "detected",
        accuracy_source=asked.workload.accuracy_source,
        training_batch_limit_s=experiment.limits.training_batch_s,
        member_limit_s=experiment.limits.member_s,
        torch_device=experiment.compute.torch_device,
        tuned=tuned_by(experiment),
    )


def _app_setup(
    experiment: Experiment,
    app: AppPart,
    recipes: list[FamilyRecipe],
    built: Mapping[str, BuiltNetwork],
    server: TrainingSite,
) -> AppNetworks:
    student, *teachers = (built[recipe.key()] for recipe in recipes)
    teacher, classes = teachers[0] if teachers else None, recipes[0].network.classes
    label_s = server.label_s
    if label_s is None:
        label_s = inference_s((teacher or student).cost, server.hardware)
    return AppNetworks(
        student=student,
        teacher=teacher,
        teacher_spec=TeacherSpec(
            kind=experiment.teacher.kind,
            network=experiment.teacher.network,
            task=task_of(student.name).name,
            classes=classes,
            height=recipes[0].network.height,
            width=recipes[0].network.width,
            border_noise=experiment.teacher.border_noise,
            label_jitter_px=experiment.teacher.label_jitter_px,
            torch_device=experiment.compute.torch_device,
        ),
        label_s=label_s,
        classes=classes,
    )
