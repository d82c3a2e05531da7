"""Draft tokens from a smaller model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.core.errors import UserError, prefix_errors
from polyhead.core.option_types import PositiveInt
from polyhead.core.registry import SPECULATIVE
from polyhead.generation.decoding.sampling import NEG_INF
from polyhead.generation.engine.incremental_decoder import IncrementalDecoder
from polyhead.generation.engine.request import Decoder, to_host
from polyhead.generation.speculative.verify import DraftContext, DraftTokens
from polyhead.kernels.pack_model import pack_model
from polyhead.run.load import load
from polyhead.run.run import Run


@SPECULATIVE.register("draft")
def load_draft_model(target: Run, *, run: str, tokens: PositiveInt = 4) -> DraftModel:
    """Draft tokens sampled from a smaller model.

    It samples them one by one with the same settings (temperature, top_p and the others). The more similar
    the two models are, the more draft tokens are accepted: of one token the share sum_x min(p(x), q(x)). Its
    tokenizer must be the same, so train it with that of the large model, e.g. ``init_from: {run:
    runs/large, layer_stride: 4}`` for every fourth layer.

    Equation: accept x ~ q with probability min(1, p(x) / q(x)),
      else draw from max(0, p - q) / sum_x max(0, p - q)
    Paper: Leviathan et al., 2023, alg. 1; Chen et al., 2023, alg. 2
    When: a draft model with much cheaper steps and nearly the same output; small batches
    Recipe: {task: language-model, generation: {speculative: {name: draft, run: runs/small}}}
    Options:
      run: directory of the smaller model
      tokens: maximum number of draft tokens per step
    """
    weight = next(target.model.parameters())
    dtype = "bf16" if weight.dtype == torch.bfloat16 else "fp32"
    with prefix_errors("speculative 'draft'"):
        small = load(run, dtype=dtype, device=str(target.device))
    if small.config.kind != "decoder" or small.config.labels:
        raise UserError(f"speculative 'draft': {run} is not a language model, so it cannot draft tokens")
    if small.tokenizer.sha256 != target.tokenizer.sha256:
        raise UserError(
            f"speculative 'draft': {run} has another tokenizer (of {small.tokenizer.vocab_size} tokens; the "
            f"large model's has {target.tokenizer.vocab_size}), so its tokens differ: train it with the "
            "tokenizer of the large model, see init_from.run"
        )
    model = pack_model(small.model)
    return DraftModel(model, tokens, small.config.max_len, target.config.vocab_size)  # type: ignore[arg-type]


class DraftModel:
    """A draft model for a target with ``vocab_size`` logits; its maximum length may be different."""

    def __init__(self, model: Decoder, tokens: int, max_len: int | None, vocab_size: int) -> None:
        self.model, self.tokens, self.max_len, self.vocab_size = model, tokens, max_len, vocab_size

    def start(self, prompts: Sequence[Sequence[int]], context: DraftContext) -> DraftModelState:
        return DraftModelState(self, prompts, context)


class DraftModelState:
    """The draft model's cache of some texts."""

    def __init__(
        self, draft_model: DraftModel, prompts: Sequence[Sequence[int]], context: DraftContext
    ) -> None:
        self.draft_model, self.context = draft_model, context
        self.prompt_lens = [len(prompt) for prompt in prompts]  # prompt tokens of each text
        self.decoder = IncrementalDecoder(
            draft_model.model, len(prompts), context.max_total_len, draft_model.max_len, None
        )
        self.decoder.rewind(prompts, self._reserved_len)

    @property
    def _reserved_len(self) -> int:
        """Tokens to keep free after a text; few in a short model, which else prefills at every step."""
        num_reserved, max_len = self.draft_model.tokens - 1, self.draft_model.max_len
        return num_reserved if max_len is None else min(num_reserved, max_len // 4)

    def propose(
        self, texts: Sequence[Sequence[int]], streams: Sequence[int], max_tokens: Sequence[int]
    ) -> list[DraftTokens]:
        self.decoder.rewind(texts, self._reserved_len)
        remaining = [self.decoder.remaining_len(i, text) + 1 for i, text in enumerate(texts)]
        limits = [min(self.draft_model.tokens, *both) for both in zip(remaining, max_tokens, strict=True)]
        sequences, distributions = [list(text) for text in texts], list[list[Tensor]]([] for _ in texts)
        live, num_drafted = [i for i, k in enumerate(limits) if k > 0], 0
        while live:
            live_texts = [sequences[i] for i in live]
            logits = torch.cat(self.decoder.compute_logits(live, live_texts, [1] * len(live)))
            outputs = [sequences[i][self.prompt_lens[i] :] for i in live]
            q, tokens = self._sample(logits, live_texts, outputs, [streams[i] for i in live])
            for i, row, token in zip(live, q, tokens, strict=True):
                sequences[i].append(token)
                distributions[i].append(row)
            num_drafted += 1
            eos_ids = self.context.eos_ids
            live = [i for i in live if num_drafted < limits[i] and sequences[i][-1] not in eos_ids]
        drafts = [text[len(old) :] for text, old in zip(sequences, texts, strict=True)]
        is_greedy = self.context.sampling.temperature == 0
        return [
            DraftTokens(tokens, None if is_greedy else rows)
            for tokens, rows in zip(drafts, distributions, strict=True)
        ]

    def _sample(
        self,
        logits: Tensor,
        texts: Sequence[Sequence[int]],
        output_ids: Sequence[Sequence[int]],
        streams: Sequence[int],
    ) -> tuple[Tensor, list[int]]:
        """Sample from the draft model; the probabilities (N, V) of that, and the tokens.

        At temperature 0 the tokens are the argmax, and logits take the place of the probabilities.
        """
        # models may have different numbers of logits beyond the tokens of the tokenizer
        if logits.size(1) != self.draft_model.vocab_size:
            logits = F.pad(logits, (0, self.draft_model.vocab_size - logits.size(1)), value=NEG_INF)
        masked_logits = self.context.sampling.apply(logits, texts, self.context.eos_ids, output_ids)
        is_greedy = self.context.sampling.temperature == 0
        if is_greedy:
            q, tokens = masked_logits, masked_logits.argmax(-1).tolist()
        else:
            q = masked_logits.double().softmax(-1)
            tokens = self.context.random_streams.sample(masked_logits, streams)
        # NaN in the draft model is an error too
        to_host(q.gather(1, torch.tensor(tokens, device=q.device)[:, None]))
        return q, tokens

    def reorder(self, rows: Sequence[int]) -> None:
        self.decoder.reorder(rows)
        self.prompt_lens = [self.prompt_lens[row] for row in rows]
