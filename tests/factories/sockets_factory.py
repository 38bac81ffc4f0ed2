"""Sockets of processes, and which of them other machines can reach."""

from __future__ import annotations

import contextlib
import random
import socket
from ipaddress import ip_address

import psutil

SYSTEM_RANDOM = random.SystemRandom()  # tests seed the usual generator


def free_ports(count):
    """List ports below those that the system chooses, so that no other process gets them meanwhile."""
    ports = SYSTEM_RANDOM.sample(range(20_000, 32_000), 100)
    return [port for port in ports if is_free(port)][:count]


def is_free(port):
    with contextlib.suppress(OSError), socket.socket() as tried:
        tried.bind(("", port))
        return True
    return False


def listening(processes):
    """List the names of processes and the addresses at which they listen."""
    return [
        (process.name(), bound.laddr)
        for process in processes
        for bound in process.net_connections("inet")
        if bound.status == psutil.CONN_LISTEN or (bound.type == socket.SOCK_DGRAM and bound.laddr)
    ]


def on_network(found):
    """List those that are not on the loopback interface."""
    return [(name, where) for name, where in found if not ip_address(where.ip.removeprefix("::ffff:")).is_loopback]
