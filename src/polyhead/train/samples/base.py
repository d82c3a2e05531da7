"""How a task shows what a model has learned: a function by task, and what these have in common."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch
from itertools import accumulate, pairwise, takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.analysis.heat_map import AttentionMap
from polyhead.analysis.samples import Samples
from polyhead.analysis.token_maps import text_of
from polyhead.errors import UserError
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer

MOST_MAPS = 3  # attention maps of one kind
MOST_TOKENS = 24  # in a map, on either side: what a reader can take in
CHUNK = 512  # rows of logits that exist at a time


@singledispatch
def take_samples(task: Any, run: Run) -> Samples:
    """What the model says of some validation texts: the same texts at every evaluation, a bounded number of them.

    A task without a function of its own shows nothing.
    """
    return Samples()


def readable(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Tokens as one text: masks as [mask], other special tokens left out."""
    special = set(tokenizer.special_ids) - {tokenizer.mask_id}
    pieces: list[list[int]] = [[]]
    for token in ids:
        if token == tokenizer.mask_id:
            pieces.append([])
        elif token not in special:
            pieces[-1].append(token)
    known = [token for piece in pieces for token in piece]
    ends = accumulate(len(piece) for piece in pieces)
    # texts of beginnings, for a piece by itself would lose the blank before it
    whole, *heads = tokenizer.decode([known, *(known[:end] for end in ends)])
    places = [0, *(common_length(whole, head) for head in heads)]
    written = [whole[start:end] for start, end in pairwise(places)]
    return re.sub(r"(?<=\S)\[mask\]", " [mask]", "[mask]".join(written)).strip()


def common_length(a: str, b: str) -> int:
    """How many characters two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def is_short(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the text is short enough for an attention map."""
    return 0 < len(tokenizer.encode([text])[0]) <= MOST_TOKENS


def shorten(tokenizer: Tokenizer, text: str) -> str:
    """The beginning of a text that fits into an attention map."""
    (ids,) = tokenizer.encode([text])
    return text if len(ids) <= MOST_TOKENS else tokenizer.decode([ids[:MOST_TOKENS]])[0]


def attention_of(run: Run, kind: str, *texts: tuple[str, str | None]) -> list[AttentionMap]:
    """The maps of one kind of some texts and their outputs; none of a model that does not attend."""
    found = []
    for source, target in texts[:MOST_MAPS]:
        try:
            maps = run.attention_maps(source, target)
            if kind in maps and torch.isfinite(torch.as_tensor(maps[kind].weights)).all():
                found.append(maps[kind])
        except UserError:  # a model whose layers keep no weights
            break
    return found


def token_losses(head: Callable[[Tensor], Tensor], features: Tensor, labels: Tensor) -> list[float]:
    """-log p of each label, from what the head reads."""
    parts = zip(features.split(CHUNK), labels.split(CHUNK), strict=True)
    losses = [F.cross_entropy(head(x).float(), y, reduction="none").tolist() for x, y in parts]
    return [loss for part in losses for loss in part]


def likeliest(head: Callable[[Tensor], Tensor], features: Tensor) -> list[int]:
    """The likeliest token of each row of features."""
    return [token for part in features.split(CHUNK) for token in head(part).argmax(-1).tolist()]


def kinds_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What each token is made of: letters, digits, punctuation or other."""
    return [kind_of(text_of(tokenizer, i)) for i in ids]


def kind_of(text: str) -> str:
    """By the first character that is no blank."""
    names = {"L": "letters", "M": "letters", "N": "digits", "P": "punctuation", "S": "punctuation"}
    return names.get(unicodedata.category(text.strip()[0])[0], "other") if text.strip() else "blanks"
