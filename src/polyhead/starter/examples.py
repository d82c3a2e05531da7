"""The example recipes that come with the package, and the text of those that have their own."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from polyhead.errors import UserError, unknown
from polyhead.places import put

_PACKAGE = Path(__file__).parents[1]


def example_directory() -> Path:
    """The directory of the recipes: in an installed package its own, in a clone that of the project."""
    installed = _PACKAGE / "recipes"
    return installed if installed.is_dir() else _PACKAGE.parents[1] / "recipes"


def list_examples() -> dict[str, str]:
    """The name of each example and the beginning of the comment at its head, which says what it learns."""
    titles = {}
    for path in sorted(example_directory().glob("*.yaml")):
        (head,) = re.findall(r"\A(?:# .*\n)+", path.read_text(encoding="utf-8"))
        first = re.split(r"[.:;] |\.$", head.replace("# ", "").replace("\n", " "))[0]
        titles[path.stem] = re.sub(r" \([^)]*\)$", "", first.strip())
    return titles


def read_example(name: str, root: Path | None = None) -> str:
    """The text of a recipe. ``root`` is where its own text lies, if it has some; by default in the package."""
    if name not in (names := list_examples()):
        raise unknown("example", name, names)
    text = (example_directory() / f"{name}.yaml").read_text(encoding="utf-8")
    return text.replace(
        f"root: recipes/{name}\n", f"root: {json.dumps(str(root or example_directory() / name))}\n"
    )


def write_example(name: str, output: Path) -> Path | None:
    """Write a recipe and, to a directory beside it, its own text if it has some; returns that directory."""
    text, corpus = read_example(name, output.parent / name), example_directory() / name
    if not corpus.is_dir():
        put(output, text.encode())
        return None
    copy = output.parent / name
    if copy.exists():
        raise UserError(
            f"{copy} exists already, where the text of the example goes; move it, or choose another --output"
        )
    shutil.copytree(corpus, copy)
    put(output, text.encode())
    return copy
