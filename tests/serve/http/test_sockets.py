"""Tests of serve/http/sockets.py."""

from __future__ import annotations

import os
import socket

import pytest


@pytest.mark.acceptance("F2")
def test_the_process_listens_on_one_port_and_no_more(speaker):
    import psutil

    own = [c for c in psutil.Process(os.getpid()).net_connections() if c.status == psutil.CONN_LISTEN]
    ports = [c.laddr.port for c in own]
    assert ports.count(speaker.sock.getsockname()[1]) == 1
    assert all(c.laddr.ip == "127.0.0.1" for c in own)


def test_small_pieces_are_sent_at_once(speaker):
    """Else the second piece of an answer waits 40 ms for the client's acknowledgement of the first."""
    speaker.ask("/health")
    for connection in speaker.server.server_state.connections:
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert speaker.server.server_state.connections
