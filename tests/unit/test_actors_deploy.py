"""The files that put driftlab on a cluster are what Ray and Kubernetes read, and their commands are driftlab's."""

from __future__ import annotations

import re
import shlex
from importlib import resources
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from driftlab.cli.app import build_app

FOLDER = resources.files("driftlab.actors") / "deploy"
FILES = ("machines.yaml", "cloud.yaml", "rayjob.yaml")


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["machines.yaml", "cloud.yaml"])
def test_ray_accepts_the_cluster(name):
    from ray.autoscaler._private.util import prepare_config, validate_config

    (config,) = documents(name)
    validate_config(prepare_config(config))


def test_ray_refuses_a_cluster_with_an_unknown_key():
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import validate_config

    (config,) = documents("machines.yaml")
    with pytest.raises(ValidationError):
        validate_config({**config, "max_wrokers": 2})


@pytest.mark.parametrize("name", ["machines.yaml", "cloud.yaml"])
def test_every_machine_asks_for_the_token_and_activates_the_environment(name):
    (config,) = documents(name)
    for group in ("head_start_ray_commands", "worker_start_ray_commands"):
        start = config[group][-1]
        assert "RAY_AUTH_MODE=token" in start
        assert start.index("activate") < start.index("ray start")
    assert "~/.ray/auth_token" in config["file_mounts"]
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]


def test_the_job_is_one_that_the_operator_reads():
    job, claim = documents("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    (volume,) = cluster["headGroupSpec"]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_job_s_ray_is_the_one_that_is_pinned():
    """The operator talks to a cluster as that version wants it."""
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"ray=={documents('rayjob.yaml')[0]['spec']['rayClusterSpec']['rayVersion']}" in pins


def test_the_job_writes_its_results_into_the_volume():
    job, _ = documents("rayjob.yaml")
    (container,) = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    words = shlex.split(job["spec"]["entrypoint"])
    out = words[words.index("--out") + 1]
    assert any(out.startswith(mount["mountPath"] + "/") for mount in container["volumeMounts"])


@pytest.mark.parametrize("name", FILES)
def test_the_commands_are_such_as_driftlab_takes(name):
    """Run each command as written, except that nothing runs."""
    commands = re.findall(r"driftlab (run [^'\n]*)", (FOLDER / name).read_text(encoding="utf-8"))
    assert commands
    for command in commands:
        result = CliRunner().invoke(build_app(), [*shlex.split(command), "--dry-run"])
        assert result.exit_code == 0, result.output
        assert "--address auto" in command
