"""The files that deploy a server and a device are what Ray Serve and systemd read."""

from __future__ import annotations

import configparser
import importlib
import json
import re
import shlex
from importlib import resources
from types import SimpleNamespace

import jsonschema
import pytest
import yaml
from pydantic import ValidationError
from ray.serve.config import HTTPOptions
from ray.serve.schema import ServeDeploySchema
from rayfiles_factory import CLUSTER
from typer.main import get_command

from driftlab.cli.app import build_app
from driftlab.serve_apps.deployment import MIN_TOKEN, TOKEN_VARIABLE, ServerArgs, http_options
from driftlab.serve_apps.http_server import ServerAddress
from driftlab.serve_apps.routes import ROUTES
from driftlab.serve_apps.server_metrics import Meters
from driftlab.serve_apps.sessions import Limits

FOLDER = resources.files("driftlab.serve_apps") / "deploy"


@pytest.fixture
def config():
    return ServeDeploySchema.model_validate(yaml.safe_load((FOLDER / "serve.yaml").read_text(encoding="utf-8")))


def test_ray_serve_reads_the_config(config):
    (application,) = config.applications
    module, _, name = application.import_path.partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    assert config.http_options.host == "127.0.0.1"


def test_its_arguments_need_a_token_of_some_length(config, monkeypatch):
    (application,) = config.applications
    for token in (None, "short"):
        monkeypatch.delenv(TOKEN_VARIABLE, raising=False) if token is None else monkeypatch.setenv(
            TOKEN_VARIABLE, token
        )
        with pytest.raises(ValidationError):
            ServerArgs.model_validate(application.args)
    monkeypatch.setenv(TOKEN_VARIABLE, "x" * MIN_TOKEN)
    assert ServerArgs.model_validate(application.args).token == "x" * MIN_TOKEN


def test_the_unit_starts_and_resumes_a_device():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read_string((FOLDER / "driftlab-device.service").read_text(encoding="utf-8"))
    shell, flag, script = shlex.split(unit["Service"]["ExecStart"])
    assert (shell, flag) == ("/bin/sh", "-c")
    group, values = get_command(build_app()), dict(shlex.split(word)[0].split("=", 1) for word in environment(unit))
    found = re.findall(r"exec /opt/driftlab/bin/driftlab ([^;']+)", script)
    assert [words.split()[:2] for words in found] == [["device", "--resume"], ["device", "--server"]]
    for words in found:
        filled = [re.sub(r"\$(\w+)", lambda name: values[name[1]], word) for word in shlex.split(words)]
        group.commands["device"].make_context("device", filled[1:])


def environment(unit):
    return shlex.split(unit["Service"]["Environment"])


def test_the_dashboard_shows_only_what_a_server_counts():
    dashboard = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    meters = Meters(SimpleNamespace(sessions={"a": Session()}, limits=Limits()))
    meters.count_reply(200)
    counted = set(re.findall(r"^(driftlab_\w+)", meters.text().decode(), re.MULTILINE))
    asked = {name for panel in dashboard["panels"] for one in panel["targets"] for name in names(one["expr"])}
    assert asked <= counted
    families = {re.sub(r"_(total|bucket|sum|count|created)$", "", name) for name in counted}
    assert families == {re.sub(r"_(total|bucket)$", "", name) for name in asked}  # and all of it
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def names(expression):
    return re.findall(r"driftlab_\w+", expression)


class Session:
    """A session as the meters read it."""

    fault = ""

    def status(self):
        numbers = dict.fromkeys(("version", "waiting", "score", "uploads", "up_bytes", "down_bytes"), 1)
        return {"system": "ams", "workload": "streets/running", **numbers}


def test_prometheus_reads_the_route_with_the_token():
    (job,) = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    assert ("GET", job["metrics_path"]) in {(method, path) for method, path, _ in ROUTES}
    assert job["authorization"]["type"] == "Bearer"


def test_kuberay_serves_the_same_application(config):
    service, claim = yaml.safe_load_all((FOLDER / "rayservice.yaml").read_text(encoding="utf-8"))
    theirs = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    assert theirs.applications[0].import_path == config.applications[0].import_path
    jsonschema.validate(service["spec"]["rayClusterConfig"], CLUSTER)
    pod = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    assert theirs.applications[0].args["folder"] == container["volumeMounts"][0]["mountPath"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["env"][0]["name"] == TOKEN_VARIABLE
    image, version = container["image"], service["spec"]["rayClusterConfig"]["rayVersion"]
    job = (resources.files("driftlab.actors") / "deploy/rayjob.yaml").read_text(encoding="utf-8")
    assert f"image: {image}" in job and f'rayVersion: "{version}"' in job


def test_serve_takes_the_certificate():
    where = ServerAddress("127.0.0.1", 1, "cert.pem", "key.pem")
    assert where.url.startswith("https://")
    assert HTTPOptions(**http_options(where)).ssl_certfile == "cert.pem"
    assert HTTPOptions(**http_options(ServerAddress("127.0.0.1", 1))).ssl_certfile is None
