"""Listening sockets."""

from __future__ import annotations

import errno
import socket

from polyhead.core.errors import UserError


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise a UserError with the reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given explicitly
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(2048)
    except (OSError, OverflowError) as error:
        sock.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use; choose another one, or 0 for any free port") from None
        raise UserError(f"cannot listen on {host}:{port}: {error}") from None
    return sock


def get_url(sock: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
