"""The clusters' deployment files are valid for Ray and Kubernetes, and run driftlab's commands."""

from __future__ import annotations

import functools
import operator
import re
import shlex
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml
from command_factory import run_command
from packaging.specifiers import SpecifierSet
from rayfiles_factory import CLUSTER, COUNT, TEXT, WORDS, YES_NO, fields

import driftlab

FOLDER = resources.files("driftlab.actors") / "deploy"
FILES = ("machines.yaml", "cloud.yaml", "rayjob.yaml")
ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "actors/deploy/Dockerfile").read_text(encoding="utf-8")
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def containers(cluster):
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    return [container for group in groups for container in group["template"]["spec"]["containers"]]


def steps(word):
    """Return the lines of the Dockerfile that begin with a word."""
    return re.findall(rf"^{word} (.+)$", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize("name", ["machines.yaml", "cloud.yaml"])
def test_ray_accepts_the_cluster(name):
    from ray.autoscaler._private.util import prepare_config, validate_config

    (config,) = documents(name)
    validate_config(prepare_config(config))


def test_ray_refuses_a_cluster_with_an_unknown_key():
    from ray.autoscaler._private.util import validate_config

    (config,) = documents("machines.yaml")
    with pytest.raises(jsonschema.ValidationError):
        validate_config({**config, "max_wrokers": 2})


@pytest.mark.parametrize("name", ["machines.yaml", "cloud.yaml"])
def test_every_computer_requires_the_token(name):
    (config,) = documents(name)
    for group in ("head_start_ray_commands", "worker_start_ray_commands"):
        start = config[group][-1]
        assert 0 <= start.find("export RAY_AUTH_MODE=token") < start.index("ray start")
    assert "~/.ray/auth_token" in config["file_mounts"]
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]


RAY_JOB = fields(  # the part of KubeRay's ray.io/v1 RayJob that a run can use, as its reference describes it
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=fields(("name",), name=TEXT, namespace=TEXT, labels=WORDS, annotations=WORDS),
    spec=fields(
        ("entrypoint",),
        entrypoint=TEXT,
        runtimeEnvYAML=TEXT,
        jobId=TEXT,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        shutdownAfterJobFinishes=YES_NO,
        ttlSecondsAfterFinished=COUNT,
        activeDeadlineSeconds={"type": "integer", "minimum": 1},
        backoffLimit=COUNT,
        suspend=YES_NO,
        clusterSelector=WORDS,
        rayClusterSpec=CLUSTER,
    ),
)


def test_the_operator_accepts_the_job():
    jsonschema.validate(documents("rayjob.yaml")[0], RAY_JOB)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("spec", "entrypiont"), "driftlab"),
        (("spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replicas"), "2"),
        (("spec", "rayClusterSpec", "authOptions", "mode"), "password"),
    ],
)
def test_the_operator_refuses_an_invalid_job(path, wrong):
    job, _ = documents("rayjob.yaml")
    *place, key = path
    functools.reduce(operator.getitem, place, job)[key] = wrong
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job, RAY_JOB)


def test_the_job_stores_its_results_and_limits_its_resources():
    job, claim = documents("rayjob.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for container in containers(cluster):
        assert container["resources"]["limits"] == container["resources"]["requests"]
    (volume,) = cluster["headGroupSpec"]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_job_has_the_pinned_version_of_ray():
    """The operator's protocol depends on the version."""
    assert f"ray=={documents('rayjob.yaml')[0]['spec']['rayClusterSpec']['rayVersion']}" in PINS


def test_all_files_use_the_image_of_this_version():
    built = re.search(r"docker build -f actors/deploy/Dockerfile -t (\S+) \.$", DOCKERFILE, re.MULTILINE)[1]
    assert built.endswith(f"/driftlab:{driftlab.__version__}")
    used = [documents(name)[0]["docker"]["image"] for name in ("machines.yaml", "cloud.yaml")]
    used += [one["image"] for one in containers(documents("rayjob.yaml")[0]["spec"]["rayClusterSpec"])]
    assert set(used) == {built}


def test_the_image_has_all_folders_of_the_package():
    copied = [shlex.split(line)[:-1] for line in steps("COPY")]
    names = {name for line in copied for name in line}
    assert {name for name in names if not (ROOT / name).exists()} == set()
    linked = {path.readlink().name for path in (ROOT / "driftlab").iterdir() if path.is_symlink()}
    assert names == {"driftlab", *linked, "constraints.txt", "pyproject.toml", "README.md", "LICENSE"}


def test_the_image_has_pinned_versions_and_a_supported_python():
    installed = [line for line in steps("RUN") if "pip install" in line]
    assert len(installed) == 2
    assert all(line.endswith("-c constraints.txt") for line in installed)
    assert steps("COPY")[0].startswith("constraints.txt")
    (base,) = steps("FROM")
    project = dict(
        re.findall(r'^([a-z-]+) = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert re.match(r"python:(3\.\d+)-", base)[1] in SpecifierSet(project["requires-python"])
    assert project["version"] == driftlab.__version__


def test_the_page_and_the_files_give_the_same_commands():
    heads = [(FOLDER / name).read_text(encoding="utf-8") for name in FILES]
    command = r"((?:docker|kubectl|ray) [a-z].*?)(?:  .*)?$"
    written = {found for text in (*heads, DOCKERFILE) for found in re.findall(rf"^#   {command}", text, re.MULTILINE)}
    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    shown = {found for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for found in block.splitlines()}
    assert shown == written
    assert len(shown) == 13


def test_the_job_writes_its_results_into_the_volume():
    job, _ = documents("rayjob.yaml")
    (container,) = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    words = shlex.split(job["spec"]["entrypoint"])
    out = words[words.index("--out") + 1]
    assert any(out.startswith(mount["mountPath"] + "/") for mount in container["volumeMounts"])


@pytest.mark.parametrize("name", FILES)
def test_driftlab_accepts_the_commands(name):
    """Parse each command as written, without running it."""
    commands = re.findall(r"driftlab (run [^'\n]*)", (FOLDER / name).read_text(encoding="utf-8"))
    assert commands
    for command in commands:
        result = run_command([*shlex.split(command), "--dry-run"])
        assert result.exit_code == 0, result.output
        assert "--address auto" in command
