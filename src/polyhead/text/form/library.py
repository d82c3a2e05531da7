"""The library that runs grammars; all else here works without it."""

from __future__ import annotations

import importlib
from typing import Any

from polyhead.core.extras import install_command
from polyhead.errors import UserError


def llguidance() -> Any:
    """The library, or a UserError that says how to get it."""
    try:
        return importlib.import_module("llguidance")
    except ModuleNotFoundError:
        raise UserError(f"a form needs llguidance: {install_command('form')}") from None
