"""The library that runs grammars; all else here works without it."""

from __future__ import annotations

import importlib
from typing import Any

from polyhead.errors import UserError


def llguidance() -> Any:
    """The library, or a UserError that says how to get it."""
    try:
        return importlib.import_module("llguidance")
    except ModuleNotFoundError:
        raise UserError("a form needs llguidance: pip install 'polyhead[form]'") from None
