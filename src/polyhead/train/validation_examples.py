"""Validation texts that are kept in a run: as its examples, and one with marks during training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from polyhead.config.recipe import Recipe
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.data.readers.plain_text import read_text_lines
from polyhead.data.readers.preferences import get_prompt
from polyhead.explain.inputs import choose_text, read_inputs
from polyhead.explain.marks import drop_marks, write_mark
from polyhead.run.run import Run
from polyhead.run.run_examples import MAX_KEPT_EXAMPLES, TextExample, write_examples
from polyhead.train.tasks.chat import open_split_conversations
from polyhead.train.tasks.classification import open_split_labeled
from polyhead.train.tasks.common import open_split_text
from polyhead.train.tasks.embedding import open_split_pairs
from polyhead.train.tasks.preferences import open_split_preferences
from polyhead.train.tasks.translation import open_split_corpus


def save_validation_examples(recipe: Recipe) -> None:
    """Write the first validation texts into the run directory, if their files are still there."""
    with suppress(UserError, OSError):
        write_examples(recipe.out, read_validation_texts(recipe))


def read_validation_texts(recipe: Recipe) -> Iterator[TextExample]:
    """The texts of the validation split, in order."""
    return _READERS.get(recipe.task.name, _read_lines)(recipe)


def _read_pairs(recipe: Recipe) -> Iterator[TextExample]:
    return ((pair.source, pair.target) for pair in open_split_corpus(recipe, "valid").iter_pairs())


def _read_labeled(recipe: Recipe) -> Iterator[TextExample]:
    return (example.texts for example in open_split_labeled(recipe, "valid").iter_examples())


def _read_questions(recipe: Recipe) -> Iterator[TextExample]:
    for _, row in open_split_conversations(recipe, "valid").read():
        yield from [(message.content,) for message in row.messages if message.role == "user"][:1]


def _read_prompts(recipe: Recipe) -> Iterator[TextExample]:
    return ((get_prompt(row.answers[0]),) for _, row in open_split_preferences(recipe, "valid").read())


def _read_anchors(recipe: Recipe) -> Iterator[TextExample]:
    return ((pair.anchor,) for _, pair in open_split_pairs(recipe, "valid").read())


def _read_lines(recipe: Recipe) -> Iterator[TextExample]:
    lines = read_text_lines(open_split_text(recipe, "valid"))
    # a split of a file may begin in the middle of a line
    complete_lines = islice(lines, 0 if recipe.data.valid else 1, None)
    return ((line.strip(),) for line in complete_lines if not is_blank(line))


_READERS: dict[str, Callable[[Recipe], Iterator[TextExample]]] = {
    "translation": _read_pairs, "classification": _read_labeled, "multi-label": _read_labeled,
    "regression": _read_labeled, "token-classification": _read_labeled, "question-answering": _read_labeled,
    "chat": _read_questions, "dpo": _read_prompts, "kto": _read_prompts, "embedding": _read_anchors,
}  # fmt: skip


class LearningMarks:
    """Writes the marks of a training. The first error is reported and ends them, but not training.

    On resume, marks after the checkpoint's step are dropped, as they will be written again.
    """

    def __init__(self, run: Run, recipe: Recipe, from_step: int, info: Callable[[str], None]) -> None:
        self.run, self.recipe, self.info = run, recipe, info
        self.text: tuple[str, str | None] | None = None
        self.has_failed = False
        drop_marks(recipe.out, from_step)

    def take(self, step: int) -> None:
        """Write what the current weights make of the text."""
        if self.has_failed:
            return
        try:
            self.text = self.text or choose_marked_text(self.recipe, self.run)
            self.run.model.eval()  # the next step of training sets its own mode
            write_mark(self.run, *self.text, step, self.recipe.out)
        except Exception as error:  # any error: marks must not end training
            self.has_failed = True
            self.info(tr("warning: no more marks of train.explain_every: {error}", error=error))


def choose_marked_text(recipe: Recipe, run: Run) -> tuple[str, str | None]:
    """The validation text that ``polyhead explain`` takes by default, else the first that the model can read.

    Its target is the one in the validation text; what has none is restored from itself.
    """
    examples = list(islice(read_validation_texts(recipe), MAX_KEPT_EXAMPLES))
    is_pair, (first, second) = run.kind == "encoder-decoder", choose_text(examples, run.kind)
    default = [one for one in examples if one[0] == first] if is_pair else [(first, second)]
    for text, *targets in (*default, *examples):
        target = targets[0] if targets else text if is_pair else None
        with suppress(UserError):
            read_inputs(run, text, target)
            return text, target
    raise UserError("no validation text is short enough for the model")
