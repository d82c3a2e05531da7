"""Warn if a text is in the target language of a translator instead of its source language."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.cli.line_io import print_warning
from polyhead.core.i18n import translate_message
from polyhead.data.readers.detect_language import BY_WORDS, Language, describe_language, detect_wrong_language
from polyhead.run.run import Run
from polyhead.run.run_examples import read_examples

LanguagePair = tuple[Language, Language]
NUM_SAMPLE_LINES = 100  # lines of a text that are checked


class SwapCheck:
    """Checks the first lines of a text and warns once."""

    def __init__(self, run: Run, source_lang: str | None = None, target_lang: str | None = None) -> None:
        self.languages = infer_languages(run, source_lang or "", target_lang or "")
        self.sample: list[str] = []
        self.has_warned = False

    def check_lines(self, texts: Sequence[str]) -> None:
        """Check further source lines, up to ``NUM_SAMPLE_LINES`` in total."""
        if self.has_warned or len(self.sample) >= NUM_SAMPLE_LINES:
            return
        self.sample += texts[: NUM_SAMPLE_LINES - len(self.sample)]
        self.has_warned = warn_of_swap(self.sample, *self.languages)

    def check_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Check both sides; the target is only checked if the source is right."""
        self.check_lines(sources)
        if not self.has_warned:
            source, target = self.languages
            self.has_warned = warn_of_swap(targets[:NUM_SAMPLE_LINES], target, source, "target")


def warn_of_swap(
    texts: Sequence[str], own_language: Language, other_language: Language, side: str = "source"
) -> bool:
    """Warn if the texts of one side are in the language of the other; return whether they are."""
    detected = detect_wrong_language(texts, own_language, other_language)
    if detected:
        finding = f"has the {detected} of the other side" if detected == BY_WORDS else f"is in {detected}"
        names = [own_language.name, other_language.name]
        if side == "target":
            names.reverse()
        model = (
            f"; this model translates {names[0]} to {names[1]}" if all(names) and len({*names}) > 1 else ""
        )
        kind = "text" if side == "source" else "reference"
        message = f"the {kind} {finding}{model}: did you swap the files?"
        print_warning(translate_message(message))
    return bool(detected)


def infer_languages(run: Run, source_lang: str = "", target_lang: str = "") -> LanguagePair:
    """Infer the languages of a translator from the examples in the run, else from its language codes."""
    if run.recipe is None or run.recipe.task.name != "translation":
        return describe_language([], source_lang), describe_language([], target_lang)
    data = run.recipe.data
    examples = [] if source_lang or target_lang else read_examples(run.directory)
    sources, targets = ([example[side] for example in examples] for side in (0, -1))
    return (
        describe_language(sources, source_lang or data.source_lang),
        describe_language(targets, target_lang or data.target_lang),
    )
