"""Loss and checks shared by tasks that train a causal language model."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.chat.apply_template import check_vocabulary
from polyhead.config.recipe import Recipe
from polyhead.core.errors import prefix_errors
from polyhead.core.registry import CHAT
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.evaluate.token_accuracy import TokenLoss, token_losses
from polyhead.generation.settings import eos_ids_for
from polyhead.grammar.grammar_constraint import constraint_for
from polyhead.models import CausalLM, Ensemble
from polyhead.nn.device import to_model_device
from polyhead.nn.loss import Loss, cross_entropy, labeled_rows, select_labels
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.tasks import seq2seq_common
from polyhead.train.tasks.base import TaskLogits


def check_causal_lm_decoding(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Check the generation settings before training, so that generation cannot fail afterwards."""
    with prefix_errors("generation.stop_tokens"):
        ends = eos_ids_for(recipe.generation, tokenizer)
    with prefix_errors("generation.grammar"):
        constraint_for(recipe.generation.grammar, tokenizer, ends)
    if recipe.generation.chat:
        with prefix_errors("generation.chat"):
            check_vocabulary(CHAT.build(recipe.generation.chat), tokenizer)
    seq2seq_common.check_cache(recipe, tokenizer)


def count_causal_lm_labels(batch: TokenWindows) -> int:
    """Number of labels of a batch."""
    return int((batch.labels >= 0).sum())


def causal_lm_features(model: CausalLM | Ensemble, batch: TokenWindows) -> Tensor:
    """Features that the LM head reads: (B, T, C)."""
    # causal attention never reaches padding on the right, so most models need no padding mask
    needs_pos = batch.has_documents or (batch.pos is not None and model.needs_padding_mask)
    return model.features(batch.tokens, batch.pos if needs_pos else None)


def causal_lm_loss(model: nn.Module, batch: TokenWindows, smoothing: float = 0.0) -> Loss:
    """Cross-entropy, as a sum over labels."""
    assert isinstance(model, CausalLM)
    batch = to_model_device(model, batch)
    return cross_entropy(causal_lm_features(model, batch), model.head, batch.labels, smoothing)


def causal_lm_token_loss(model: nn.Module, batch: TokenWindows) -> TokenLoss:
    """The token losses without smoothing, of a model or an ensemble."""
    assert isinstance(model, CausalLM | Ensemble)
    batch = to_model_device(model, batch)
    return token_losses(causal_lm_features(model, batch), model.head, batch.labels)


def causal_lm_logits(model: nn.Module, batch: TokenWindows) -> TaskLogits:
    """Logits of every position with a label."""
    assert isinstance(model, CausalLM)
    batch = to_model_device(model, batch)
    hidden = causal_lm_features(model, batch).flatten(0, 1).index_select(0, labeled_rows(batch.labels))
    return TaskLogits(model.head(hidden), select_labels(batch.labels), hidden)
