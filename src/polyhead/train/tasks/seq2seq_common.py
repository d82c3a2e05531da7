"""Loss and checks shared by tasks that train an encoder-decoder with teacher forcing."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.cache.factory import make_cache
from polyhead.config.recipe import Recipe
from polyhead.core.errors import prefix_errors
from polyhead.cost.decoding import cache_shape
from polyhead.data.batching.collate import PairBatch
from polyhead.generation.settings import eos_ids_for
from polyhead.models import Ensemble, Seq2Seq
from polyhead.nn.device import to_model_device
from polyhead.nn.loss import Loss, cross_entropy, labeled_rows, select_labels
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.tasks.base import TaskLogits


def seq2seq_features(model: Seq2Seq | Ensemble, batch: PairBatch) -> Tensor:
    """Features that the LM head reads: (B, T, C)."""
    # causal attention never reaches padding on the right, so most models need no padding mask
    needs_pos = model.needs_padding_mask or batch.shard_pos is not None
    target_pos = batch.target_pos if needs_pos else None
    return model.features(batch.source, batch.target, batch.source_pos, target_pos)


def seq2seq_loss(model: nn.Module, batch: PairBatch, smoothing: float) -> Loss:
    """Label-smoothed cross-entropy, as a sum over labels."""
    assert isinstance(model, Seq2Seq)
    batch = to_model_device(model, batch)
    return cross_entropy(seq2seq_features(model, batch), model.head, batch.labels, smoothing)


def seq2seq_logits(model: nn.Module, batch: PairBatch) -> TaskLogits:
    """Logits of every target token."""
    assert isinstance(model, Seq2Seq)
    batch = to_model_device(model, batch)
    hidden = seq2seq_features(model, batch).flatten(0, 1).index_select(0, labeled_rows(batch.labels))
    return TaskLogits(model.head(hidden), select_labels(batch.labels), hidden)


def check_seq2seq_decoding(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Check the generation settings before training, so that generation cannot fail afterwards."""
    with prefix_errors("generation.bad_words"):
        for token in recipe.generation.bad_words:
            tokenizer.token_to_id(token)
    with prefix_errors("generation.stop_tokens"):
        eos_ids_for(recipe.generation, tokenizer.target_tokenizer)
    check_cache(recipe, tokenizer)


def check_cache(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Raise a UserError if ``generation.cache`` does not fit the model."""
    if recipe.generation.cache:
        config = recipe.model.with_vocabulary(tokenizer.vocab_size)
        with prefix_errors("generation.cache"):
            make_cache(recipe.generation.cache, cache_shape(config), 1, config.max_len)
