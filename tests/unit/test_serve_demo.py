"""The demo device on the server's computer."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from driftlab.serve_apps.demo import DemoDevice


def test_a_demo_device_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    start, code = subprocess.Popen, "import time; time.sleep(60)"
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: start([sys.executable, "-c", code], **options))
    demo = DemoDevice()
    for _ in range(2):
        assert demo.start("http://127.0.0.1:9", "token", 30.0)
        demo._process.kill()  # it ends without `stop`
        demo._process.wait()
    assert demo.start("http://127.0.0.1:9", "token", 30.0)
    assert len([*tmp_path.iterdir()]) == 1
    assert demo.stop() is False
    assert [*tmp_path.iterdir()] == []
