"""Log-probabilities of given texts: of targets after their sources, or of texts under a language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.core.errors import UserError
from polyhead.data.batching.length_bucketing import plan_eval_batches
from polyhead.data.stores.build_cache import IdArray
from polyhead.evaluate.encode_batches import limit_batch_tokens
from polyhead.evaluate.perplexity import loss_to_perplexity
from polyhead.generation.decoding.sampler import get_top_logprobs
from polyhead.generation.engine.request import pad_rows, require_finite, to_host
from polyhead.generation.prompt_template import PromptTemplate
from polyhead.generation.text_output import TokenLogprobs
from polyhead.models import CausalLM, Seq2Seq
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.special_tokens import Seq2SeqTemplate
from polyhead.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")
S = TypeVar("S")
SCORE_BATCH_TOKENS = 2048  # maximum tokens of a batch of scored texts, per side


class PairScore(NamedTuple):
    """Log-probability of a translation given its source, or of a single text."""

    log_prob: float  # natural logarithm, end of sentence included
    tokens: int  # number of tokens that log_prob sums over


def score_inputs(
    model: CausalLM | Seq2Seq,
    tokenizer: Tokenizer,
    template: PromptTemplate,
    sources: Sequence[str],
    targets: Sequence[str] | None,
    batch_tokens: int,
) -> list[PairScore]:
    """Score texts or pairs; a UserError if a language model has targets, or an encoder-decoder has none."""
    is_decoder = model.config.kind == "decoder"
    if is_decoder and targets is not None:
        raise UserError("this run is a language model: run.score(texts) takes no targets")
    if not is_decoder and targets is None:
        raise UserError("this run is an encoder-decoder: run.score(sources, targets) requires targets")
    if targets is None:
        return score_texts(cast(CausalLM, model), tokenizer, template, sources, batch_tokens)
    return score_pairs(cast(Seq2Seq, model), tokenizer, sources, targets, batch_tokens)


def find_overlong_inputs(
    model: CausalLM | Seq2Seq,
    tokenizer: Tokenizer,
    template: PromptTemplate,
    sources: Sequence[str],
    targets: Sequence[str] | None,
) -> dict[int, int]:
    """Number of tokens of each text or pair that is too long to be scored, by its index."""
    if targets is None:
        lengths = _text_lengths(_text_rows(tokenizer, template, sources))
    else:
        pairs = zip(tokenizer.encode(sources), tokenizer.target_tokenizer.encode(targets), strict=True)
        lengths = np.maximum(*_pair_lengths(with_languages(tokenizer), list(pairs)))
    return {i: int(lengths[i]) for i in np.flatnonzero(lengths > model.config.max_len).tolist()}


def perplexity_of_scores(scores: Sequence[PairScore]) -> float:
    """exp of the mean negative log-likelihood of their tokens; a UserError if there are none."""
    tokens = sum(score.tokens for score in scores)
    if not tokens:
        raise UserError("perplexity requires at least one token; the texts have none")
    return loss_to_perplexity(-sum(score.log_prob for score in scores) / tokens)


@torch.inference_mode()
def score_pairs(
    model: Seq2Seq, t: Tokenizer, sources: Sequence[str], targets: Sequence[str], batch_tokens: int
) -> list[PairScore]:
    """log p(target | source) of each pair, teacher forced."""
    encoded = t.encode(sources), t.target_tokenizer.encode(targets)
    if len(sources) != len(targets):
        raise UserError(f"{len(sources)} sources and {len(targets)} targets: expected equally many")
    pairs = list(zip(*encoded, strict=True))
    template = with_languages(t)
    lengths = _pair_lengths(template, pairs)
    _check_lengths("pair", np.maximum(*lengths), model.config.max_len)
    device = next(model.parameters()).device

    def score_batch(pairs: Sequence[tuple[list[int], list[int]]]) -> list[PairScore]:
        inputs, outputs = zip(*pairs, strict=True)
        source, source_pos = pad_rows([*map(template.encoder_input, inputs)], t.pad_id, device)
        target, _ = pad_rows([*map(template.decoder_input, outputs)], t.target_tokenizer.pad_id, device)
        labels, _ = pad_rows([*map(template.labels, outputs)], IGNORE_INDEX, device)
        if template.opening_forced:
            labels[:, : len(template.opening_ids)] = IGNORE_INDEX
        return _sum_log_probs(model(source, target, source_pos), labels)

    return _score_in_batches(model, pairs, lengths, batch_tokens, score_batch)


@torch.inference_mode()
def score_texts(
    model: CausalLM, t: Tokenizer, template: PromptTemplate, texts: Sequence[str], batch_tokens: int
) -> list[PairScore]:
    """log p(text) of each text, from the template's prefix to its suffix, if it has one."""
    rows = _text_rows(t, template, texts)
    scored_rows = [i for i, row in enumerate(rows) if len(row) > len(template.prefix_ids)]
    lengths = np.array([len(rows[i]) - 1 for i in scored_rows], dtype=np.int64)
    _check_lengths("text", _text_lengths(rows), model.config.max_len)

    def score_batch(rows: Sequence[list[int]]) -> list[PairScore]:
        logits, labels = _next_token_logits(model, rows, t.pad_id)
        labels[:, : len(template.prefix_ids) - 1] = IGNORE_INDEX
        return _sum_log_probs(logits, labels)

    items = [rows[i] for i in scored_rows]
    scores = _score_in_batches(model, items, (lengths, lengths), batch_tokens, score_batch)
    scores_by_row = dict(zip(scored_rows, scores, strict=True))
    return [scores_by_row.get(i, PairScore(0.0, 0)) for i in range(len(texts))]


