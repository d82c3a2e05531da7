"""Import of llguidance, which runs grammars and is optional."""

from __future__ import annotations

import importlib
from typing import Any

from polyhead.core.errors import UserError
from polyhead.core.extras import install_command


def import_llguidance(module: str = "") -> Any:
    """llguidance, or one of its modules; UserError with the install command if it is missing."""
    try:
        return importlib.import_module(f"llguidance.{module}" if module else "llguidance")
    except ModuleNotFoundError:
        raise UserError(f"a grammar needs llguidance: {install_command('grammar')}") from None
