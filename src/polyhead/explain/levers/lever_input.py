"""The input of one text for the levers: token ids, the rows of output that are compared, and their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.core.errors import UserError
from polyhead.explain.inputs import ModelInputs
from polyhead.generation.engine.interface import require_finite
from polyhead.models import (
    CausalLM,
    Classifier,
    MaskedLM,
    Model,
    ReplacedTokenDetector,
    SentenceEncoder,
    Seq2Seq,
)
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.stack import Stack, StackLayers
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.word_boundaries import find_word_boundaries

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True)
class LeverInput:
    """One text as a model reads it. ``tokens`` is the decoder's input, or the only one.

    ``rows`` are the indices of the compared outputs in ``tokens``; a classifier has the row None.
    ``labels`` has the true token or class of each row, None where it is unknown. ``words`` has the indices of
    the tokens of each word of the source, or of ``tokens`` if there is no source, without special tokens.
    """

    model: Model
    tokens: list[int]
    rows: list[int | None]
    labels: list[int | None]
    words: list[list[int]]
    eos_id: int
    source: list[int] | None = None
    segments: list[int] | None = None

    @cached_property
    def plain_logits(self) -> Tensor:
        """The logits of the unchanged model: (R, V)."""
        return self.compute_logits(self.model)

    @cached_property
    def plain_states(self) -> dict[str, list[Tensor]]:
        """The output of each layer of the unchanged model by stack, and last that of the stack: (1, T, C)."""
        model = copy_modules(self.model)
        states = {name: record_layers(stack) for name, stack in list_stacks(model).items()}
        self.compute_logits(model)
        return states

    @cached_property
    def memory(self) -> list[EncoderMemory] | None:
        """The source as the layers of the decoder read it; None without a source."""
        if self.source is None:
            return None
        source = torch.tensor([self.source], device=next(self.model.parameters()).device)
        with torch.inference_mode():
            layers = cast(Seq2Seq, self.model).encode(source)
            return [layer.contiguous_for_decoding() for layer in layers]

    @cached_property
    def references(self) -> list[int]:
        """The token whose rank is followed: the true one, or the plain model's most likely one."""
        best: list[int] = self.plain_logits.argmax(-1).tolist()
        return [guess if label is None else label for guess, label in zip(best, self.labels, strict=True)]

    @torch.inference_mode()
    def compute_logits(self, model: Any) -> Tensor:
        """The logits of one forward pass of ``model``, a changed copy: (R, V) in fp32.

        A model with one logit, a replaced-token detector or a reranker, has the classes no and yes, with
        logits 0 and its output.
        """
        device = next(self.model.parameters()).device
        sides = [self.tokens] if self.source is None else [self.source, self.tokens]
        args: list[Tensor | None] = [torch.tensor([ids], device=device) for ids in sides]
        if self.segments is not None:
            args += [None, torch.tensor([self.segments], device=device)]
        logits: Tensor = require_finite(model(*args)[0].float().cpu())
        if isinstance(model, Classifier):
            return logits[None] if len(logits) > 1 else torch.cat([torch.zeros(1), logits])[None]
        if isinstance(model, ReplacedTokenDetector):
            logits = torch.stack([torch.zeros_like(logits), logits], -1)
        return self.select_rows(logits)

    def select_rows(self, logits: Tensor) -> Tensor:
        """The compared rows of the logits of all tokens: (T, V) -> (R, V)."""
        return logits[torch.tensor(self.rows)]

    def replace(self, **changes: Any) -> LeverInput:
        """A copy with other fields."""
        return replace(self, **changes)

    @property
    def side(self) -> int:
        """The index of the text whose outputs are compared: 0, or 1 for the target of an encoder-decoder."""
        return 0 if self.source is None else 1


def copy_modules(module: ModuleT) -> ModuleT:
    """A copy of the modules that shares their parameters and buffers: a change leaves the original alone.

    Modules that occur in several places do so in the copy. ``deepcopy`` takes as long as a forward pass.
    """
    copies: dict[int, nn.Module] = {}

    def copy_part(part: nn.Module) -> nn.Module:
        if id(part) not in copies:
            copies[id(part)] = copied = part.__class__.__new__(part.__class__)
            for name, value in vars(part).items():
                vars(copied)[name] = value.copy() if isinstance(value, dict | list | set) else value
            for name, child in part._modules.items():
                copied._modules[name] = None if child is None else copy_part(child)
        return copies[id(part)]

    return cast(ModuleT, copy_part(module))


