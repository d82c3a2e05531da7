"""Guesses of a smaller model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.errors import UserError
from polyhead.fast.pack import packed
from polyhead.generate.decoder import Decoder, to_host
from polyhead.generate.reader import Reader
from polyhead.generate.sampling import NEVER
from polyhead.generate.speculative import Conditions, Guess
from polyhead.loading import load
from polyhead.registry import SPECULATE
from polyhead.run import Run


@SPECULATE.register("draft")
def draft(target: Run, *, run: str, tokens: int = 4) -> Draft:
    """The tokens that a smaller model says.

    It draws them one by one with the same settings (temperature, top_p and the others). The more alike the two models are,
    the more tokens stay: of one guess the share sum_x min(p(x), q(x)). Its tokenizer must be the same, so train it with that
    of the large model, e.g. ``start: {run: runs/large, every: 4}`` for every fourth layer.

    Equation: accept x ~ q with probability min(1, p(x) / q(x)), else draw from max(0, p - q) / sum_x max(0, p - q)
    Paper: Leviathan et al., 2023, alg. 1; Chen et al., 2023, alg. 2
    When: a model that is much cheaper a step and says nearly the same; few texts at once
    Recipe: {task: language-model, generation: {speculate: {name: draft, run: runs/small}}}
    Options:
      run: directory of the smaller model
      tokens: tokens guessed in a step, at most
    """
    if tokens < 1:
        raise UserError(f"speculate 'draft': tokens is {tokens}, wanted at least 1")
    weight = next(target.model.parameters())
    dtype = "bf16" if weight.dtype == torch.bfloat16 else "fp32"
    small = load(run, dtype=dtype, device=str(target.device))
    if small.config.kind != "decoder" or small.config.labels:
        raise UserError(f"speculate 'draft': {run} is no language model, so it cannot say how a text goes on")
    if small.tokenizer.sha256 != target.tokenizer.sha256:
        raise UserError(
            f"speculate 'draft': {run} has another tokenizer (of {small.tokenizer.vocab_size} tokens; the large model's has "
            f"{target.tokenizer.vocab_size}), so its tokens mean something else: train it with that of the large model, see start.run"
        )
    model = packed(small.model)
    return Draft(model, tokens, small.config.max_len, target.config.vocab_size)  # type: ignore[arg-type]


class Draft:
    """A model that guesses for one that has scores for ``vocab_size`` tokens; its greatest length may be another."""

    def __init__(self, model: Decoder, tokens: int, max_len: int | None, vocab_size: int) -> None:
        self.model, self.tokens, self.max_len, self.vocab_size = model, tokens, max_len, vocab_size

    def begin(self, prompts: Sequence[Sequence[int]], conditions: Conditions) -> Drafting:
        return Drafting(self, prompts, conditions)


class Drafting:
    """What the smaller model has read, and what it says next."""

    def __init__(self, draft: Draft, prompts: Sequence[Sequence[int]], conditions: Conditions) -> None:
        self.draft, self.conditions = draft, conditions
        self.begun = [len(prompt) for prompt in prompts]  # tokens of each text that were not drawn
        self.reader = Reader(draft.model, len(prompts), conditions.longest, draft.max_len, None)
        self.reader.settle(prompts, self._room)

    @property
    def _room(self) -> int:
        """Tokens that shall fit behind a text; but a model of few reads it not anew at every step for their sake."""
        wanted = self.draft.tokens - 1
        return wanted if self.draft.max_len is None else min(wanted, self.draft.max_len // 4)

    def guess(
        self, texts: Sequence[Sequence[int]], streams: Sequence[int], most: Sequence[int]
    ) -> list[Guess]:
        self.reader.settle(texts, self._room)
        room = [self.reader.room(i, text) + 1 for i, text in enumerate(texts)]
        limits = [min(self.draft.tokens, *both) for both in zip(room, most, strict=True)]
        longer, drawn = [list(text) for text in texts], list[list[Tensor]]([] for _ in texts)
        going, done = [i for i, k in enumerate(limits) if k > 0], 0
        while going:
            logits = torch.cat(self.reader.logits(going, [longer[i] for i in going], [1] * len(going)))
            said = [longer[i][self.begun[i] :] for i in going]
            q, tokens = self._draw(logits, [longer[i] for i in going], said, [streams[i] for i in going])
            for i, row, token in zip(going, q, tokens, strict=True):
                longer[i].append(token)
                drawn[i].append(row)
            done += 1
            going = [i for i in going if done < limits[i] and longer[i][-1] not in self.conditions.ends]
        found = [text[len(old) :] for text, old in zip(longer, texts, strict=True)]
        certain = self.conditions.sampling.temperature == 0
        return [Guess(tokens, None if certain else rows) for tokens, rows in zip(found, drawn, strict=True)]

    def _draw(
        self,
        logits: Tensor,
        texts: Sequence[Sequence[int]],
        said: Sequence[Sequence[int]],
        streams: Sequence[int],
    ) -> tuple[Tensor, list[int]]:
        """What plain sampling would draw of this model, and the probabilities (N, V) it draws from; greedily, the logits."""
        # rows beyond the tokenizer's tokens: some models have more of them
        if logits.size(1) != self.draft.vocab_size:
            logits = F.pad(logits, (0, self.draft.vocab_size - logits.size(1)), value=NEVER)
        allowed = self.conditions.sampling.apply(logits, texts, self.conditions.ends[0], said)
        greedy = self.conditions.sampling.temperature == 0
        tokens = allowed.argmax(-1).tolist() if greedy else self.conditions.chance.draw(allowed, streams)
        q = allowed if greedy else allowed.double().softmax(-1)
        # of a draft that is broken too, all is told
        to_host(q.gather(1, torch.tensor(tokens, device=q.device)[:, None]))
        return q, tokens

    def keep(self, rows: Sequence[int]) -> None:
        self.reader.keep(rows)
        self.begun = [self.begun[row] for row in rows]
