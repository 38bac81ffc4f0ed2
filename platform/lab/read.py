"""Read, complete and strictly validate experiments; one error reports all faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from driftlab.datasets.catalogue import WORKLOADS, label_of
from driftlab.errors import MAX_LINE, RequestError, quoted, shortened, unknown_name
from driftlab.platform.core.documents import models_in, read_text, read_yaml, shape_faults
from driftlab.platform.core.seeding import seed_for
from driftlab.platform.core.spec import AppPart, Spec, StudentPart, WorkloadPart
from driftlab.platform.lab.cells import systems_of
from driftlab.platform.lab.check import faults_of, report
from driftlab.platform.lab.overrides import apply_overrides, merged
from driftlab.platform.lab.sets import Expanded, expand_items
from driftlab.platform.lab.size import size_faults, size_of
from driftlab.platform.lab.tuned import read_tuned, tuned_faults, with_tuned
from driftlab.platform.networks import named, zoo

FOLDER = Path(__file__).parent / "experiments"
LEARNERS = ("student", "teacher")  # parts that may begin with the weights of a file


class Experiment(Spec):
    """A complete, validated experiment."""

    def apps_of(self, workload: WorkloadPart) -> tuple[AppPart, ...]:
        """List a workload's applications; without a list, one that is named after its task."""
        network = self.student.network
        return workload.apps or (AppPart(name=named.task_of(network).name if named.known(network) else "unknown"),)

    def student_of(self, app: AppPart, seed: int) -> StudentPart:
        """Describe the network of an application under a seed of the run."""
        own = pretraining_defaults(app.network) if app.network != self.student.network else {}
        keys = ("network", "pretrain_seed", "pretrain_steps")
        own |= {key: value for key in keys if (value := getattr(app, key)) is not None}
        part = self.student.model_copy(update=own)
        if not part.per_seed:
            return part
        return part.model_copy(update={"pretrain_seed": seed_for(seed, "student", part.pretrain_seed)})


