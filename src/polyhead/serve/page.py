"""The page at the root of the service."""

from __future__ import annotations


def page() -> bytes:
    """The whole document."""
    return b"<!DOCTYPE html><title>Polyhead</title>"


def policy() -> str:
    """What the page may do."""
    return "default-src 'none'"
