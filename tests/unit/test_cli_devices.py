"""`driftlab devices` and the options of `driftlab serve` that concern tokens and TLS."""

from __future__ import annotations

import pytest
from command_factory import run_command
from served_factory import ASKED, TOKEN, served

from driftlab.errors import RequestError
from driftlab.serve_apps.tokens import enrolment_of


def driftlab(*words):
    return run_command([*map(str, words)])


def test_devices_are_listed_and_revoked(tmp_path):
    with served(tmp_path) as server:
        opened = server.client(enrolment_of(TOKEN)).ask_json("POST", "/sessions", ASKED)
        client, path = server.client(opened["token"]), f"/sessions/{opened['id']}"
        client.ask("GET", path)
        common = ("--server", server.url, "--token", TOKEN)
        line = next(one for one in driftlab("devices", "list", *common).output.splitlines() if opened["id"] in one)
        assert "127.0.0.1" in line
        assert line.split()[-1] == "open"
        for unknown in ("a b", "é", "../x", "?"):
            with pytest.raises(RequestError, match="404"):
                raise driftlab("devices", "revoke", unknown, *common).exception
        assert driftlab("devices", "revoke", opened["id"], *common).output == f"revoked {opened['id']}\n"
        with pytest.raises(RequestError, match="401"):
            client.ask("GET", path)
        document = driftlab("devices", "list", "--json", *common).output
        assert "streets/running" in document
        assert '"revoked": true' in document
        refused = driftlab("devices", "list", "--server", server.url, "--token", opened["token"])
        assert isinstance(refused.exception, RequestError)
    with pytest.raises(RequestError, match="--token"):
        raise driftlab("devices", "list", "--server", server.url).exception


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::"])
def test_another_interface_requires_tls_or_its_refusal_by_name(host, monkeypatch):
    monkeypatch.setattr("driftlab.serve_apps.deployment.serving", lambda args, where, address: 1 / 0)
    with pytest.raises(RequestError, match="--without-tls"):
        raise driftlab("serve", "--host", host).exception
    assert isinstance(driftlab("serve", "--host", host, "--without-tls").exception, ZeroDivisionError)
    assert isinstance(driftlab("serve").exception, ZeroDivisionError)
