"""Parts of other packages, chosen by name: ``my_pkg.mine:Part``.

The package is imported from wherever Python finds packages, and failing that from the current directory. A name may come
from the config.json of a run that somebody else made, so two things are looked at: nothing that lies in a run directory
is ever imported, and what is called must take, by name, what a part of its kind is given.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from polyhead.errors import UserError, nearest, show

FOUND: set[str] = set()  # the names of those that are in use, for whoever asks whose a mistake may be


def find(name: str, given: Sequence[str]) -> Any:
    """The class or function of that name; all that can be wrong is a UserError.

    ``given`` is what it takes by position, by name; nothing where parts of the kind are not made by a call.
    """
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name):
        raise UserError("a part of another package is written package.module:Name")
    place, _, attribute = name.partition(":")
    module = _module(place)
    if not hasattr(module, attribute):
        raise UserError(f"{place} has no {attribute!r}{nearest(attribute, vars(module))}")
    part = getattr(module, attribute)
    try:
        parameters = inspect.signature(part).parameters.values()
    except (TypeError, ValueError):
        raise UserError(f"{show(part)} is no class or function written in Python") from None
    taken = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if given and taken != list(given):
        raise UserError(
            f"it takes ({', '.join(taken)}), but is given ({', '.join(given)}); options come after a *, as in "
            f"({', '.join([*given, '*', 'option=1'])})"
        )
    FOUND.add(name)
    return part


def _module(name: str) -> ModuleType:
    """Imported, one package after the other, each looked at before anything in it runs."""
    if name == "__main__" or name.partition(".")[0] in sys.stdlib_module_names:
        raise UserError(f"{name} is of Python itself and holds no parts")
    with _current_directory() as here:
        for step in _prefixes(name):
            try:
                spec = find_spec(step)
            except (ModuleNotFoundError, ValueError):  # what is above it is no package, or it is no module
                spec = None
            if spec is None:
                places = f"the installed packages and {here}" if here else "the installed packages"
                raise UserError(f"there is no module {step!r} in {places}")
            for path in _places(spec):
                if run := _run_around(path):
                    raise UserError(f"{step} lies in the run directory {run}, where nothing is ever executed")
            try:
                importlib.import_module(step)
            except Exception as error:  # whatever its author wrote
                raise UserError(f"{step} cannot be imported: {type(error).__name__}: {error}") from error
    return sys.modules[name]


def _prefixes(name: str) -> Iterator[str]:
    """``a.b.c`` -> a, a.b, a.b.c."""
    words = name.split(".")
    return (".".join(words[: i + 1]) for i in range(len(words)))


@contextmanager
def _current_directory() -> Iterator[Path | None]:
    """The last place where modules are looked for, unless it is in a run directory."""
    here = Path.cwd()
    if _run_around(here):
        yield None
        return
    added = str(here) not in sys.path
    if added:
        sys.path.append(str(here))
    importlib.invalidate_caches()
    try:
        yield here
    finally:
        if added:
            sys.path.remove(str(here))


def _places(spec: ModuleSpec) -> list[Path]:
    """The file of a module and the directories of a package."""
    file = [spec.origin] if spec.has_location and spec.origin else []
    return [Path(place) for place in (*file, *(spec.submodule_search_locations or ()))]


def _run_around(path: Path) -> Path | None:
    """The run directory that a path is in, links followed or not."""
    absolute, real = path.absolute(), path.resolve()
    for parent in (absolute, *absolute.parents, real, *real.parents):
        config = parent / "config.json"
        try:
            if config.is_file() and json.loads(config.read_bytes())["model_type"] == "polyhead":
                return parent
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
    return None
