"""Sockets of processes, and which of them other machines can reach."""

from __future__ import annotations

from ipaddress import ip_address
from socket import SOCK_DGRAM

import psutil


def listening(processes):
    """List the names of processes and the addresses at which they listen."""
    return [
        (process.name(), socket.laddr)
        for process in processes
        for socket in process.net_connections("inet")
        if socket.status == psutil.CONN_LISTEN or (socket.type == SOCK_DGRAM and socket.laddr)
    ]


def on_network(found):
    """List those that are not on the loopback interface."""
    return [(name, where) for name, where in found if not ip_address(where.ip.removeprefix("::ffff:")).is_loopback]
