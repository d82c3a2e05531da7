"""What tasks have in common whose rows predict the token after each."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.analysis.recovered import Recovered, recovered
from polyhead.data.rows import Rows
from polyhead.errors import at
from polyhead.generate.settings import ends_of
from polyhead.models import CausalLM, Ensemble
from polyhead.nn.loss import IGNORED, Loss, cross_entropy
from polyhead.nn.place import beside
from polyhead.recipe import Recipe
from polyhead.registry import CHAT
from polyhead.text.chat.tokens import check_fits
from polyhead.text.form.form import form_of
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.tasks import writing
from polyhead.train.tasks.base import Scores


def check_decoding(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """What texts would be refused for when all is learned is refused before."""
    with at("generation.ends"):
        ends = ends_of(recipe.generation, tokenizer)
    with at("generation.form"):
        form_of(recipe.generation.form, tokenizer, ends)
    if recipe.generation.chat:
        with at("generation.chat"):
            check_fits(CHAT.build(recipe.generation.chat), tokenizer)
    writing.check_cache(recipe, tokenizer)


def count(batch: Rows) -> int:
    """Labels that count."""
    return int((batch.labels >= 0).sum())


def features(model: CausalLM | Ensemble, batch: Rows) -> Tensor:
    """What the head reads: (B, T, C)."""
    # padding on the right is after all that a causal decoder sees, so most need not be told of it
    told = batch.documents or model.counts_tokens
    return model.features(batch.tokens, batch.pos if told else None)


def loss(model: nn.Module, batch: Rows, smoothing: float = 0.0) -> Loss:
    """Cross-entropy as sums."""
    assert isinstance(model, CausalLM)
    batch = beside(model, batch)
    return cross_entropy(features(model, batch), model.head, batch.labels, smoothing)


def measured(model: nn.Module, batch: Rows) -> Recovered:
    """The same without smoothing, of one model or of several together."""
    assert isinstance(model, CausalLM | Ensemble)
    batch = beside(model, batch)
    return recovered(features(model, batch), model.head, batch.labels)


def scores(model: nn.Module, batch: Rows) -> Scores:
    """Of every token that has a label."""
    assert isinstance(model, CausalLM)
    batch = beside(model, batch)
    asked = batch.labels != IGNORED
    hidden = features(model, batch)[asked]
    return Scores(model.head(hidden), batch.labels[asked], hidden)