class RecordedOutput(nn.Module):
    """A module, or a layer, that returns a recorded output, whatever it is called with."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, *args: Any) -> Tensor:
        """The recorded output."""
        return self.output

    def project_kv(self, *args: Any) -> None:
        """Nothing, as it reads no memory."""


def record_layers(stack: Stack) -> list[Tensor]:
    """The list to which a stack will append the output of each of its layers, and at last its own."""
    states: list[Tensor] = []
    stack.register_forward_pre_hook(
        lambda module, args, options: (args, options | {"states": states}), with_kwargs=True
    )
    stack.register_forward_hook(lambda module, args, output: states.append(output))
    return states


def reuse_layers(model: Model, states: Mapping[str, Sequence[Tensor]], stack: str, layer: int) -> None:
    """Replace all that a model computes before a layer of a stack by its recorded ``states``."""
    parts = list_stacks(model)
    if stack == "decoder":
        cast(Any, model).encoder = RecordedOutput(states["encoder"][-1])
    if layer > 0:
        before, layers = RecordedOutput(states[stack][layer - 1]), parts[stack].layers
        parts[stack].layers = StackLayers([before, *layers[layer:]])


def list_stacks(model: Model) -> dict[str, Stack]:
    """The stacks of a model by name, in order of computation: "encoder" and "decoder", or "stack"."""
    if isinstance(model, Seq2Seq):
        return {"encoder": model.encoder, "decoder": model.decoder}
    return {"stack": model.stack if isinstance(model, CausalLM) else model.encoder.stack}


def read_lever_input(run: Run, inputs: ModelInputs, window: tuple[int, int]) -> LeverInput:
    """What the levers compare of a text: the outputs of ``window`` of its last side.

    A masked language model predicts its masks, or every token if there is none. UserError for an encoder
    without a head.
    """
    model, tokenizer, side = run.model, run.tokenizer, inputs.sides[-1]
    if isinstance(model, SentenceEncoder):
        raise UserError("an encoder without a head has no output whose change could be measured")
    rows: list[int | None] = [*range(*window)]
    labels = side.next_ids[slice(*window)]
    if isinstance(model, Classifier):
        rows, labels = [None], [None]
    elif isinstance(model, MaskedLM):
        rows, labels = _read_masks(side.ids, tokenizer, window)
    source = inputs.sides[0].ids if len(inputs.sides) > 1 else None
    segments = inputs.args[2] if source is None and len(inputs.args) == 3 else None
    return LeverInput(
        model,
        side.ids,
        rows,
        labels,
        list_words(tokenizer, inputs.sides[0].ids),
        tokenizer.seq2seq_template.eos_id if source else tokenizer.eos_id,
        source,
        None if segments is None else segments[0].tolist(),
    )


def _read_masks(
    ids: list[int], tokenizer: Tokenizer, window: tuple[int, int]
) -> tuple[list[int | None], list[int | None]]:
    """The rows and labels of a masked language model: its masks, else every token of the window as it is."""
    mask_id = tokenizer.role_ids.get("mask_token")
    if mask_id in ids:
        masks: list[int | None] = [i for i, token in enumerate(ids) if token == mask_id]
        return masks, [None] * len(masks)
    return [*range(*window)], [*ids[slice(*window)]]


def list_words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[list[int]]:
    """The indices of the tokens of each word, without special tokens other than a mask."""
    special = set(tokenizer.special_ids) - {tokenizer.role_ids.get("mask_token")}
    words: list[list[int]] = []
    starts = find_word_boundaries(tokenizer).find_word_starts(np.array(ids, dtype=np.int64))
    is_apart = True  # whether a special token is before this one
    for i, (token, is_start) in enumerate(zip(ids, starts, strict=True)):
        if token not in special:
            if is_start or is_apart:
                words.append([])
            words[-1].append(i)
        is_apart = token in special
    return words