@dataclass(frozen=True)
class Choice:
    """Part of a grid, as selected on the command line; an empty choice changes nothing."""

    systems: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()

    def of(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Narrow a complete document; add unlisted systems by name, unlisted workloads as copies of the first."""
        chosen = dict(document)
        if self.systems:
            known = {part.get("name"): part for part in _mappings(document, "systems") if _is_named(part)}
            chosen["systems"] = [known.get(name, name) for name in self.systems]
            chosen["bounds"] = False
        if self.workloads and (workloads := _mappings(document, "workloads")):
            chosen["workloads"] = [part for name in self.workloads for part in _called(name, workloads)]
        if self.seeds:
            chosen["seeds"] = list(self.seeds)
        return chosen


def _mappings(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """List the mappings in a list of a document; the validation reports other items."""
    items = document.get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _is_named(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("name"), str)


def _called(name: str, workloads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Find workloads by name, alias or label; an unlisted name gets the settings of the first workload."""
    listed = [part for part in workloads if name in (part.get("name"), part.get("alias"))]
    listed = listed or [part for part in workloads if _is_named(part) and label_of(part["name"]) == name]
    same = [] if listed or name in WORKLOADS else [known for known in WORKLOADS if label_of(known) == name]
    if len(same) > 1:
        raise RequestError(f"--workload '{name}' is the label of several workloads. Use {' or '.join(same)}.")
    return listed or [{**workloads[0], "name": same[0] if same else name, "alias": None}]


def names() -> list[str]:
    """List the built-in experiments."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(request: str) -> Path:
    """Locate an experiment by name or by path."""
    if request.endswith((".yaml", ".yml")):
        path = Path(request)
        if not path.is_file():
            raise RequestError(f"There is no experiment file '{request}'. Built-in experiments: {', '.join(names())}.")
        return path
    if "/" in request or (Path(request).exists() and request not in names()):
        raise RequestError(
            f"'{request}' is no experiment: the name of a file must end in .yaml or .yml; a run goes on with --resume."
        )
    if request not in names():
        raise unknown_name("experiment", request, names())
    return FOLDER / f"{request}.yaml"


def load(
    request: str, overrides: Sequence[str] = (), choice: Choice | None = None, tuned: Sequence[Path] = ()
) -> Experiment:
    """Read an experiment by name or path; apply size, tuned settings and overrides; validate it."""
    parts = [read_tuned(file) for file in tuned]
    return parse(document_of(find(request)), overrides, choice, source=str(request), tuned=parts)


def document_of(path: Path) -> dict[str, Any]:
    """Read a file; with `extends` it holds only the differences to a built-in experiment."""
    try:
        document = read_yaml(read_text(path))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not readable as YAML: {shortened(str(error), MAX_LINE)}") from error
    except RequestError as error:
        raise RequestError(f"{path}: {str(error).rstrip('.')}.") from None
    if not isinstance(document, dict):
        held = "nothing" if document is None else quoted(document)
        raise RequestError(f"{path} holds {held}, expected a mapping that begins with 'name:'.")
    return completed(document, path.stem)


def completed(document: Mapping[str, Any], own_name: str = "") -> dict[str, Any]:
    """Merge a document into the built-in experiment named by its `extends`."""
    base, rest = document.get("extends"), {key: value for key, value in document.items() if key != "extends"}
    if base is None:
        return rest
    if base not in names() or base == own_name:
        raise unknown_name("experiment", str(base), [name for name in names() if name != own_name])
    return merged(document_of(find(base)), rest)


def parse(
    document: Mapping[str, Any],
    overrides: Sequence[str] = (),
    choice: Choice | None = None,
    *,
    source: str = "experiment",
    tuned: Sequence[Mapping[str, Any]] = (),
) -> Experiment:
    """Validate a document; RequestError lists every fault with place, value and allowed values."""
    sizes = [override.removeprefix("size=") for override in overrides if override.startswith("size=")]
    others = [override for override in overrides if not override.startswith("size=")]
    others = [*(f"{part}.pretrain_steps=0" for part in LEARNERS if _is_given(f"{part}.weights", others)), *others]
    changes: list[Callable[[dict[str, Any]], dict[str, Any]]] = [choice.of] if choice else []
    if tuned or others:
        changes.append(lambda complete: apply_overrides(_without_params(with_tuned(complete, tuned), others), others))
    own = last = with_defaults(sized(_plain(document), sizes, source))
    try:
        for change in changes:
            if not last.faults:
                last = with_defaults(change(last.document))
        experiment = _validated(last, source)
    except RequestError:
        _validated(own, source)  # report faults of the document itself first, with its places
        raise
    return _checked(experiment, source)


def _without_params(document: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a document without the parameters of replaced workloads.

    A workload counts as replaced if an override names one of another kind.
    """
    replaced = dict(one.partition("=")[::2] for one in overrides)
    workloads = []
    for number, part in enumerate(_mappings(document, "workloads")):
        name = replaced.get(f"workloads.{number}.name", part.get("name"))
        stays = not isinstance(name, str) or not _is_named(part) or _kind_of(name) == _kind_of(part["name"])
        apps = part.get("apps") or []
        others = {"params": {}, "apps": [{**app, "params": {}} if isinstance(app, dict) else app for app in apps]}
        workloads.append(part if stays else {**part, **others})
    return {**document, "workloads": workloads} if len(workloads) == len(document.get("workloads") or []) else document


def _kind_of(workload: str) -> str:
    """Return the family of a workload, whose streams take the same parameters."""
    return workload.partition(":")[0].partition("/")[0]


def _is_given(key: str, overrides: Sequence[str]) -> bool:
    """Return whether overrides give a key a value other than null."""
    return any(name == key and value != "null" for name, _, value in (one.partition("=") for one in overrides))


def _plain(value: Any) -> Any:
    """Copy a document as YAML gives it."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def with_defaults(document: Mapping[str, Any]) -> Expanded:
    """Fill in all defaults, so that `--set` finds every key; malformed parts stay unchanged."""
    expanded = expand_items(document)
    whole = expanded.document
    for name in LEARNERS:
        if isinstance(part := whole.get(name), dict):
            usual = pretraining_defaults(part.get("network")) if name == "student" else {}
            begun = {"pretrain_steps": 0} if part.get("weights") else {}
            whole[name] = {**usual, **begun, **part}
    return replace(expanded, document=_filled(Spec, whole))


def pretraining_defaults(network: Any) -> dict[str, Any]:
    """Return the pre-training settings of a published network; empty for others."""
    entry = zoo.ZOO.get(network) if isinstance(network, str) else None
    if entry is None or entry.pretraining is None:
        return {}
    settings = entry.pretraining
    return {
        "pretrain_steps": settings.steps,
        "pretrain_learning_rate": settings.rate,
        "pretrain_batch": settings.batch,
    }


def _filled(model: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a mapping with the defaults of its model, and nested mappings with those of theirs."""
    whole = dict(given)
    for name, field in model.model_fields.items():
        if name not in whole and not field.is_required() and not field.exclude:
            whole[name] = _plain_default(field.get_default())
        value, inner = whole.get(name), next(models_in(field.annotation), None)
        if inner is None:
            continue
        if isinstance(value, dict) and not _is_list(field.annotation):
            whole[name] = _filled(inner, value)
        elif isinstance(value, list) and _is_list(field.annotation):
            whole[name] = [_filled(inner, part) if isinstance(part, dict) else part for part in value]
    return whole


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is tuple or any(map(_is_list, get_args(hint)))


def _plain_default(value: Any) -> Any:
    """Write a default as plain data; a model becomes {}, which `_filled` completes."""
    if isinstance(value, BaseModel):
        return {}
    return [_plain_default(part) for part in value] if isinstance(value, tuple) else _plain(value)


def _validated(request: Expanded, source: str) -> Experiment:
    """Validate a complete document; RequestError names all faults of its shape and size."""
    try:
        experiment = Experiment.model_validate(request.document)
    except ValidationError as error:
        faults = [*request.faults, *shape_faults(error.errors(), Experiment, {"systems": request.rows})]
        raise RequestError(report(source, faults)) from None
    if faults := [*request.faults, *size_faults(size_of(experiment))]:
        raise RequestError(report(source, faults))
    return experiment


def _checked(experiment: Experiment, source: str) -> Experiment:
    """Check members, streams and files; drop `bound_rows` that equal the built-in bounds."""
    if faults := [*faults_of(experiment), *tuned_faults(experiment)]:
        raise RequestError(report(source, faults))
    if experiment.bound_rows is None:
        return experiment
    plain = experiment.model_copy(update={"bound_rows": None})  # a run's spec may hold bounds that the table still has
    return plain if systems_of(plain) == systems_of(experiment) else experiment


def sized(document: dict[str, Any], requested: Sequence[str], source: str) -> dict[str, Any]:
    """Apply one of a document's `sizes: {small: {...}, full: {...}}`, as `size: small` selects."""
    sizes = document.pop("sizes", {})
    default = document.pop("size", None)
    size = requested[-1] if requested else default
    if not isinstance(sizes, dict) or not all(isinstance(changes, dict) for changes in sizes.values()):
        raise RequestError(
            f"{source}: sizes is {quoted(sizes)}; give changes by name, such as {{small: {{window_s: 5}}}}"
        )
    if size is None or (not sizes and not requested):  # none, or a document in full that names the size it was
        return {**document, "size": size}
    known = {str(name): changes for name, changes in sizes.items()}
    if str(size) not in known:
        raise RequestError(f"{source}: {unknown_name('size', str(size), known)}")
    return merged(document, {**known[str(size)], "size": str(size)})
