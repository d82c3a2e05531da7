"""Marks of one validation text during training, for the page of ``polyhead explain``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.explain.inputs import choose_text, read_inputs
from polyhead.explain.marks import drop_marks, write_mark
from polyhead.run.run import Run
from polyhead.run.run_examples import MAX_KEPT_EXAMPLES
from polyhead.train.validation_examples import read_validation_texts


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
