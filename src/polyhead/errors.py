"""What went wrong, said to a person: what came, what is allowed, the nearest right thing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake the user can mend. The command line prints the message alone and exits with 2."""


def unknown(what: str, name: object, allowed: Iterable[str]) -> UserError:
    """The error for a name that is not among those allowed, with the nearest one that is."""
    allowed = sorted(allowed)
    near = difflib.get_close_matches(str(name), allowed, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UserError(f"unknown {what} {name!r}{hint} Known: {', '.join(allowed) or 'none'}"
                     if hint else f"unknown {what} {name!r}; known: {', '.join(allowed) or 'none'}")
