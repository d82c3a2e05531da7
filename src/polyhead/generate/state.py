"""What every decoding rule does the same way: feed tokens, drop and reorder rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polyhead.cache.base import Cache, CacheShape
from polyhead.cache.make import make_cache
from polyhead.errors import UserError
from polyhead.generate.top import forced_tokens, likeliest
from polyhead.nn.kv import Memory
from polyhead.registry import Choice

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Hypothesis(NamedTuple):
    """One output: its tokens without begin and end, its score, and the log-probability the score is made of."""

    tokens: list[int]
    score: float
    log_prob: float


class Decoder(Protocol):
    """What decoding needs of a model. One that also has ``encode`` reads a source, others go on from a prompt."""

    training: bool

    @property
    def cache_shape(self) -> CacheShape: ...

    def decode(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: list[Memory] | None
    ) -> Tensor: ...


class Rules(NamedTuple):
    """What outputs must look like, for each sentence that is decoded."""

    eos_id: int
    max_new_tokens: Sequence[int]  # the end of the sentence included
    min_new_tokens: int  # before the end of the sentence
    prefix: Sequence[Sequence[int]]  # how the output must begin
    certain: int = 0  # so many tokens of each prefix cost nothing: the model was told them
    forbidden: Sequence[int] = ()  # tokens that are never said

    def check(self, n: int) -> None:
        """A UserError names the first of n sentences where the rules make no sense."""
        if len(self.max_new_tokens) != n or len(self.prefix) != n:
            raise UserError(
                f"{n} sentences, but {len(self.max_new_tokens)} max_new_tokens and {len(self.prefix)} prefixes: "
                "one each is wanted"
            )
        if self.min_new_tokens < 0:
            raise UserError(f"min_new_tokens is {self.min_new_tokens}, wanted 0 or more")
        for i, (limit, given) in enumerate(zip(self.max_new_tokens, self.prefix, strict=True)):
            if limit < 1:
                raise UserError(f"max_new_tokens of sentence {i} is {limit}, wanted at least 1")
            if len(given) > limit:
                raise UserError(
                    f"the prefix of sentence {i} has {len(given)} tokens, more than max_new_tokens ({limit})"
                )
            if self.eos_id in given:
                raise UserError(
                    f"the prefix of sentence {i} contains the end-of-sentence token {self.eos_id}"
                )

    def select(self, sentences: Iterable[int]) -> Rules:
        """The rules of some sentences."""
        kept = list(sentences)
        limits, prefix = [self.max_new_tokens[i] for i in kept], [self.prefix[i] for i in kept]
        return self._replace(max_new_tokens=limits, prefix=prefix)


class State:
    """The rows being decoded: equally many for each sentence, one at first, all with ``step`` new tokens so far.

    An encoder-decoder reads the sources (B, S) and begins with ``bos_id``; any other model takes them as the
    beginning of its own output, and ``first`` are their last tokens.
    """

    def __init__(
        self,
        model: Decoder,
        source: Tensor,
        source_pos: Tensor | None,
        rules: Rules,
        cache: Choice | None,
        bos_id: int | None,
    ) -> None:
        assert not model.training, "decoding wants model.eval(): dropout would make the outputs random"
        self.model, self.rules, self.step, self.device = model, rules, 0, source.device
        encode = getattr(model, "encode", None)
        lengths = np.full(len(source), source.size(1))
        if source_pos is not None:
            lengths = (source_pos >= 0).sum(1).cpu().numpy()
        self.start: Ints = np.zeros_like(lengths) if encode else lengths - 1
        longest = int(self.start.max()) + max(rules.max_new_tokens)
        self.cache = make_cache(cache, model.cache_shape, len(source), longest)
        self.memory: list[Memory] | None = None
        if encode:
            self.memory = [kept.kept() for kept in encode(source, source_pos)]
            self.first: Ints = np.full(len(source), bos_id)
        else:
            self.first = self._read(source, lengths)

    def _read(self, prompt: Tensor, lengths: Ints) -> Ints:
        """Feed prompts that stand on the left of (B, S), all but their last tokens, which come back."""
        if not lengths.all():
            raise UserError("a prompt has no token; a language model goes on from one at least")
        ends = torch.from_numpy(lengths).to(self.device)[:, None] - 1
        if int(ends.max()) > 0:
            at = torch.arange(int(ends.max()), device=self.device).expand(len(prompt), -1)
            pos = torch.where(at < ends, at, -1)
            self.cache.begin(range(len(prompt)), pos)
            self.model.decode(prompt[:, : pos.size(1)], pos, self.cache, None)
        last: Ints = prompt.gather(1, ends)[:, 0].cpu().numpy()
        return last

    def extend(self, tokens: Ints, k: int) -> tuple[Floats, Ints]:
        """The newest token of each row (N,) in; the k likeliest next ones out, log-probabilities and ids (N, k)."""
        rules, width = self.rules, len(tokens) // len(self.rules.prefix)
        banned = [*rules.forbidden, *([rules.eos_id] if self.step < rules.min_new_tokens else [])]
        certain = self.step < rules.certain
        forced = forced_tokens(rules.prefix, self.step, width, self.device)
        values, ids = likeliest(self.logits(tokens), k, banned, forced)
        host = to_host(values)
        return np.where(np.isfinite(host), 0.0, host) if certain else host, ids.cpu().numpy()

    def logits(self, tokens: Ints) -> Tensor:
        """The newest token of each row (N,) in; logits (N, V) of the next out."""
        pos = torch.from_numpy(self.start + self.step).to(self.device)[:, None]
        self.cache.begin(range(len(tokens)), pos)
        fed = torch.from_numpy(tokens).to(self.device)[:, None]
        self.step += 1
        return self.model.decode(fed, pos, self.cache, self.memory)[:, -1]

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with row ``rows[i]`` as row i, where no memory is read; rows may come again."""
        assert self.memory is None
        self.start = self.start[list(rows)]
        self.cache.select(rows)

    def select(self, sentences: Ints, rows: Ints) -> None:
        """Keep some sentences; row i goes on from what row ``rows[i]`` was."""
        if len(sentences) < len(self.rules.prefix):
            index = torch.from_numpy(sentences).to(self.device)
            self.memory = self.memory and [kept.select(index) for kept in self.memory]
            self.rules = self.rules.select(sentences.tolist())
        self.start = self.start[rows]
        self.cache.select(rows.tolist())


def normalised(log_prob: float, length: int, length_penalty: float) -> float:
    """The score: log P(y | x) / |y| ** length_penalty; |y| counts the end of the sentence (Wu et al., 2016, without their 5)."""
    score: float = log_prob / length**length_penalty
    return score


def to_host(log_probs: Tensor) -> Floats:
    """Log-probabilities in double precision, where they are summed; NaN is a UserError."""
    host: Floats = log_probs.double().cpu().numpy()
    if np.isnan(host).any():
        raise UserError(
            "the model's output is not a number (NaN): its weights are damaged or overflow in this precision"
        )
    return host
