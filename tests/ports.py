"""Ports for the servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket


def free_ports(count):
    """Ports nobody has, below those that Linux gives to outgoing connections.

    A server binds its port some time after it was told, and any client of any test could have got it meanwhile.
    """
    candidates = random.SystemRandom().sample(range(10_000, _first_given_out()), 40 * count)
    with contextlib.ExitStack() as held:
        free = []
        for port in candidates:
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                free.append(port)
            if len(free) == count:
                return free
    raise RuntimeError(f"of {len(candidates)} ports tried, {len(free)} were free, and {count} are needed")


def free_port():
    return free_ports(1)[0]


def _first_given_out():
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as said:
            first = int(said.read().split()[0])
    except OSError:  # not Linux
        return 32768
    return first if first > 12_000 else 32768
