"""The example recipes of the package, and their bundled corpora."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from polyhead.core.errors import UserError, unknown_name_error
from polyhead.core.output_paths import write_atomic

_PACKAGE = Path(__file__).parents[1]


def example_directory() -> Path:
    """The directory of the recipes: in the package if installed, in the repository in a clone."""
    installed = _PACKAGE / "recipes"
    return installed if installed.is_dir() else _PACKAGE.parents[1] / "recipes"


def list_examples() -> dict[str, str]:
    """{name: title} of the examples; the title is the start of the comment at the top of the recipe."""
    titles = {}
    for path in sorted(example_directory().glob("*.yaml")):
        (head,) = re.findall(r"\A(?:# .*\n)+", path.read_text(encoding="utf-8"))
        first = re.split(r"[.:;] |\.$", head.replace("# ", "").replace("\n", " "))[0]
        titles[path.stem] = re.sub(r" \([^()]*\)$", "", first.strip())
    return titles


def read_example(name: str, root: Path | None = None) -> str:
    """The text of a recipe; ``root`` is the directory of its corpus, by default that of the package."""
    if name not in (names := list_examples()):
        raise unknown_name_error("example", name, names)
    text = (example_directory() / f"{name}.yaml").read_text(encoding="utf-8")
    return text.replace(
        f"root: recipes/{name}\n", f"root: {json.dumps(str(root or example_directory() / name))}\n"
    )


def write_example(name: str, output: Path) -> Path | None:
    """Write a recipe and, if it has a corpus, copy that to a directory next to it; return that directory."""
    text, corpus = read_example(name, output.parent / name), example_directory() / name
    if not corpus.is_dir():
        write_atomic(output, text.encode())
        return None
    copy = output.parent / name
    if copy.exists():
        raise UserError(
            f"{copy} already exists, and the text of the example would be written there; move it, "
            "or choose another --output"
        )
    shutil.copytree(corpus, copy)
    write_atomic(output, text.encode())
    return copy
