"""Authentication: bearer API keys, stored as hashes and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path

from polyhead.core.atomic_io import read_linked_file
from polyhead.core.errors import UserError
from polyhead.serve.api_errors import ApiError

API_KEY_VARIABLE = "POLYHEAD_API_KEY"
_MAX_KEY_BYTES = 1 << 20  # of the file of keys
MIN_KEY_LENGTH = 16  # characters; shorter keys can be guessed


ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


def check_origins(origins: Sequence[str]) -> list[str]:
    """Return the allowed origins; a UserError for one that no browser sends."""
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise UserError(
                f"--allowed-origins {origin!r} is not an origin: expected a scheme and a host in lower case, "
                "such as http://localhost:3000, without a path; or * for all web pages"
            )
    return list(origins)


class ApiKeys:
    """The API keys of a service; without keys every client is admitted."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._hashes = [_hash_key(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def check_host_header(self, headers: Mapping[str, str]) -> None:
        """Without keys, admit only loopback Host headers; this prevents DNS rebinding."""
        host = parse_host(headers.get("host", ""))
        if not self._hashes and host and not is_loopback(host):
            message = "without an API key this service only answers requests to localhost and 127.0.0.1"
            raise ApiError(403, "wrong_host", message)

    def check(self, headers: Mapping[str, str]) -> None:
        """Reject a request without a valid key, if the service has keys."""
        if not self._hashes:
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        digest = _hash_key(key.strip().encode("latin-1", "replace"))
        # compare with all keys: the time must not depend on which one matches
        matches = [hmac.compare_digest(digest, key_hash) for key_hash in self._hashes]
        if kind.lower() != "bearer" or not any(matches):
            challenge = {"www-authenticate": "Bearer"}
            raise ApiError(
                401,
                "invalid_api_key",
                "expected: the header 'Authorization: Bearer KEY' with a key of this service",
                headers=challenge,
            )


def read_keys(file: Path | None, environment: MutableMapping[str, str]) -> ApiKeys:
    """Read keys from a file, one per line, and from POLYHEAD_API_KEY.

    The variable is removed from the environment, so that child processes do not inherit it.
    """
    try:
        content = b"" if file is None else read_linked_file(file, _MAX_KEY_BYTES)
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text: write one key per line") from None
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if file is not None and not keys:
        raise UserError(f"{file} has no keys: write one per line")
    keys += filter(None, [environment.pop(API_KEY_VARIABLE, "").strip()])
    for number, key in enumerate(keys, 1):
        if len(key) < MIN_KEY_LENGTH or not (key.isascii() and key.isprintable()) or " " in key:
            raise UserError(
                f"key {number} is too short or has invalid characters: expected {MIN_KEY_LENGTH} or "
                "more printable ASCII characters without spaces, e.g. what 'openssl rand -hex 24' "
                "prints"
            )
    return ApiKeys(keys)


def check_host(host: str, keys: ApiKeys) -> None:
    """Require keys if the service listens on an address that other machines can reach."""
    if not keys and not is_loopback(host):
        raise UserError(
            f"{host} is reachable from other machines: give --api-key-file or set "
            f"{API_KEY_VARIABLE}, or serve on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def parse_host(header: str) -> str:
    """Return the host name of a Host header, without its port."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def _hash_key(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
