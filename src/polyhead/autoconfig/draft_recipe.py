"""From text files to a checked recipe: the code of ``polyhead init`` and ``ph.init_recipe``.

The example recipes of the package, with their bundled corpora, are here too.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from polyhead.autoconfig.inspect_data import group_corpora, inspect_corpora, inspect_data
from polyhead.autoconfig.propose_recipe import propose_recipe, render_recipe
from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe, is_recipe
from polyhead.core.errors import UserError, unknown_name_error
from polyhead.core.i18n import tr
from polyhead.core.output_paths import write_atomic
from polyhead.core.registry import TASK
from polyhead.export.targets import FORMAT_NAMES, describe_targets, find_recipe_obstacles
from polyhead.run.recipe import validate_recipe
from polyhead.run.recipe_tokenizer import make_tokenizer
from polyhead.tokenizers.files import FILE
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.tokenizers.unknown_tokens import count_unknown
from polyhead.train.tasks.base import TaskFactory

_MAX_TEXTS = 20_000  # texts of the sample
_MAX_CHARACTERS = 2_000_000  # of the sample
_FEW_CHARACTERS = 2.5  # per token, of a tokenizer that was made for other text
_MIN_CHARACTERS = 50_000  # of a text that 2,000 tokens can be learned from
_BYTE_KINDS = ("bpe", "byte")  # no text is unknown to them


def describe_tokens(recipe: Recipe) -> list[str]:
    """Notes on unknown tokens in the training text, and on words of many tokens, if there will be any.

    A tokenizer that the recipe trains is trained on a sample of the text; that of a local run is loaded.
    """
    section = recipe.tokenizer
    factory: TaskFactory = TASK.get(recipe.task.name)
    if recipe.init_from is not None:
        if not (Path(recipe.init_from.run) / FILE).is_file():
            return []
        tokenizer = Tokenizer.load(recipe.init_from.run)
    elif not section.file and (section.kind.name in _BYTE_KINDS or section.kind.options.get("byte_fallback")):
        return []
    else:
        tokenizer = make_tokenizer(recipe, lambda: _read_sample(factory, recipe))
    texts = [*_read_sample(factory, recipe)]
    unknown, suggestion = count_unknown(texts, tokenizer), []
    size = sum(map(len, texts))
    characters = size / max(1, sum(map(len, tokenizer.encode(texts))))
    can_grow = recipe.init_from is not None and section.extend is None and size >= _MIN_CHARACTERS
    if can_grow and characters < _FEW_CHARACTERS:
        suggestion = [
            tr(
                "the tokenizer of {run} has {characters:.1f} characters of this text per token; "
                "tokenizer.extend=2000 learns 2,000 more tokens from it",
                run=recipe.init_from and recipe.init_from.run,
                characters=characters,
            )
        ]
    if not unknown.unknown:
        return suggestion
    note = tr("training text: {counts}", counts=unknown.describe())
    return [note, *([unknown.describe_warning()] if unknown.is_frequent else []), *suggestion]


def _read_sample(factory: TaskFactory, recipe: Recipe) -> Iterator[str]:
    """Yield the first texts of the training split."""
    num_characters = 0
    for text in islice(factory.iter_texts(recipe), _MAX_TEXTS):
        yield text
        num_characters += len(text)
        if num_characters > _MAX_CHARACTERS:
            return


class RecipeDraft(NamedTuple):
    """A proposed recipe, its text with comments, and the notes to show to the user."""

    recipe: Recipe
    text: str
    notes: list[str]


def draft_recipe(
    files: Sequence[str],
    changes: Sequence[str],
    export_format: str | None = None,
    name: str = "mine.yaml",
    both_ways: bool = False,
) -> RecipeDraft:
    """Inspect the files and propose a recipe with the ``changes``.

    Its model can be exported to the format ``export_format``, if given. ``name`` is the file that the recipe
    is written to. With ``both_ways``, a translator learns both directions of each pair of files.
    """
    if not files:
        raise UserError("expected training files: polyhead init train.en train.de")
    for recipe_file in filter(is_recipe, files):
        command = f"polyhead train {shlex.quote(recipe_file)}"
        raise UserError(f"{recipe_file} is already a recipe; train it: {command}")
    if export_format is not None and export_format not in FORMAT_NAMES:
        raise unknown_name_error("format", export_format, FORMAT_NAMES)
    overrides = yaml_io.parse_overrides(list(changes), Recipe)
    data_keys = {keys[1]: value for keys, value in overrides if keys[0] == "data" and len(keys) == 2}
    if "train" in data_keys:
        raise UserError(f"data.train is set from the files, {', '.join(files)}: remove the key")
    task = next((value for keys, value in overrides if keys == ["task"]), None)
    corpora = group_corpora(files, both_ways) if task in (None, "translation") else []
    summary = inspect_corpora(corpora, data_keys) if corpora else inspect_data(files, data_keys, task)
    tree = propose_recipe(summary, {".".join(keys): value for keys, value in overrides}, export_format or "")
    for keys, value in overrides:
        yaml_io.assign(tree, keys, value, Recipe)
    recipe = validate_recipe(tree)
    by_character = (
        recipe.init_from is None and recipe.tokenizer.kind.name == "char" and not recipe.tokenizer.file
    )
    if by_character and ["tokenizer", "vocab_size"] not in [keys for keys, _ in overrides]:
        task_part: TaskFactory = TASK.get(recipe.task.name)
        section, texts = recipe.tokenizer, task_part.iter_texts(recipe)
        characters = train_tokenizer(texts, section.kind, sys.maxunicode, section.sentinels, recipe.data.tags)
        tree["tokenizer"]["vocab_size"] = characters.vocab_size
        section = section.model_copy(update={"vocab_size": characters.vocab_size})
        recipe = recipe.model_copy(update={"tokenizer": section})
    summary.notes += describe_tokens(recipe)
    if recipe.data.language_tags:
        languages = ", ".join(recipe.data.language_tags)
        summary.notes.append(
            tr("one model translates to {languages}: polyhead translate --target-lang", languages=languages)
        )
    if recipe.init_from is None:
        obstacles = find_recipe_obstacles(recipe)
        if export_format and obstacles[export_format]:
            formats = ", ".join(FORMAT_NAMES[name] for name, obstacle in obstacles.items() if not obstacle)
            raise UserError(
                f"{FORMAT_NAMES[export_format]} does not support this model: "
                f"{obstacles[export_format]}; supported: {formats or 'no other format'}"
            )
        summary.notes.append(describe_targets(obstacles))
    elif export_format:
        raise UserError(
            f"components for {FORMAT_NAMES[export_format]} are chosen for a new model, and this recipe "
            f"starts from {recipe.init_from.run}: remove the format"
        )
    return RecipeDraft(recipe, render_recipe(tree, summary, name), summary.notes)


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
