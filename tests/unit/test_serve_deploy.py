"""The deployment files of server and device are valid for Serve, systemd, Prometheus and KubeRay."""

from __future__ import annotations

import configparser
import importlib
import json
import re
import shlex
import socket
from importlib import resources
from pathlib import Path
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
from driftlab.errors import RequestError
from driftlab.serve_apps import handover, http_server
from driftlab.serve_apps.deployment import (
    MIN_TOKEN,
    TOKEN_VARIABLE,
    ServerArgs,
    _reserve,
    http_options,
)
from driftlab.serve_apps.http_server import ServerAddress
from driftlab.serve_apps.routes import ROUTES
from driftlab.serve_apps.server_metrics import ServerMetrics

FOLDER = resources.files("driftlab.serve_apps") / "deploy"


@pytest.fixture
def config():
    return ServeDeploySchema.model_validate(yaml.safe_load((FOLDER / "serve.yaml").read_text(encoding="utf-8")))


def test_the_config_imports_the_application(config):
    (application,) = config.applications
    module, _, name = application.import_path.partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    assert config.http_options.host == "127.0.0.1"


def test_server_arguments_require_a_token_of_minimum_length(config, monkeypatch):
    (application,) = config.applications
    for token in (None, "short"):
        monkeypatch.delenv(TOKEN_VARIABLE, raising=False) if token is None else monkeypatch.setenv(
            TOKEN_VARIABLE, token
        )
        with pytest.raises(ValidationError):
            ServerArgs.model_validate(application.args)
    monkeypatch.setenv(TOKEN_VARIABLE, "x" * MIN_TOKEN)
    assert ServerArgs.model_validate(application.args).token == "x" * MIN_TOKEN


def test_a_maximum_below_the_number_of_replicas_is_refused():
    with pytest.raises(RequestError, match="maximum of 2 replicas is less than 4 replicas"):
        ServerArgs(state_dir="served", token=16 * "x", replicas=4, max_replicas=2)
    assert ServerArgs(state_dir="served", token=16 * "x", replicas=4).most == 4


@pytest.mark.parametrize(
    ("named", "listen"),
    [
        ({}, True),
        ({"cert": "server.pem"}, True),
        ({"replicas": 2}, handover.IS_SUPPORTED),
        ({"replicas": 2, "cert": "server.pem"}, False),
        ({"replicas": 2, "max_replicas": 3}, False),
    ],
)
def test_a_port_is_for_replicas_that_can_listen_themselves(named, listen):
    given = {"state_dir": "served", "token": 16 * "x", "port": 8700, **named}
    if listen:
        assert ServerArgs(**given).port == 8700
    else:
        with pytest.raises(RequestError, match="port needs one replica, or a fixed number"):
            ServerArgs(**given)


@pytest.mark.skipif(not handover.IS_SUPPORTED, reason="ports are shared on Linux only")
def test_two_servers_that_start_at_the_same_time_do_not_share_a_port(monkeypatch):
    monkeypatch.setattr(http_server, "PORT_TIMEOUT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = ServerAddress("127.0.0.1", free.getsockname()[1])
        with pytest.raises(RequestError, match=f"Port {where.port} cannot be opened"):
            _reserve(where)
    with _reserve(where), pytest.raises(RequestError, match=f"Port {where.port} cannot be opened"):
        _reserve(where)
    _reserve(where).close()


def test_the_unit_starts_and_resumes_a_device():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read_string((FOLDER / "driftlab-device.service").read_text(encoding="utf-8"))
    shell, flag, script = shlex.split(unit["Service"]["ExecStart"])
    assert (shell, flag) == ("/bin/sh", "-c")
    group, values = get_command(build_app()), dict(shlex.split(word)[0].split("=", 1) for word in environment(unit))
    commands = re.findall(r"exec /opt/driftlab/bin/driftlab ([^;']+)", script)
    assert [words.split()[:2] for words in commands] == [["device", "--resume"], ["device", "--server"]]
    for words in commands:
        filled = [re.sub(r"\$(\w+)", lambda name: values[name[1]], word) for word in shlex.split(words)]
        group.commands["device"].make_context("device", filled[1:])


def environment(unit):
    return shlex.split(unit["Service"]["Environment"])


def test_the_dashboard_queries_exactly_the_metrics_of_a_server():
    dashboard = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    meters = ServerMetrics(SimpleNamespace(sessions={"a": Session()}, max_sessions=64))
    meters.count_reply(200)
    counted = set(re.findall(r"^(driftlab_\w+)", meters.text().decode(), re.MULTILINE))
    queried = {name for panel in dashboard["panels"] for one in panel["targets"] for name in names(one["expr"])}
    assert queried <= counted
    families = {re.sub(r"_(total|bucket|sum|count|created)$", "", name) for name in counted}
    assert families == {re.sub(r"_(total|bucket)$", "", name) for name in queried}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def names(expression):
    return re.findall(r"driftlab_\w+", expression)


class Session:
    """A session with the attributes that the metrics read."""

    fault = ""

    def status(self):
        numbers = dict.fromkeys(("version", "waiting", "score", "uploads", "up_bytes", "down_bytes"), 1)
        return {"system": "ams", "workload": "streets/running", **numbers}


def test_prometheus_scrapes_the_metrics_route_with_a_token():
    (job,) = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    assert ("GET", job["metrics_path"]) in {(method, path) for method, path, _ in ROUTES}
    assert job["authorization"]["type"] == "Bearer"


def test_the_kuberay_service_has_the_same_application(config):
    service, claim = yaml.safe_load_all((FOLDER / "rayservice.yaml").read_text(encoding="utf-8"))
    deployed = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    assert deployed.applications[0].import_path == config.applications[0].import_path
    jsonschema.validate(service["spec"]["rayClusterConfig"], CLUSTER)
    pod = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    assert Path(deployed.applications[0].args["state_dir"]).parent == Path(container["volumeMounts"][0]["mountPath"])
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["env"][0]["name"] == TOKEN_VARIABLE
    image, version = container["image"], service["spec"]["rayClusterConfig"]["rayVersion"]
    job = (resources.files("driftlab.actors") / "deploy/rayjob.yaml").read_text(encoding="utf-8")
    assert f"image: {image}" in job and f'rayVersion: "{version}"' in job


def test_serve_options_have_the_certificate():
    where = ServerAddress("127.0.0.1", 1, "cert.pem", "key.pem")
    assert where.url.startswith("https://")
    assert HTTPOptions(**http_options(where)).ssl_certfile == "cert.pem"
    assert HTTPOptions(**http_options(ServerAddress("127.0.0.1", 1))).ssl_certfile is None
