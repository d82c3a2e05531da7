"""Where a service listens."""

from __future__ import annotations

import errno
import socket

from polyhead.errors import UserError


def listen(host: str, port: int) -> socket.socket:
    """A socket at that address; a UserError says why there can be none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # only where it says TCP does asyncio send small pieces at once
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(2048)
    except (OSError, OverflowError) as error:
        sock.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise UserError(f"port {port} is taken; give another one, or 0 for any free one") from None
        raise UserError(f"cannot listen on {host}:{port}: {error}") from None
    return sock


def address(sock: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
