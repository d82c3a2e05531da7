"""Levers on decoding: the model's own output for the true one, and single steps for one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyhead.cost.decoding import token_flops
from polyhead.cost.flops import count_forward
from polyhead.cost.workload import BatchShape, UnknownFormulaError
from polyhead.explain.levers.comparison import round_number, round_numbers
from polyhead.explain.levers.interface import Field, Lever, LeverOutput, Setting
from polyhead.explain.levers.lever_input import LeverInput
from polyhead.explain.levers.stepwise import find_stepwise_obstacle, read_stepwise
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.greedy import greedy_decode
from polyhead.models import CausalLM, Seq2Seq

_MAX_TEMPERATURE = 100.0


def _find_obstacle(lever_input: LeverInput) -> str:
    return "" if isinstance(lever_input.model, CausalLM | Seq2Seq) else "this model generates no text"


def _list_fields(lever_input: LeverInput) -> list[Field]:
    return [
        Field("temperature", "number", 1.0, 0, _MAX_TEMPERATURE),
        Field("top_k", "integer", 0, 0, lever_input.model.config.vocab_size),
        Field("top_p", "number", 1.0, 1e-6, 1),
    ]


def _list_cases(lever_input: LeverInput) -> list[Setting]:
    return [{"temperature": 0.5}, {"temperature": 1.5}, {"top_k": 5}, {"top_p": 0.9}]


def apply_sampling(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """The distribution that a token is sampled from; at temperature 0 all of it is on the most likely one."""
    logits, sampling = lever_input.plain_logits, Sampling(**setting)
    if sampling.temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return LeverOutput(torch.full_like(logits, -torch.inf).scatter(-1, best, 0.0))
    return LeverOutput(sampling.apply(logits, [[]] * len(logits)))


SAMPLING_LEVER = Lever("sampling", "sampling", _find_obstacle, _list_fields, _list_cases, apply_sampling)


def run_freely(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """Greedy decoding after the first tokens: each row follows the output, not the true text.

    ``prompt`` tokens are read as they are. Rows after the end of the output are not compared.
    """
    n, total = setting["prompt"], len(lever_input.tokens)
    model: Any = lever_input.model
    prompt, eos_id, n_new = lever_input.tokens[:n], lever_input.eos_id, total - n + 1
    output = greedy_decode(model, prompt, max_new_tokens=n_new, eos_id=eos_id, memory=lever_input.memory)
    output += [eos_id] if len(output) < n_new else []
    tokens = [*prompt, *output[:-1]]  # what is read to predict the output
    whole = lever_input.replace(rows=[*range(total)])
    free_logits = whole.replace(tokens=tokens, rows=[*range(len(tokens))]).compute_logits(model)
    forced_logits = whole.compute_logits(model)
    logits = torch.cat([free_logits, forced_logits[len(tokens) :]])
    first = n - 1  # the row of the first token of the output
    best, targets = forced_logits[first:].argmax(-1).tolist(), whole.tokens[n:]
    differences = [
        first + i for i, pair in enumerate(zip(output, targets, strict=False)) if len(set(pair)) > 1
    ]
    detail = {
        "prompt": n,
        "first_row": first,
        "forced": describe_choices(forced_logits[first:], best) | {"target": targets},
        "free": describe_choices(free_logits[first:], output),
        "first_difference": differences[0] if differences else None,
    }
    is_comparable = [i is not None and i < len(tokens) for i in lever_input.rows]
    return LeverOutput(lever_input.select_rows(logits), is_comparable=is_comparable, detail=detail)


def describe_choices(logits: Tensor, tokens: list[int]) -> dict[str, Any]:
    """One token in each row of (R, V), with its probability and the log of the sum of exp(logit)."""
    own = logits.double().gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    log_sum = logits.double().logsumexp(-1)
    return {
        "ids": tokens,
        "p": round_numbers((own - log_sum).exp().tolist()),
        "logsumexp": round_numbers(log_sum.tolist()),
    }


def _find_free_obstacle(lever_input: LeverInput) -> str:
    if not isinstance(lever_input.model, CausalLM | Seq2Seq):
        return "this model generates no text"
    return find_stepwise_obstacle(lever_input) if len(lever_input.tokens) > 1 else "the text has one token"


def _list_free_fields(lever_input: LeverInput) -> list[Field]:
    """The number of tokens that are read as they are: half of a language model's text, else the opening."""
    n = len(lever_input.tokens)
    default = max(1, n // 2) if lever_input.source is None else 1
    return [Field("prompt", "integer", default, 1, n)]


FREE_RUNNING_LEVER = Lever(
    "free_running",
    "decoding",
    _find_free_obstacle,
    _list_free_fields,
    lambda _: [{}],
    run_freely,
)


def compare_prefill(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """The text in single steps through the cache, and the operations of steps with and without a cache."""
    reading = read_stepwise(lever_input, None)
    detail: dict[str, Any] = {"prompt": len(lever_input.tokens), "cache_bytes": reading.used_bytes}
    try:
        detail |= count_operations(lever_input)
    except UnknownFormulaError as error:
        detail |= {"unknown_part": str(error)}
    return LeverOutput(lever_input.select_rows(reading.logits), detail=detail)


def count_operations(lever_input: LeverInput) -> dict[str, Any]:
    """Operations of the prefill, of each step with a cache, and of each step that reads the row again.

    Without a cache the encoder is not computed again, but the keys and values of its output are.
    """
    config, n = lever_input.model.config, len(lever_input.tokens)
    source = len(lever_input.source or ())
    prefill = sum(work.total for work in count_forward(config, BatchShape(1, n, source)))
    steps = [token_flops(config, t + 1, source) for t in range(n)]
    again = [
        sum(
            work.total
            for work in count_forward(config, BatchShape(1, t + 1, source, 1))
            if not work.name.startswith("encoder ")
        )
        for t in range(n)
    ]
    return {
        "prefill_flops": prefill,
        "step_flops": steps,
        "recompute_flops": again,
        "sum_step": sum(steps),
        "sum_recompute": sum(again),
        "saved": round_number(1 - sum(steps) / sum(again)),
    }


def _find_prefill_obstacle(lever_input: LeverInput) -> str:
    if not isinstance(lever_input.model, CausalLM | Seq2Seq):
        return "this model has no decoder, so it has no cache"
    return find_stepwise_obstacle(lever_input)


PREFILL_LEVER = Lever(
    "prefill", "decoding", _find_prefill_obstacle, lambda _: [], lambda _: [{}], compare_prefill
)
