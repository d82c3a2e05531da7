"""Who may ask: bearer keys, kept as hashes, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

from polyhead.errors import UserError
from polyhead.serve.refusal import Refusal

VARIABLE = "POLYHEAD_API_KEY"
SHORTEST = 16  # characters; what is shorter can be guessed


class Keys:
    """The keys of a service; without any, everybody who can reach it may ask."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._hashes = [_hash(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse a request that does not carry one of the keys."""
        if not self._hashes:
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        came = _hash(key.strip().encode("latin-1", "replace"))
        # all are compared, so that time does not tell which one was near
        known = [hmac.compare_digest(came, own) for own in self._hashes]
        if kind.lower() != "bearer" or not any(known):
            told = {"www-authenticate": "Bearer"}
            raise Refusal(
                401,
                "invalid_api_key",
                "wanted: the header 'Authorization: Bearer KEY' with a key of this service",
                headers=told,
            )


def read_keys(file: Path | None, environment: MutableMapping[str, str]) -> Keys:
    """The keys of a file, one a line, and that of POLYHEAD_API_KEY, which no child process is to inherit."""
    try:
        lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{file} is not text in UTF-8: write one key a line") from None
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if file is not None and not keys:
        raise UserError(f"{file} holds no key: write one a line")
    keys += filter(None, [environment.pop(VARIABLE, "").strip()])
    for number, key in enumerate(keys, 1):
        if len(key) < SHORTEST or not (key.isascii() and key.isprintable()) or " " in key:
            raise UserError(
                f"key {number} is too short or holds odd characters: wanted {SHORTEST} or more of ASCII without blanks, e.g. what 'openssl rand -hex 24' prints"
            )
    return Keys(keys)


def check_host(host: str, keys: Keys) -> None:
    """A service that others can reach must ask for a key."""
    if not keys and not is_loopback(host):
        raise UserError(
            f"{host} can be reached by others: give --api-key-file or set {VARIABLE}, or serve on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def host_of(header: str) -> str:
    """The name in a Host header, without its port."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def environment() -> MutableMapping[str, str]:
    """Where the key may stand."""
    return os.environ


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
