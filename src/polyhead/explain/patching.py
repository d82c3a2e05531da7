"""Activation patching: which token and layer carries the difference between two texts (Meng et al., 2022).

The model reads another text of as many tokens; at one place its vector is replaced by that of the first text.
The share is how much of the difference of two logits comes back: 0 nothing, 1 all of it.
Shapes: T tokens shown, L layers, C width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.explain.inputs import ModelInputs, read_inputs
from polyhead.explain.levers.interface import TOP_K, round_number, round_numbers
from polyhead.explain.levers.lever_input import (
    LeverInput,
    RecordedOutput,
    copy_modules,
    list_stacks,
    read_lever_input,
)
from polyhead.explain.levers.table import make_speller
from polyhead.explain.trace import Facts
from polyhead.models import CausalLM, SentenceEncoder
from polyhead.nn.stack import StackLayers
from polyhead.run.run import Run
from polyhead.tokenizers.display import name_token

_MAX_LOGITS = 2**26  # that are computed at once


def explain_patching(run: Run, inputs: ModelInputs, other: str, windows: Sequence[tuple[int, int]]) -> Facts:
    """The shares of all layers and tokens; UserError if the texts cannot be compared.

    Row i of ``shares`` is the input of layer i, the last row the output of the last layer.
    """
    if isinstance(run.model, SentenceEncoder):
        raise UserError("an encoder without a head has no output whose difference could be restored")
    text = read_lever_input(run, inputs, windows)
    other_inputs = read_inputs(run, other, inputs.target)
    ids, other_ids = (one.sides[0].ids for one in (inputs, other_inputs))
    if len(ids) != len(other_ids):
        raise UserError(
            f"the texts must have as many tokens as each other: {inputs.text!r} has {len(ids)}, "
            f"{other!r} has {len(other_ids)}"
        )
    other_text = text.replace(**{"tokens" if text.source is None else "source": other_ids})
    row, answers = choose_answers(text, other_text)
    difference, other_difference = (
        float(subtract_logits(one.plain_logits[row], answers)) for one in (text, other_text)
    )
    if ids == other_ids or difference == other_difference:
        raise UserError("the texts give the same output: there is no difference to restore")
    maps = []
    for side, stack in enumerate(list_stacks(run.model)):
        logits = patch_stack(text, other_text, stack, windows[side], row)
        shares = (subtract_logits(logits, answers) - other_difference) / (difference - other_difference)
        maps.append({"side": side, "shares": [round_numbers(one) for one in shares.tolist()]})
    spell = make_speller(run)
    return {
        "text": other,
        "tokens": [name_token(run.tokenizer, i) for i in other_ids],
        "position": text.rows[row],
        "answers": [spell(i) for i in answers],
        "difference": round_number(difference),
        "other_difference": round_number(other_difference),
        "maps": maps,
    }


def choose_answers(text: LeverInput, other: LeverInput) -> tuple[int, list[int]]:
    """A row, and the two tokens or classes whose logits are compared: the best of each text.

    It is the last row of a language model, else the first in which the best ones differ. Where they are the
    same, the second is the one of the likely ones that gains most.
    """
    best, other_best = text.plain_logits.argmax(-1), other.plain_logits.argmax(-1)
    differing = (best != other_best).nonzero()[:, 0].tolist()
    row = len(best) - 1 if isinstance(text.model, CausalLM) or not differing else differing[0]
    answer, other_answer = int(best[row]), int(other_best[row])
    if answer == other_answer:
        gains = (other.plain_logits - text.plain_logits)[row].double()
        likely = text.plain_logits[row].topk(min(TOP_K, len(gains))).indices
        gains = (gains - gains[answer]).abs()
        other_answer = int(likely[gains[likely].argmax()])
    return row, [answer, other_answer]


def subtract_logits(logits: Tensor, answers: Sequence[int]) -> Tensor:
    """The logit of the first token less that of the second: (..., V) -> (...)."""
    return logits[..., answers[0]].double() - logits[..., answers[1]].double()


def patch_stack(text: LeverInput, other: LeverInput, stack: str, window: tuple[int, int], row: int) -> Tensor:
    """A row of the logits of ``other`` with a vector of ``text`` at each layer and token: (L + 1, T, V)."""
    states, other_states = text.plain_states, other.plain_states
    positions = torch.arange(*window, device=states[stack][0].device)
    size = max(1, _MAX_LOGITS // max(1, other.plain_logits[0].numel() * len(other.tokens)))
    layers = []
    for layer in range(len(states[stack]) - 1):
        chunks = []
        for part in positions.split(size):
            x = other_states[stack][layer].repeat(len(part), 1, 1)
            x[torch.arange(len(part)), part] = states[stack][layer][0, part]
            model = continue_from(other, stack, layer, x)
            chunks.append(other.compute_copies(model, len(part))[:, row])
        layers.append(torch.cat(chunks))
    return torch.stack(layers)


def continue_from(lever_input: LeverInput, stack: str, layer: int, x: Tensor) -> Any:
    """The model whose layers from ``layer`` of a stack on read x (N, T, C), whatever comes before."""
    model = copy_modules(lever_input.model)
    part = list_stacks(model)[stack]
    if stack == "decoder":
        encoded = lever_input.plain_states["encoder"][-1]
        cast(Any, model).encoder = RecordedOutput(encoded.expand(len(x), -1, -1))
    part.layers = StackLayers(part.layers[layer:])
    part.register_forward_pre_hook(lambda module, args: (x, *args[1:]))
    return model
