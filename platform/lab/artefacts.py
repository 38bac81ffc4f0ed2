"""The networks that a run needs, built before its cells begin, each once and all at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftlab.datasets.catalogue import find_workload
from driftlab.platform.lab.backend import Backend, NodeId, Session
from driftlab.platform.lab.cells import measured_of, open_workload
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.setting import AppSetting, Network, Server, Setting
from driftlab.platform.models.artifacts import Recipe
from driftlab.platform.models.zoo import task_of
from driftlab.platform.nodes.specs import TeacherSpec
from driftlab.platform.world import hardware
from driftlab.platform.world.cost import inference_s

if TYPE_CHECKING:
    from driftlab.platform.lab.experiment import AppPart, Experiment, StudentPart, TeacherPart, WorkloadPart


def settings_of(experiment: Experiment, backend: Backend, progress: Progress) -> dict[str, Setting]:
    """Build what the workloads need and put each workload's setting together."""
    wanted = [
        recipe
        for workload in experiment.workloads
        for app in experiment.apps_of(workload)
        for recipe in _recipes(experiment, workload, app)
    ]
    built = _build(list(dict.fromkeys(wanted)), backend.open("artefacts"), progress)
    return {workload.label: _setting(experiment, workload, built) for workload in experiment.workloads}


def _recipes(experiment: Experiment, workload: WorkloadPart, app: AppPart) -> list[Recipe]:
    """List the recipe of an application's student and, where a network teaches, the teacher's."""
    seen = workload.seen_by(app)
    parts: list[StudentPart | TeacherPart] = [experiment.student_of(app)]
    if experiment.teacher.kind == "network":
        parts.append(experiment.teacher)
    return [
        Recipe(
            network=part.network,
            classes=len(open_workload(seen).classes),
            height=seen.height,
            width=seen.width,
            workloads=find_workload(seen.name).family,
            steps=part.pretrain_steps,
            lr=part.pretrain_rate,
        )
        for part in parts
    ]


def _build(recipes: list[Recipe], session: Session, progress: Progress) -> dict[Recipe, Network]:
    """Start every build, then wait for each; builders differ so that they may run side by side."""
    jobs = []
    for number, recipe in enumerate(recipes):
        builder = NodeId("builder", f"builder-{number}")
        session.place(builder)
        jobs.append(session.call(builder, "build", recipe))
    networks = {}
    for done, (recipe, job) in enumerate(zip(recipes, jobs, strict=True), start=1):
        facts = session.result(job).facts
        networks[recipe] = Network(recipe.network, facts.cost, facts.digest, job)
        progress.built(f"{recipe.network} {recipe.height}x{recipe.width}", done, len(recipes))
    return networks


def _setting(experiment: Experiment, workload: WorkloadPart, built: dict[Recipe, Network]) -> Setting:
    part = experiment.server
    server = Server(hardware.find(part.hardware), part.gpus, part.label_s, part.step_s)
    apps = {
        app.name: _app_setting(experiment, app, _recipes(experiment, workload, app), built, server)
        for app in experiment.apps_of(workload)
    }
    return Setting(
        experiment=experiment.name,
        clock=experiment.clock,
        window_s=experiment.window_s,
        pictures=experiment.pictures,
        apps=apps,
        server=server,
        live=workload.live,
        torch_device=experiment.compute.torch_device,
    )


def _app_setting(
    experiment: Experiment, app: AppPart, recipes: list[Recipe], built: dict[Recipe, Network], server: Server
) -> AppSetting:
    student, *teachers = (built[recipe] for recipe in recipes)
    teacher, classes = teachers[0] if teachers else None, recipes[0].classes
    label_s = server.label_s
    if label_s is None:
        label_s = inference_s((teacher or student).cost, server.hardware)
    return AppSetting(
        student=student,
        teacher=teacher,
        teacher_spec=TeacherSpec(
            kind=experiment.teacher.kind,
            network=experiment.teacher.network,
            task=task_of(student.name).name,
            classes=classes,
            border_noise=experiment.teacher.border_noise,
            torch_device=experiment.compute.torch_device,
        ),
        label_s=label_s,
        classes=classes,
        measured=measured_of(app),
    )
