"""A warning where a text is in the language that a translator writes, not in the one that it reads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from polyhead import hub
from polyhead.core.i18n import translate_message
from polyhead.data.languages import BY_WORDS, Language, describe_language, find_mistaken, sample_pairs
from polyhead.errors import UserError
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.train.tasks.translation import corpus_of

Languages = tuple[Language, Language]
LINES = 100  # of a text, that are looked at


class SwapCheck:
    """Looks at the first lines of a text, and warns once."""

    def __init__(self, run: Run, source_lang: str | None = None, target_lang: str | None = None) -> None:
        self.languages = learned_languages(run.recipe, source_lang or "", target_lang or "")
        self.sample: list[str] = []
        self.warned = False

    def read(self, texts: Sequence[str]) -> None:
        """Look at some more lines of the source, unless enough were seen."""
        if self.warned or len(self.sample) >= LINES:
            return
        self.sample += texts[: LINES - len(self.sample)]
        self.warned = warn_of_swap(self.sample, *self.languages)

    def read_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Look at both sides; what is said of the target is worth a line only if the source is right."""
        self.read(sources)
        if not self.warned:
            source, target = self.languages
            self.warned = warn_of_swap(targets[:LINES], target, source, "target")


def warn_of_swap(texts: Sequence[str], own: Language, other: Language, side: str = "source") -> bool:
    """Warn if the texts of one side are in the language of the other; returns whether they are."""
    why = find_mistaken(texts, own, other)
    if why:
        found = f"has the {why} of the other side" if why == BY_WORDS else f"is in {why}"
        names = [own.name, other.name] if side == "source" else [other.name, own.name]
        model = (
            f"; this model translates {names[0]} to {names[1]}" if all(names) and len({*names}) > 1 else ""
        )
        what = "text" if side == "source" else "reference"
        message = f"the {what} {found}{model}: did you swap the files?"
        print(f"polyhead: {translate_message(message)}", file=sys.stderr)
    return bool(why)


def learned_languages(recipe: Recipe | None, source_lang: str = "", target_lang: str = "") -> Languages:
    """The languages of a translator: by the training text if that is still there, else by their codes."""
    if recipe is None or recipe.task.name != "translation":
        return describe_language([], source_lang), describe_language([], target_lang)
    data = recipe.data
    codes = source_lang or data.source_lang, target_lang or data.target_lang
    texts: tuple[list[str], list[str]] = [], []
    if not (source_lang or target_lang) and not any(name.startswith(hub.PREFIX) for name in data.train):
        with suppress(UserError, OSError):  # the text of a run that was trained elsewhere
            texts = sample_pairs(corpus_of(recipe, "train"))
    return describe_language(texts[0], codes[0]), describe_language(texts[1], codes[1])
