"""Run a server without Ray: `python -m benchmarks.field.server PORT FOLDER [RATE]`.

With a rate, requests and wrong tokens are limited to that many per second instead of the usual ones.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from driftlab.serve_apps.deployment import TOKEN_VARIABLE
from driftlab.serve_apps.http_server import HttpServer, ServerAddress
from driftlab.serve_apps.quotas import Limits
from driftlab.serve_apps.routes import ServerApp
from driftlab.serve_apps.sessions import SessionRegistry


def main(port: str, folder: str, rate: str = "") -> None:
    limits = Limits(rate_limit=float(rate), wrong_tokens=float(rate)) if rate else Limits()
    registry = SessionRegistry(Path(folder), os.environ[TOKEN_VARIABLE], limits)
    HttpServer(ServerApp(lambda: registry), ServerAddress("127.0.0.1", int(port))).thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
