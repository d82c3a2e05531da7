"""Denoising encoder-decoders compared: the same damage to the same texts for every design."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from polyhead.analysis.recovered import Recovered
from polyhead.compare.measure import counted
from polyhead.compare.significance import Floats
from polyhead.compare.tasks import recovering
from polyhead.compare.tasks.base import COMPARED, Found, Piece, Words
from polyhead.compare.tasks.translation import empty_source, piece
from polyhead.data.collate import Batch
from polyhead.data.token_store import TokenStore
from polyhead.models import Seq2Seq
from polyhead.nn.kv import Memory
from polyhead.nn.place import beside
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.train.tasks.denoising import Denoising
from polyhead.train.tasks.plain_text import text_of


@COMPARED.register("denoising")
class Denoisers:
    """A unit is a text of ``data.max_len`` tokens at most."""

    measures = recovering.MEASURES
    words = Words("texts", "of a forward pass, encoder included, for each token to be written")

    def labels(self, recipe: Recipe) -> tuple[str, ...]:
        """There are no classes."""
        return ()

    def tokens_per_step(self, task: Denoising) -> float:
        """Those to be written."""
        return counted(task)

    def typical(self, task: Denoising) -> Piece:
        """A validation batch of the median length."""
        batches = (batch for _, batch in task.measured(task.valid))
        found: Batch = recovering.middling(batches, lambda batch: batch.source.size(1))
        return piece(found)

    def pieces(self, task: Denoising) -> Iterator[Piece]:
        """The validation text with its damage."""
        return (piece(batch) for _, batch in task.measured(task.valid))

    def quality(self, run: Run, recipe: Recipe, task: Denoising) -> tuple[Found, Found]:
        """Loss of the validation text, accuracy of the test text."""
        model = run.model
        assert isinstance(model, Seq2Seq)

        def read(batch: Batch) -> Tensor:
            here = beside(model, batch)
            return model.features(here.source, here.target, here.source_pos)

        def told(store: TokenStore) -> list[Recovered]:
            return recovering.by_unit(task.measured(store), read, model.head)

        test = None
        if recipe.data.test:
            cache = recipe.data.cache or recipe.out / "data"
            test = told(TokenStore.open_or_build(text_of(recipe, "test"), run.tokenizer, cache))
        return recovering.quality(told(task.valid), test)

    def statistics(self, kept: Found, base: Recipe) -> dict[str, Floats]:
        """Text by text."""
        return recovering.statistics(kept)

    def decode_speed(self, run: Run, recipe: Recipe) -> None:
        """What it shall write is given."""

    @torch.inference_mode()
    def memory(self, run: Run) -> list[Memory]:
        """Of a source without a word."""
        return empty_source(run)
