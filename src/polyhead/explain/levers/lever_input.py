"""The input of one text for the levers, and the same text read through a cache, token by token.

The input has token ids, the rows of output that are compared, and their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.explain.inputs import ModelInputs
from polyhead.generation.engine.request import require_finite
from polyhead.introspect.compute_attention import AttentionWeights, record_attention
from polyhead.models import (
    CausalLM,
    Classifier,
    MaskedLM,
    Model,
    ReplacedTokenDetector,
    SentenceEncoder,
    Seq2Seq,
)
from polyhead.nn.cache import Cache
from polyhead.nn.kv import KV, EncoderMemory
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
    windows: Sequence[tuple[int, int]] | None = None  # the tokens of each text that a page shows; None: all

    @cached_property
    def plain_logits(self) -> Tensor:
        """The logits of the unchanged model: (R, V)."""
        return self.compute_logits(self.model)

    @cached_property
    def plain_states(self) -> dict[str, list[Tensor]]:
        """The input of each layer of the unchanged model by stack, the output of the last, and that of the
        stack: (1, T, C).
        """
        model = copy_modules(self.model)
        states = {name: record_layers(stack) for name, stack in list_stacks(model).items()}
        self.compute_logits(model)
        return states

    @cached_property
    def plain_weights(self) -> AttentionWeights:
        """The weights of every attention of the unchanged model."""
        _ = self.plain_states  # a pass without hooks, before those of a change are registered
        with record_attention(self.model) as weights_by_name:
            self.compute_logits(self.model)
        return weights_by_name

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
        return self.compute_copies(model, 1)[0]

    @torch.inference_mode()
    def compute_copies(self, model: Any, n: int) -> Tensor:
        """The logits of n copies of the text, which a changed model may treat differently: (n, R, V)."""
        device = next(self.model.parameters()).device
        sides = [self.tokens] if self.source is None else [self.source, self.tokens]
        args: list[Tensor | None] = [torch.tensor([ids] * n, device=device) for ids in sides]
        if self.segments is not None:
            args += [None, torch.tensor([self.segments] * n, device=device)]
        logits: Tensor = require_finite(model(*args).float().cpu())
        if isinstance(model, Classifier):
            return (logits if logits.size(1) > 1 else F.pad(logits, (1, 0)))[:, None]
        if isinstance(model, ReplacedTokenDetector):
            logits = torch.stack([torch.zeros_like(logits), logits], -1)
        return logits[:, torch.tensor(self.rows)]

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
    """The list to which a stack will append its input, the output of each layer, and at last its own."""
    states: list[Tensor] = []

    def start(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        states.append(args[0])
        return args, options | {"states": states}

    stack.register_forward_pre_hook(start, with_kwargs=True)
    stack.register_forward_hook(lambda module, args, output: states.append(output))
    return states


def reuse_layers(model: Model, states: Mapping[str, Sequence[Tensor]], stack: str, layer: int) -> None:
    """Replace all that a model computes before a layer of a stack by its recorded ``states``."""
    parts = list_stacks(model)
    if stack == "decoder":
        cast(Any, model).encoder = RecordedOutput(states["encoder"][-1])
    if layer > 0:
        before, layers = RecordedOutput(states[stack][layer]), parts[stack].layers
        parts[stack].layers = StackLayers([before, *layers[layer:]])


def list_stacks(model: Model) -> dict[str, Stack]:
    """The stacks of a model by name, in order of computation: "encoder" and "decoder", or "stack"."""
    if isinstance(model, Seq2Seq):
        return {"encoder": model.encoder, "decoder": model.decoder}
    return {"stack": model.stack if isinstance(model, CausalLM) else model.encoder.stack}


def read_lever_input(run: Run, inputs: ModelInputs, windows: Sequence[tuple[int, int]]) -> LeverInput:
    """What the levers compare of a text: the outputs of the last side in its window of ``windows``.

    A masked language model predicts its masks, or every token if there is none. UserError for an encoder
    without a head.
    """
    model, tokenizer, side = run.model, run.tokenizer, inputs.sides[-1]
    if isinstance(model, SentenceEncoder):
        raise UserError("an encoder without a head has no output whose change could be measured")
    window = windows[-1]
    rows: list[int | None] = [*range(*window)]
    labels = side.next_ids[slice(*window)]
    if isinstance(model, Classifier):
        rows, labels = [None], [None]
    elif isinstance(model, MaskedLM):
        mask_id = tokenizer.role_ids.get("mask_token")
        masks: list[int | None] = [i for i, token in enumerate(side.ids) if token == mask_id]
        labels = [None] * len(masks) if masks else [*side.ids[slice(*window)]]
        rows = masks or rows
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
        windows,
    )


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


MAX_STEPS = 256  # tokens that are read one by one


class StepwiseReading(NamedTuple):
    """A text that was read through a cache: the logits of its tokens (T, V) and what the cache did."""

    logits: Tensor
    cache: Cache
    layers: list[LayerRecord]  # of the layers with keys and values
    layer_numbers: list[int]


class LayerRecord:
    """Keys and values that were written to one layer of a cache, and what it returned at each step.

    T tokens so far, K key/value heads, D head_dim; the row is left out.
    """

    def __init__(self, layer: Any) -> None:
        self._update: Callable[[KV], KV] = layer.update
        self.is_merged = False  # whether a slot represented several tokens
        self.visible: list[Tensor] = []  # per token (K, t + 1) bool: which positions each head may attend to
        self.positions: list[Tensor] = []  # of the slots at each step, -1 if empty: (K, S)
        self.k: list[Tensor] = []  # (K, t, D) of each step
        self.v: list[Tensor] = []
        self.last: KV | None = None
        layer.update = self.update

    def update(self, kv: KV) -> KV:
        """Call the layer's ``update`` and record its argument and result."""
        self.k.append(kv.k[0].clone())
        self.v.append(kv.v[0].clone())
        result, start = self._update(kv), sum(k.size(1) for k in self.k[:-1])
        pos = result.resolve_positions()[0].expand(kv.k.size(1), -1)  # (K, S)
        self.positions.append(pos.clone())
        self.is_merged |= result.log_count is not None and bool((result.log_count > 0).any())
        for t in range(kv.k.size(2)):
            can_see = pos >= 0
            if result.mask is not None:
                can_see = can_see & result.mask[0, :, min(t, result.mask.size(2) - 1)]
            positions = pos.masked_fill(~can_see | (pos > start + t), start + t + 1)
            row = torch.zeros(len(pos), start + t + 2, dtype=torch.bool, device=pos.device)
            self.visible.append(row.scatter(1, positions, True)[:, :-1].cpu())
        self.last = KV(result.k.clone(), result.v.clone(), pos[None].clone())
        return result

    def measure_errors(self) -> tuple[Tensor, Tensor]:
        """Relative errors of keys and values at the last step: (K, T) each, NaN where a head keeps nothing.

        |k_cache - k| / |k|, k what was written.
        """
        assert self.last is not None and self.last.pos is not None
        pos, visible = self.last.pos[0], self.visible[-1]
        errors = []
        for written, read in ((torch.cat(self.k, 1), self.last.k[0]), (torch.cat(self.v, 1), self.last.v[0])):
            T = written.size(1)
            index = pos.masked_fill((pos < 0) | (pos >= T), T)[..., None].expand_as(read)
            stored = written.new_zeros(len(written), T + 1, written.size(2)).scatter(1, index, read)[:, :T]
            error = (stored - written).norm(dim=-1) / written.norm(dim=-1).clamp(min=1e-30)
            errors.append(error.cpu().masked_fill(~visible, torch.nan))
        return errors[0], errors[1]


@torch.inference_mode()
def read_stepwise(lever_input: LeverInput, choice: Choice | None, prefill: int = 1) -> StepwiseReading:
    """Feed the decoder's input to a cache: ``prefill`` tokens at once, then one token per step."""
    model: Any = lever_input.model
    device, n = next(model.parameters()).device, len(lever_input.tokens)
    cache = make_cache(choice, model.cache_shape, 1, n)
    numbers = model.cache_shape.kv_layers
    records = [LayerRecord(cache.layers[i]) for i in numbers]
    features = []
    for start, stop in [(0, prefill), *((t, t + 1) for t in range(prefill, n))]:
        tokens = torch.tensor([lever_input.tokens[start:stop]], device=device)
        pos = torch.arange(start, stop, device=device)[None]
        cache.prepare_step([0], pos)
        features.append(model.decode_features(tokens, pos, cache, lever_input.memory))
        if any(record.last is None for record in records):
            raise UserError("attention of this model does not write to its cache")
    logits = model.head(torch.cat(features, 1))[0].float().cpu()  # of all tokens at once, which is faster
    return StepwiseReading(logits, cache, records, numbers)
