import socket

import psutil
import pytest


@pytest.mark.acceptance("F2")
def test_service_listens_on_one_local_port(client):
    connections = psutil.Process().net_connections()
    listeners = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]
    assert [address.port for address in listeners].count(client.sock.getsockname()[1]) == 1
    assert all(address.ip == "127.0.0.1" for address in listeners)
    # Else the second piece of an answer waits 40 ms for the client's acknowledgement of the first.
    client.ask("/health")
    transports = [connection.transport for connection in client.server.server_state.connections]
    sockets = [transport.get_extra_info("socket") for transport in transports]
    assert sockets and all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in sockets)