@torch.inference_mode()
def score_tokens(
    model: CausalLM, pad_id: int, rows: Sequence[list[int]], top_logprobs: int = 0
) -> list[TokenLogprobs]:
    """Log-probability of each token of each row but its first, given those before it.

    Also the ``top_logprobs`` most likely tokens at each position.
    """
    lengths = np.array([max(1, len(row) - 1) for row in rows], dtype=np.int64)
    _check_lengths("text", lengths, model.config.max_len)

    def score_batch(rows: Sequence[list[int]]) -> list[TokenLogprobs]:
        log_p, label_log_p = _log_probs(*_next_token_logits(model, rows, pad_id))
        results = []
        for (_, *tokens), p, row_log_p in zip(rows, to_host(label_log_p).tolist(), log_p, strict=True):
            n = len(tokens)
            top: list[tuple[tuple[int, float], ...]] = [()] * n
            if top_logprobs:
                top = get_top_logprobs(row_log_p[:n], top_logprobs)
            results.append(TokenLogprobs(tokens, p[:n], top))
        return results

    return _score_in_batches(model, rows, (lengths, lengths), SCORE_BATCH_TOKENS, score_batch)


def _text_rows(t: Tokenizer, template: PromptTemplate, texts: Sequence[str]) -> list[list[int]]:
    return [[*template.prefix_ids, *ids, *template.suffix_ids] for ids in t.encode(texts)]


def _text_lengths(rows: Sequence[Sequence[int]]) -> IdArray:
    """Number of input tokens of each row, which are all but the last."""
    return np.array([len(row) - 1 for row in rows], dtype=np.int64)


def _pair_lengths(
    template: Seq2SeqTemplate, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> tuple[IdArray, IdArray]:
    """Number of tokens of both sides of each pair, with special tokens."""
    n_source = len(template.source_prefix) + len(template.source_suffix)
    sources = np.array([len(source) + n_source for source, _ in pairs], dtype=np.int64)
    n_target = len(template.opening_ids) + 1
    return sources, np.array([len(target) + n_target for _, target in pairs], dtype=np.int64)


def _next_token_logits(model: CausalLM, rows: Sequence[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Logits (B, T, V) after each token of each row but the last, and the tokens that follow (B, T)."""
    device = next(model.parameters()).device
    # a single token has no next one, but a model needs at least one input
    tokens, pos = pad_rows([row[:-1] or row for row in rows], pad_id, device)
    labels, _ = pad_rows([row[1:] or [IGNORE_INDEX] for row in rows], IGNORE_INDEX, device)
    return model(tokens, pos), labels


def _check_lengths(unit: str, lengths: np.ndarray, max_len: int) -> None:
    for i in np.flatnonzero(lengths > max_len)[:1].tolist():
        raise UserError(f"{unit} {i + 1} has {lengths[i]} tokens; this model's max_len is {max_len}")


def _score_in_batches(
    model: nn.Module,
    items: Sequence[T],
    lengths: tuple[IdArray, IdArray],
    batch_tokens: int,
    score: Callable[[Sequence[T]], list[S]],
) -> list[S]:
    """Scores in the order of the items, computed in batches of similar length; ``lengths`` of both sides."""
    scores: dict[int, S] = {}
    for rows in plan_eval_batches(*lengths, limit_batch_tokens(model, batch_tokens)):
        scores |= zip(rows.tolist(), score([items[i] for i in rows]), strict=True)
    return [scores[i] for i in range(len(items))]


def _log_probs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, V), (B, T) -> log-probabilities of all tokens (B, T, V) and of labels (B, T), 0 if ignored.

    NaN or infinity is a NotFiniteError.
    """
    log_p = logits.float().log_softmax(-1)
    label_log_p = log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return log_p, require_finite(label_log_p.masked_fill(labels == IGNORE_INDEX, 0.0))


def _sum_log_probs(logits: Tensor, labels: Tensor) -> list[PairScore]:
    """(B, T, V), (B, T) -> the log-probability and the number of each row's labels."""
    _, label_log_p = _log_probs(logits, labels)
    counts = (labels != IGNORE_INDEX).sum(1)
    return [PairScore(float(p), int(n)) for p, n in zip(label_log_p.double().sum(1), counts, strict=True)]
