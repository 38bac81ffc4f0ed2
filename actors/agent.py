"""A stand-in for the dashboard agent of Ray, for clusters without a dashboard.

Ray waits until its agent has written the ports on which it listens, and ends with it. This program writes that it
listens on none, and ends with Ray. The agent itself takes a second of processor time and 60 MB on each computer.
"""

from __future__ import annotations

import os
import sys
import time

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
NONE = "-1"  # an agent without its packages writes the same
LOOK_S = 0.5


def say_no_ports(folder: str, node: str) -> None:
    """Write the files that Ray waits for, each of them whole."""
    for name in PORTS:
        file = os.path.join(folder, f"{name}_{node}")
        with open(f"{file}.draft", "w", encoding="ascii") as draft:
            draft.write(NONE)
        os.replace(f"{file}.draft", file)


if __name__ == "__main__":
    raylet = os.getppid()
    given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
    say_no_ports(given["session-dir"], given["node-id"])
    while os.getppid() == raylet:
        time.sleep(LOOK_S)
