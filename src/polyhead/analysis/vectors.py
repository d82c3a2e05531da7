"""One vector for each text, from an encoder or a language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.analysis.reading import read
from polyhead.config import ModelConfig
from polyhead.data.framed import Framed, framed, framed_by
from polyhead.errors import UserError, at
from polyhead.generate.frame import Frame
from polyhead.generation_section import GenerationConfig
from polyhead.models import CausalLM, Classifier, Embedder, MaskedLM
from polyhead.nn.pooling import first_token, largest_token, last_token, mean_token
from polyhead.text.frame import Around
from polyhead.text.listed import check_texts_or_ids
from polyhead.text.tokenizer import Tokenizer

Text = str | Sequence[int]
"""A text, or its tokens as the tokenizer gives them: without those that stand around every text."""
Pool = Callable[[Tensor, Tensor | None], Tensor]
POOLS: dict[str, Pool] = {
    "mean": mean_token,
    "first": first_token,
    "max": largest_token,
    "last": last_token,
}


class Embedded(NamedTuple):
    """A vector for each text, and how many of the texts were cut to how many tokens."""

    vectors: Tensor  # (N, C) float32
    cut: int
    most: int


@torch.inference_mode()
def embed(
    model: MaskedLM | Classifier | Embedder | CausalLM,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    config: GenerationConfig,
    about: Frame | None = None,
    batch_tokens: int = 4096,
) -> Embedded:
    """The mean vector of each text's tokens, the first, the last, the largest of each feature, or the model's own.

    Special tokens count as others do (Reimers & Gurevych, 2019, sec. 3), and those of a prompt where ``pool_prompt`` says
    so. Texts longer than ``reach`` are cut. ``pooling`` "own" is what the model was trained with, map and all.
    """
    pool = POOLS.get(config.pooling) or getattr(model, "pooler", None)
    if pool is None:
        raise UserError(f"this model has no pooling of its own; choose one of {', '.join(POOLS)}")
    rows = read_as(tokenizer, texts, config, model.config.max_len, about)
    before = 0 if config.pool_prompt else before_text(tokenizer, config, model.config.max_len, about)
    out = torch.zeros(len(rows), width(model.config))
    for numbers, vectors, pos in read(model, rows, tokenizer, batch_tokens):
        vector = pool(vectors, without(before, vectors, pos))
        for dense in getattr(model, "dense", ()):
            vector = dense(vector)
        out[numbers] = vector.float().cpu()
    out = torch.nn.functional.normalize(out, dim=-1) if config.normalize else out
    return Embedded(out, sum(row.cut for row in rows), reach(config, model.config.max_len))


def width(config: ModelConfig) -> int:
    """Numbers of a text's vector."""
    return config.dense[-1].width if config.dense else config.d_model


def reach(config: GenerationConfig, max_len: int) -> int:
    """Tokens of a text that are read, special ones counted, by a model that can read ``max_len``."""
    return min(config.max_text_len or max_len, max_len)


def read_as(
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    config: GenerationConfig,
    max_len: int,
    about: Frame | None = None,
) -> list[Framed]:
    """The texts as the model reads them: behind their prompt, as far as it reaches, between special tokens.

    ``about`` says what stands about a text that a language model reads, beside the rules of its tokenizer.
    """
    check_texts_or_ids(texts, "run.embed", tokenizer.vocab_size)
    encoded, most = _encoded(tokenizer, texts, config.before), reach(config, max_len)
    with at("max_text_len"):
        if about is None:
            return [framed([ids], tokenizer, most) for ids in encoded]
        around = Around(about.begin if about.always else [], [], about.end or tokenizer.end, False)
        rows = [framed_by(around, [ids], most) for ids in encoded]
    return [row if row.ids else Framed(about.begin, len(about.begin), False) for row in rows]


def _encoded(tokenizer: Tokenizer, texts: Sequence[Text], before: str) -> list[list[int]]:
    """The tokens of the texts behind what stands before each; of those that came as tokens these, behind its own."""
    written = iter(tokenizer.encode([before + text for text in texts if isinstance(text, str)]))
    own = tokenizer.encode([before])[0] if before else []
    return [next(written) if isinstance(text, str) else [*own, *map(int, text)] for text in texts]


def before_text(
    tokenizer: Tokenizer, config: GenerationConfig, max_len: int, about: Frame | None = None
) -> int:
    """Tokens of the prompt, and of what stands before it; 0 without a prompt."""
    if not config.before:
        return 0
    ids = read_as(tokenizer, [""], config, max_len, about)[0].ids
    return len(ids) - (ids[-1] in tokenizer.special_ids)  # what ends a text


def without(before: int, x: Tensor, pos: Tensor | None) -> Tensor | None:
    """The positions of tokens of which so many do not count, as those of padding do not: (B, T)."""
    if not before:
        return pos
    pos = torch.arange(x.size(1), device=x.device).expand(x.shape[:2]) if pos is None else pos
    return (pos - before).clamp(min=-1)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """a · b / (|a| |b|) of each row of a (N, C) with each of b (M, C): (N, M)."""
    return torch.nn.functional.normalize(a, dim=-1) @ torch.nn.functional.normalize(b, dim=-1).T
