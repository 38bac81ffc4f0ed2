"""The files that deploy a server and a device are what Ray Serve and systemd read."""

from __future__ import annotations

import configparser
import importlib
import re
import shlex
from importlib import resources

import pytest
import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema
from typer.main import get_command

from driftlab.cli.app import build_app
from driftlab.serve_apps.deployment import MIN_TOKEN, TOKEN_VARIABLE, ServerArgs

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
