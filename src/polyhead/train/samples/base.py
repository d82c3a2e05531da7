"""Sample outputs of a model: one function per task, and shared helpers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch
from itertools import accumulate, pairwise, takewhile
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.data.stores.build_cache import IdArray
from polyhead.introspect.attention_map import AttentionMap
from polyhead.run.run import Run
from polyhead.tokenizers.display import spell_token
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.viz.samples import Samples

MAX_MAPS = 3  # attention maps of one kind
MAX_MAP_TOKENS = 24  # in a map, on either side, to stay readable
LOGIT_ROWS = 512  # rows of logits in memory at a time


@singledispatch
def take_samples(task: Any, run: Run) -> Samples:
    """Outputs of the model for a limited number of validation texts, the same at every evaluation.

    Empty for a task without a registered function.
    """
    return Samples()


def make_examples(
    sources: Iterable[str], outputs: Iterable[str], references: Iterable[str]
) -> list[dict[str, Any]]:
    """The examples of a report."""
    return [
        {"source": source, "output": output, "reference": reference}
        for source, output, reference in zip(sources, outputs, references, strict=True)
    ]


def decode_readable(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Decode tokens to one text: masks become [mask], other special tokens are left out."""
    special = set(tokenizer.special_ids) - {tokenizer.mask_id}
    segments: list[list[int]] = [[]]
    for token in ids:
        if token == tokenizer.mask_id:
            segments.append([])
        elif token not in special:
            segments[-1].append(token)
    visible_ids = [token for piece in segments for token in piece]
    ends = accumulate(len(piece) for piece in segments)
    # decode prefixes, because a segment decoded by itself would lose its leading space
    full_text, *prefixes = tokenizer.decode([visible_ids, *(visible_ids[:end] for end in ends)])
    boundaries = [0, *(common_prefix_len(full_text, prefix) for prefix in prefixes)]
    texts = [full_text[start:end] for start, end in pairwise(boundaries)]
    return re.sub(r"(?<=\S)\[mask\]", " [mask]", "[mask]".join(texts)).strip()


def decode_rows(tokenizer: Tokenizer, rows: Tensor) -> list[str]:
    """``decode_readable`` of rows (B, T); negative numbers are padding."""
    return [decode_readable(tokenizer, [i for i in row if i >= 0]) for row in rows.tolist()]


def spread_evenly(n: int, count: int) -> IdArray:
    """At most ``count`` of the numbers below n, at equal distances."""
    return np.linspace(0, n - 1, min(count, n)).astype(np.int64)


def common_prefix_len(a: str, b: str) -> int:
    """Length of the common prefix of two texts in characters."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def is_short(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the text is short enough for an attention map."""
    return 0 < len(tokenizer.encode([text])[0]) <= MAX_MAP_TOKENS


def shorten_text(tokenizer: Tokenizer, text: str) -> str:
    """The first tokens of a text, as many as fit into an attention map."""
    (ids,) = tokenizer.encode([text])
    return text if len(ids) <= MAX_MAP_TOKENS else tokenizer.decode([ids[:MAX_MAP_TOKENS]])[0]


def collect_attention(run: Run, kind: str, *texts: tuple[str, str | None]) -> list[AttentionMap]:
    """Attention maps of one kind for some texts and outputs; empty for a model without attention weights."""
    attention_maps = []
    for source, target in texts[:MAX_MAPS]:
        try:
            maps = run.attention_maps(source, target)
            if kind in maps and torch.isfinite(torch.as_tensor(maps[kind].weights)).all():
                attention_maps.append(maps[kind])
        except UserError:  # a model without attention weights
            break
    return attention_maps


def collect_self_attention(run: Run, texts: Iterable[str]) -> list[AttentionMap]:
    """Maps of the self-attention for some texts."""
    return collect_attention(run, "self", *((text, None) for text in texts))


def group_mean(values: Sequence[float]) -> Callable[[list[int]], float]:
    """The mean of the values with some indices, as a function of the indices."""
    return lambda indices: sum(values[i] for i in indices) / len(indices)


def label_nlls(head: Callable[[Tensor], Tensor], features: Tensor, labels: Tensor) -> list[float]:
    """-log p of each label, from the features that the LM head reads: (N, C), (N,) -> N values."""
    parts = zip(features.split(LOGIT_ROWS), labels.split(LOGIT_ROWS), strict=True)
    losses = [F.cross_entropy(head(x).float(), y, reduction="none").tolist() for x, y in parts]
    return [loss for part in losses for loss in part]


def greedy_tokens(head: Callable[[Tensor], Tensor], features: Tensor) -> list[int]:
    """The most likely token of each row of features."""
    return [token for part in features.split(LOGIT_ROWS) for token in head(part).argmax(-1).tolist()]


def token_kinds(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The kind of each token, that of its first visible character: letters, digits, punctuation or other;
    blanks without one.
    """
    names = {"L": "letters", "M": "letters", "N": "digits", "P": "punctuation", "S": "punctuation"}
    texts = [spell_token(tokenizer, i).strip() for i in ids]
    return [names.get(unicodedata.category(text[0])[0], "other") if text else "blanks" for text in texts]
