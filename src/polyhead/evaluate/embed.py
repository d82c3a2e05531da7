"""Embeddings of an encoder or a language model: a vector per text or per token, of any layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError, check_int, format_value, prefix_errors
from polyhead.data.batching.encoder_inputs import EncoderInput, build_encoder_input, fill_template
from polyhead.evaluate.encode_batches import encode_in_batches, encode_layers_in_batches
from polyhead.generation.engine.request import require_finite
from polyhead.generation.prompt_template import PromptTemplate
from polyhead.models import CausalLM, Classifier, MaskedLM, SentenceEncoder
from polyhead.models.masked_lm import PooledModel
from polyhead.nn.pooling import Pooler, pool_first_token, pool_last_token, pool_max, pool_mean
from polyhead.tokenizers.input_validation import validate_texts_or_ids
from polyhead.tokenizers.special_tokens import SpecialTokensTemplate
from polyhead.tokenizers.tokenizer import Tokenizer

TextOrIds = str | Sequence[int]
"""A text, or its tokens from the tokenizer, without special tokens."""
Layers = Sequence[int] | Literal["all"]
"""Numbers of layers: 0 is the embeddings, 1 the first layer; negative ones count from the last."""
PoolFn = Callable[[Tensor, Tensor | None], Tensor]
_POOLINGS: dict[str, PoolFn] = {
    "mean": pool_mean,
    "first": pool_first_token,
    "max": pool_max,
    "last": pool_last_token,
}


class Embeddings(NamedTuple):
    """A vector for each text, the number of truncated texts, and the token limit."""

    vectors: Tensor  # (N, C) float32; (N, L, C) with ``layers``
    n_truncated: int
    max_tokens: int


class TokenEmbeddings(NamedTuple):
    """A vector for each token that the model reads of a text, special tokens included."""

    tokens: list[str]  # entries of the vocabulary
    ids: list[int]
    vectors: Tensor  # (T, C) float32; (L, T, C) with ``layers``
    truncated: bool


@torch.inference_mode()
def embed_texts(
    model: MaskedLM | Classifier | SentenceEncoder | CausalLM,
    tokenizer: Tokenizer,
    texts: Sequence[TextOrIds],
    config: GenerationConfig,
    template: PromptTemplate | None = None,
    batch_tokens: int = 4096,
    layers: Layers | None = None,
    dimensions: int | None = None,
) -> Embeddings:
    """Pool the token vectors of each text: mean, first, last, maximum per feature, or the model's pooling.

    Special tokens count as others do (Reimers & Gurevych, 2019, sec. 3), and those of a prompt with
    ``include_prompt``. Texts longer than ``token_limit`` are truncated. ``pooling`` "own" is the one that the
    model was trained with, projection included. A vector with NaN or infinity is a NotFiniteError.

    With ``layers`` the vectors of each of these layers are pooled, without the projections after the pooling,
    which are trained for the last layer. With ``dimensions`` only the first ones of each vector are kept
    (Kusupati et al., 2022).
    """
    check_dimensions(dimensions, model.config, layers is None)
    pool = select_pooling(model, config.pooling)
    rows = prepare_inputs(tokenizer, texts, config, model.config.max_len, template)
    n_prompt_tokens = count_excluded_tokens(tokenizer, config, model.config.max_len, template)
    if layers is None:
        out = torch.zeros(len(rows), embedding_dim(model.config))
        for numbers, vectors, pos in encode_in_batches(model, rows, tokenizer, batch_tokens):
            vector = pool_texts(model, pool, vectors, mask_prompt(n_prompt_tokens, vectors, pos))
            out[numbers] = require_finite(vector).float().cpu()
    else:
        indices = resolve_layers(layers, model.config.n_layers)
        pool = pool.pool if isinstance(pool, Pooler) else pool
        out = torch.zeros(len(rows), len(indices), model.config.d_model)
        for numbers, states, pos in encode_layers_in_batches(model, rows, tokenizer, batch_tokens, indices):
            pos = mask_prompt(n_prompt_tokens, states[:, 0], pos)
            pooled = torch.stack([pool(x, pos) for x in states.unbind(1)], 1)
            out[numbers] = require_finite(pooled).float().cpu()
    out = out[..., :dimensions].contiguous()
    out = torch.nn.functional.normalize(out, dim=-1) if config.normalize else out
    return Embeddings(out, sum(row.truncated for row in rows), token_limit(config, model.config.max_len))


def select_pooling(model: nn.Module, name: str) -> PoolFn:
    """The pooling of that name; "own" is that of the model, and a UserError if it has none."""
    pool = _POOLINGS.get(name) or (model.pooler if isinstance(model, PooledModel) else None)
    if pool is None:
        raise UserError(f"this model has no pooling; choose one of {', '.join(_POOLINGS)}")
    return pool


def pool_texts(model: nn.Module, pool: PoolFn, states: Tensor, pos: Tensor | None) -> Tensor:
    """The vector of each text, after the maps of the model: (B, T, C), (B, T) -> (B, C)."""
    vectors = pool(states, pos)
    for dense in model.dense if isinstance(model, SentenceEncoder) else ():
        vectors = dense(vectors)
    return vectors


@torch.inference_mode()
def embed_tokens(
    model: MaskedLM | Classifier | SentenceEncoder | CausalLM,
    tokenizer: Tokenizer,
    texts: Sequence[TextOrIds],
    config: GenerationConfig,
    template: PromptTemplate | None = None,
    batch_tokens: int = 4096,
    layers: Layers | None = None,
    dimensions: int | None = None,
) -> list[TokenEmbeddings]:
    """The vector of every token of each text: the output of the last layer, or of each of ``layers``.

    The tokens are those of ``embed_texts``, special tokens included; without ``include_prompt`` those of the
    prompt are left out. With ``dimensions`` only the first ones of each vector are kept.
    """
    check_dimensions(dimensions, model.config, False)
    rows = prepare_inputs(tokenizer, texts, config, model.config.max_len, template)
    start = count_excluded_tokens(tokenizer, config, model.config.max_len, template)
    indices = resolve_layers([-1] if layers is None else layers, model.config.n_layers)
    results: list[TokenEmbeddings | None] = [None] * len(rows)
    for numbers, states, _ in encode_layers_in_batches(model, rows, tokenizer, batch_tokens, indices):
        for number, vectors in zip(numbers, require_finite(states).float().cpu(), strict=True):
            ids, truncated = rows[number].ids, rows[number].truncated
            vectors = vectors[:, start : len(ids), :dimensions]  # rows are padded on the right
            vectors = torch.nn.functional.normalize(vectors, dim=-1) if config.normalize else vectors
            names = tokenizer.ids_to_tokens(ids[start:])
            vectors = vectors[0].clone() if layers is None else vectors.clone()
            results[number] = TokenEmbeddings(names, ids[start:], vectors, truncated)
    return [one for one in results if one is not None]


def resolve_layers(layers: Layers, n_layers: int) -> list[int]:
    """The numbers of the layers from 0, the embeddings, to ``n_layers``; a UserError for any other."""
    if isinstance(layers, str):
        if layers != "all":
            raise UserError(f"layers: {layers!r} is not 'all'; expected numbers from 0 to {n_layers}, or all")
        return list(range(n_layers + 1))
    if not isinstance(layers, Collection):
        raise UserError(f"layers is {format_value(layers)}; expected a list of numbers: layers=[{layers}]")
    numbers = list(layers)
    if not numbers:
        raise UserError(f"layers is empty; expected numbers from 0 to {n_layers}, or all")
    for number in numbers:
        if type(number) is not int or not -n_layers - 1 <= number <= n_layers:
            raise UserError(
                f"layers: no layer {format_value(number)}; this model has 0 (its embeddings) to {n_layers}, "
                f"or from the last -1 to {-n_layers - 1}"
            )
    return [number % (n_layers + 1) for number in numbers]


def embedding_dim(config: ModelConfig) -> int:
    """The dimension of a text's vector."""
    return config.dense[-1].width if config.dense else config.d_model


