"""What tasks have in common whose decoder writes a target that is given as it learns."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.analysis.cost.decoding import cache_shape
from polyhead.cache.make import make_cache
from polyhead.data.collate import Batch
from polyhead.errors import at
from polyhead.generate.settings import ends_of
from polyhead.models import Ensemble, Seq2Seq
from polyhead.nn.loss import IGNORED, Loss, cross_entropy
from polyhead.nn.place import beside
from polyhead.recipe import Recipe
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.tasks.base import Scores


def features(model: Seq2Seq | Ensemble, batch: Batch) -> Tensor:
    """What the head reads: (B, T, C)."""
    # padding on the right is after all that a causal decoder sees, so most need not be told of it
    target_pos = batch.target_pos if model.counts_tokens else None
    return model.features(batch.source, batch.target, batch.source_pos, target_pos)


def loss(model: nn.Module, batch: Batch, smoothing: float) -> Loss:
    """Label-smoothed cross-entropy as sums."""
    assert isinstance(model, Seq2Seq)
    batch = beside(model, batch)
    return cross_entropy(features(model, batch), model.head, batch.labels, smoothing)


def scores(model: nn.Module, batch: Batch) -> Scores:
    """Of every token of the targets."""
    assert isinstance(model, Seq2Seq)
    batch = beside(model, batch)
    asked = batch.labels != IGNORED
    hidden = features(model, batch)[asked]
    return Scores(model.head(hidden), batch.labels[asked], hidden)


def check_decoding(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """What outputs would be refused for when all is learned is refused before."""
    with at("generation.forbidden"):
        for token in recipe.generation.forbidden:
            tokenizer.id_of(token)
    with at("generation.ends"):
        ends_of(recipe.generation, tokenizer.target)
    check_cache(recipe, tokenizer)


def check_cache(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """A cache that does not fit the model is a UserError."""
    if recipe.generation.cache:
        config = recipe.model.with_vocabulary(tokenizer.vocab_size)
        with at("generation.cache"):
            make_cache(recipe.generation.cache, cache_shape(config), 1, config.max_len)
