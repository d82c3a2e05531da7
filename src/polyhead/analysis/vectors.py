"""One vector for each text, from an encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polyhead.analysis.reading import read
from polyhead.data.framed import Framed, framed
from polyhead.errors import UserError
from polyhead.models import Classifier, Embedder, MaskedLM
from polyhead.nn.pooling import first_token, largest_token, mean_token
from polyhead.recipe import GenerationConfig
from polyhead.text.listed import check_texts
from polyhead.text.tokenizer import Tokenizer

Pool = Callable[[Tensor, Tensor | None], Tensor]
POOLS: dict[str, Pool] = {"mean": mean_token, "first": first_token, "max": largest_token}


@torch.inference_mode()
def embed(
    model: MaskedLM | Classifier | Embedder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    config: GenerationConfig,
    batch_tokens: int = 4096,
) -> Tensor:
    """(N, C) float32: the mean vector of each text's tokens, the first, the largest of each feature, or the model's own.

    Special tokens count as others do (Reimers & Gurevych, 2019, sec. 3), and those of a prompt. Texts longer than
    ``reach`` are cut. ``pooling`` "own" is what the model was trained with, map and all.
    """
    pool = POOLS.get(config.pooling) or getattr(model, "pooler", None)
    if pool is None:
        raise UserError(f"this model has no pooling of its own; choose one of {', '.join(POOLS)}")
    rows = read_as(tokenizer, texts, config, model.config.max_len)
    out = torch.zeros(len(rows), model.config.d_model)
    for numbers, vectors, pos in read(model, rows, tokenizer, batch_tokens):
        out[numbers] = pool(vectors, pos).float().cpu()
    return torch.nn.functional.normalize(out, dim=-1) if config.normalize else out


def reach(config: GenerationConfig, max_len: int) -> int:
    """Tokens of a text that are read, special ones counted, by a model that can read ``max_len``."""
    return min(config.max_text_len or max_len, max_len)


def read_as(
    tokenizer: Tokenizer, texts: Sequence[str], config: GenerationConfig, max_len: int
) -> list[Framed]:
    """The texts as the model reads them: behind their prompt, between special tokens, as far as it reaches."""
    check_texts(texts, "embed")
    encoded = tokenizer.encode([config.before + text for text in texts])
    return [framed([ids], tokenizer, reach(config, max_len)) for ids in encoded]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """a · b / (|a| |b|) of each row of a (N, C) with each of b (M, C): (N, M)."""
    return torch.nn.functional.normalize(a, dim=-1) @ torch.nn.functional.normalize(b, dim=-1).T
