"""Masked language models compared: hidden tokens, the same ones for every design."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from polyhead.analysis.recovered import Recovered
from polyhead.compare.measure import counted
from polyhead.compare.significance import Floats
from polyhead.compare.tasks import recovering
from polyhead.compare.tasks.base import COMPARED, Found, Piece, Words
from polyhead.data.token_store import TokenStore
from polyhead.models import MaskedLM
from polyhead.nn.loss import IGNORED
from polyhead.nn.place import beside
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.train.tasks.masked import Masked, MaskedLanguage
from polyhead.train.tasks.plain_text import text_of


@COMPARED.register("masked-lm")
class MaskedLanguages:
    """A unit is a row of ``data.max_len`` tokens."""

    measures = recovering.MEASURES
    words = Words("rows of text", "of a forward pass over a full row, for each token that is asked for")

    def labels(self, recipe: Recipe) -> tuple[str, ...]:
        """There are no classes."""
        return ()

    def tokens_per_step(self, task: MaskedLanguage) -> float:
        """Those asked for."""
        return counted(task)

    def typical(self, task: MaskedLanguage) -> Piece:
        """All full batches are alike."""
        return piece(task.batch(task.plan(0)[0]))

    def pieces(self, task: MaskedLanguage) -> Iterator[Piece]:
        """The validation text with its masks."""
        return (piece(batch) for _, batch in task.measured(task.valid))

    def quality(self, run: Run, recipe: Recipe, task: MaskedLanguage) -> tuple[Found, Found]:
        """Loss of the validation text, accuracy of the test text."""
        model = run.model
        assert isinstance(model, MaskedLM)

        def encoded(batch: Masked) -> Tensor:
            here = beside(model, batch)
            out: Tensor = model.encoder(here.tokens, here.pos)
            return out

        def told(store: TokenStore) -> list[Recovered]:
            return recovering.by_unit(
                task.measured(store), encoded, lambda x: model.head(model.transformed(x))
            )

        test = None
        if recipe.data.test:
            cache = recipe.data.cache or recipe.out / "data"
            test = told(TokenStore.open_or_build(text_of(recipe, "test"), run.tokenizer, cache))
        return recovering.quality(told(task.valid), test)

    def statistics(self, kept: Found, base: Recipe) -> dict[str, Floats]:
        """Row by row."""
        return recovering.statistics(kept)

    def decode_speed(self, run: Run, recipe: Recipe) -> None:
        """Nothing is decoded."""

    def memory(self, run: Run) -> None:
        """There is no decoder."""


def piece(batch: Masked) -> Piece:
    """A batch as it is measured: only what is asked for goes through the head."""
    asked = batch.labels != IGNORED
    real = {"encoder": None if batch.pos is None else batch.pos >= 0}
    return Piece(
        lambda model: model.transformed(model.encoder(batch.tokens, batch.pos)[asked]),
        int(asked.sum()),
        real,
    )
