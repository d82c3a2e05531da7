"""Parts of other packages, chosen by name: ``my_pkg.mine:Part``.

The package is imported from the Python path, then from the current directory. A name may come from the
config.json of a run that somebody else made, so there are two safeguards: modules inside a run directory are
never imported, and the part must take the positional parameters of its kind, by name.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from polyhead.core.errors import UserError, did_you_mean, format_value

LOADED_PLUGINS: set[str] = set()
"""Names of the plugins in use, to attribute errors to them."""


def load_plugin(name: str, positional: Sequence[str]) -> Any:
    """Load the class or function of that name; every problem is a UserError.

    ``positional`` lists the names of its positional parameters; empty if parts of the kind are not made by a
    call.
    """
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name):
        raise UserError("a component of another package is written package.module:Name")
    module_name, _, attribute = name.partition(":")
    module = _import_module(module_name)
    if not hasattr(module, attribute):
        raise UserError(f"{module_name} has no {attribute!r}{did_you_mean(attribute, vars(module))}")
    part = getattr(module, attribute)
    try:
        parameters = inspect.signature(part).parameters.values()
    except (TypeError, ValueError):
        raise UserError(f"{format_value(part)} is not a class or function written in Python") from None
    part_positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if positional and part_positional != list(positional):
        raise UserError(
            f"it takes ({', '.join(part_positional)}), but is called with ({', '.join(positional)}); "
            f"options come after a *, as in ({', '.join([*positional, '*', 'option=1'])})"
        )
    LOADED_PLUGINS.add(name)
    return part


def _import_module(name: str) -> ModuleType:
    """Import a module, one package after the other; each is checked before any of its code runs."""
    if name == "__main__" or name.partition(".")[0] in sys.stdlib_module_names:
        raise UserError(f"{name} is part of Python itself and has no components")
    with _cwd_on_path() as cwd:
        for step in accumulate(name.split("."), "{}.{}".format):  # a.b.c: a, a.b, a.b.c
            try:
                spec = find_spec(step)
            except (ModuleNotFoundError, ValueError):  # its parent is no package, or it is no module
                spec = None
            if spec is None:
                searched = f"the installed packages and {cwd}" if cwd else "the installed packages"
                raise UserError(f"no module {step!r} in {searched}")
            file = [spec.origin] if spec.has_location and spec.origin else []
            for path in [Path(path) for path in (*file, *(spec.submodule_search_locations or ()))]:
                if run := _enclosing_run(path):
                    raise UserError(
                        f"{step} is in the run directory {run}; code in a run directory is never executed"
                    )
            try:
                importlib.import_module(step)
            except Exception as error:  # the plugin's own code may raise anything
                raise UserError(f"{step} cannot be imported: {type(error).__name__}: {error}") from error
    return sys.modules[name]


@contextmanager
def _cwd_on_path() -> Iterator[Path | None]:
    """Append the current directory to sys.path, unless it is in a run directory; yields it or None."""
    cwd = Path.cwd()
    if _enclosing_run(cwd):
        yield None
        return
    added = str(cwd) not in sys.path
    if added:
        sys.path.append(str(cwd))
    importlib.invalidate_caches()
    try:
        yield cwd
    finally:
        if added:
            sys.path.remove(str(cwd))


def _enclosing_run(path: Path) -> Path | None:
    """The run directory that contains a path, with or without following symlinks; None if there is none."""
    absolute, real = path.absolute(), path.resolve()
    for parent in (absolute, *absolute.parents, real, *real.parents):
        config = parent / "config.json"
        try:
            if config.is_file() and json.loads(config.read_bytes())["model_type"] == "polyhead":
                return parent
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
    return None