def check_dimensions(dimensions: int | None, config: ModelConfig, is_pooled: bool) -> None:
    """Raise a UserError for more dimensions than vectors have: ``is_pooled`` ones of texts, or of layers."""
    if dimensions is not None:
        check_int("dimensions", dimensions, 1)
        if dimensions > (width := embedding_dim(config) if is_pooled else config.d_model):
            raise UserError(f"dimensions: {dimensions} is out of range: this model's embeddings have {width}")


def token_limit(config: GenerationConfig, max_len: int) -> int:
    """Maximum number of tokens of a text, special ones included, for a model that can read ``max_len``."""
    return min(config.embed_max_len or max_len, max_len)


def prepare_inputs(
    tokenizer: Tokenizer,
    texts: Sequence[TextOrIds],
    config: GenerationConfig,
    max_len: int,
    template: PromptTemplate | None = None,
) -> list[EncoderInput]:
    """The texts as the model reads them: prompt and text, truncated to the limit, between special tokens.

    ``template`` has the tokens around a text for a language model, in addition to those of its tokenizer.
    """
    validate_texts_or_ids(texts, "run.embed", tokenizer.vocab_size)
    encoded, max_tokens = _encode_prompted(tokenizer, texts, config.prompt_text), token_limit(config, max_len)
    with prefix_errors("embed_max_len"):
        if template is None:
            return [build_encoder_input([ids], tokenizer, max_tokens) for ids in encoded]
        special_tokens = SpecialTokensTemplate(
            template.prefix_ids if template.always_add_prefix else [],
            [],
            template.suffix_ids or tokenizer.suffix_ids,
            False,
        )
        rows = [fill_template(special_tokens, [ids], max_tokens) for ids in encoded]
    return [
        row if row.ids else EncoderInput(template.prefix_ids, len(template.prefix_ids), False) for row in rows
    ]


def _encode_prompted(tokenizer: Tokenizer, texts: Sequence[TextOrIds], prompt: str) -> list[list[int]]:
    """The tokens of the texts after the prompt; token lists come after the tokens of the prompt."""
    encoded = iter(tokenizer.encode([prompt + text for text in texts if isinstance(text, str)]))
    prompt_ids = tokenizer.encode([prompt])[0] if prompt else []
    return [next(encoded) if isinstance(text, str) else [*prompt_ids, *map(int, text)] for text in texts]


def count_excluded_tokens(
    tokenizer: Tokenizer, config: GenerationConfig, max_len: int, template: PromptTemplate | None = None
) -> int:
    """Number of tokens at the start that are in no vector: those of the prompt and the special tokens before
    it; 0 with ``include_prompt`` or without a prompt.
    """
    if config.include_prompt or not config.prompt_text:
        return 0
    ids = prepare_inputs(tokenizer, [""], config, max_len, template)[0].ids
    return len(ids) - (ids[-1] in tokenizer.special_ids)  # without the end token


def mask_prompt(n_prompt_tokens: int, x: Tensor, pos: Tensor | None) -> Tensor | None:
    """Positions (B, T) in which the first ``n_prompt_tokens`` tokens are -1, like padding."""
    if not n_prompt_tokens:
        return pos
    pos = torch.arange(x.size(1), device=x.device).expand(x.shape[:2]) if pos is None else pos
    return (pos - n_prompt_tokens).clamp(min=-1)


def cosine_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Cosine similarity a · b / (|a| |b|) of each row of a (N, C) with each of b (M, C): (N, M)."""
    return torch.nn.functional.normalize(a, dim=-1) @ torch.nn.functional.normalize(b, dim=-1).T
