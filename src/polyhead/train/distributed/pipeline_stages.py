"""Partition a model into pipeline stages; tasks need no changes.

A stage runs the loss of the task on the model as it is. What lies before the stage is replaced by the hidden
states that it receives. Its end raises ``StageOutput`` with those that it sends. All processes of a pipeline
have the batch; only hidden states travel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.core.errors import UserError
from polyhead.models import CausalLM, Seq2Seq
from polyhead.nn.position.base import Position
from polyhead.nn.stack import Stack

ReadHidden = Callable[[torch.Size], Tensor]
"""Returns the next hidden states that a stage has received, for tokens of a shape: (B, T) -> (B, T, C)."""


class Trunk(NamedTuple):
    """An embedding and the stack after it, as attributes of the module that contains them."""

    parent: Any
    embedding: str
    stack: str

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The layers of the stack."""
        layers: Sequence[nn.Module] = getattr(self.parent, self.stack).layers
        return layers


def find_trunks(model: nn.Module) -> list[Trunk]:
    """The trunks of a model, in the order of execution: encoder and decoder, or only one."""
    if isinstance(model, Seq2Seq):
        return [Trunk(model, "encoder_embedding", "encoder"), Trunk(model, "decoder_embedding", "decoder")]
    return [Trunk(model if isinstance(model, CausalLM) else model.encoder, "embedding", "stack")]


class StageOutput(Exception):  # noqa: N818  # no error
    """Ends a forward pass at the end of a stage, with the hidden states for the next one."""

    def __init__(self, hidden_states: list[Tensor]) -> None:
        super().__init__("the end of a pipeline stage")
        self.hidden_states = hidden_states


class AbsentPart(nn.Module):
    """In place of a part that another process has, with the weights in it that this process uses elsewhere.

    So every weight has the name that it has in the whole model, also a tied one.
    """

    def forward(self, *inputs: Any) -> Tensor:
        raise AssertionError("this part of the model belongs to another process of the pipeline")


class StageStart(nn.Module):
    """In place of the embedding: the hidden states that the stage has received.

    ``absent`` are the parts of other processes, with the weights in them that are used elsewhere.
    """

    stage: Stage

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.absent = nn.ModuleList()

    def forward(self, tokens: Tensor, *inputs: Any) -> Tensor:
        return self.stage.read_hidden(tokens.shape)


class LaterStart(nn.Module):
    """In place of the decoder's embedding in a stage that ends before the decoder."""

    def forward(self, *inputs: Any) -> None:
        return None


class EncoderEnd(nn.Module):
    """The final norm of an encoder, which notes its output: it is sent along with the decoder's states."""

    def __init__(self, norm: nn.Module | None) -> None:
        super().__init__()
        self.norm = norm
        self.output: Tensor | None = None

    def forward(self, x: Tensor, pos: Tensor | None) -> Tensor:
        self.output = x if self.norm is None else self.norm(x, pos)
        return self.output


class StageEnd(nn.Module):
    """In place of the final norm, or after it: leaves the forward pass with the hidden states to send."""

    def __init__(self, norm: nn.Module | None = None, encoder_end: EncoderEnd | None = None) -> None:
        super().__init__()
        self.norm, self.encoder_end = norm, encoder_end

    def forward(self, x: Tensor, pos: Tensor | None) -> Tensor:
        hidden_states = [x if self.norm is None else self.norm(x, pos)]
        if self.encoder_end is not None:
            assert self.encoder_end.output is not None
            hidden_states.append(self.encoder_end.output)
            self.encoder_end.output = None
        raise StageOutput(hidden_states)


class SizeProbe(nn.Module):
    """In place of an embedding, to note the number of its tokens.

    It keeps the layers that do not run, as tasks ask the weights of a model for their device.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers, self.n_tokens = layers, 0

    def forward(self, tokens: Tensor, *inputs: Any) -> None:
        self.n_tokens = tokens.numel()


class Replacement(NamedTuple):
    """A part of the model and what is in its place while a stage runs."""

    parent: nn.Module
    name: str
    part: nn.Module | None


class Stage:
    """Some layers in a row, with the embedding before the first and the head after the last of all."""

    def __init__(self, index: int, last_trunk: int, splits_backward: bool) -> None:
        self.index, self.last_trunk = index, last_trunk  # ``last_trunk``: the trunk in which it ends
        # whether the gradients of its weights can be computed later than that of its input
        self.splits_backward = splits_backward
        self.replacements: list[Replacement] = []
        self.read_hidden: ReadHidden

    @contextmanager
    def run(self, read_hidden: ReadHidden) -> Iterator[None]:
        """Inside the context a forward pass of the model is that of this stage."""
        self.read_hidden = read_hidden
        with replace_parts(self.replacements):
            yield


@contextmanager
def replace_parts(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Replace parts of a model inside the context."""
    originals = [getattr(parent, name) for parent, name, _ in replacements]
    for parent, name, part in replacements:
        setattr(parent, name, part)
    try:
        yield
    finally:
        for (parent, name, _), original in zip(replacements, originals, strict=True):
            setattr(parent, name, original)


def partition_layers(n_layers: int, n_stages: int) -> list[range]:
    """The layers of each stage; the first stages have one more, as the last one computes the loss as well."""
    sizes = [n_layers // n_stages + (i < n_layers % n_stages) for i in range(n_stages)]
    return [range(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(n_stages)]


class PartitionedModel:
    """The stages of a model that this process has, of a partition of the whole model.

    ``model`` keeps its structure and the names of its weights. ``ranks_of_weights`` has the ranks that use
    each weight of the whole model: several for one that is tied between parts in different stages.
    """

    def __init__(self, model: nn.Module, ranks_of_stages: Sequence[int], rank: int) -> None:
        self.model, self.trunks = model, find_trunks(model)
        n_stages = len(ranks_of_stages)
        layers = [(t, i) for t, trunk in enumerate(self.trunks) for i in range(len(trunk.layers))]
        self._layers_of_stages = [
            [layers[n] for n in numbers] for numbers in partition_layers(len(layers), n_stages)
        ]
        remove_embedding_positions(model, self.trunks)
        users: dict[int, set[int]] = {}
        for index, user in enumerate(ranks_of_stages):
            for part in self._list_parts(index):
                for parameter in part.parameters():
                    users.setdefault(id(parameter), set()).add(user)
        self.ranks_of_weights: dict[str, list[int]] = {
            name: sorted(users.get(id(parameter), ())) for name, parameter in model.named_parameters()
        }
        check_trainable(model, self.ranks_of_weights, max(ranks_of_stages) + 1)
        self.last_trunks = [numbers[-1][0] for numbers in self._layers_of_stages]
        own_indices = [index for index, user in enumerate(ranks_of_stages) if user == rank]
        self.size_probe = self._build_probe()
        self.stages = [self._build_stage(index) for index in own_indices]
        absent = self._remove_absent_parts(
            own_indices, {key for key, ranks in users.items() if rank in ranks}
        )
        for start in (part for stage in self.stages for _, _, part in stage.replacements):
            if isinstance(start, StageStart):
                start.absent.extend(absent)

    def count_hidden(self, run_model: Callable[[], Any]) -> list[int]:
        """The number of tokens that each trunk reads in a forward pass."""
        probes, replacements = self.size_probe
        with replace_parts(replacements):
            try:
                run_model()
            except StageOutput:
                return [probe.n_tokens for probe in probes]
        raise AssertionError("the loss does not run the model")

    def _list_parts(self, index: int) -> list[nn.Module]:
        """The parts of a stage of the whole model."""
        numbers = self._layers_of_stages[index]
        parts = []
        for t, trunk in enumerate(self.trunks):
            stack: Stack = getattr(trunk.parent, trunk.stack)
            parts += [stack.layers[i] for u, i in numbers if u == t]
            if (t, 0) in numbers:
                parts.append(getattr(trunk.parent, trunk.embedding))
            if (t, len(stack.layers) - 1) in numbers and stack.final_norm is not None:
                parts.append(stack.final_norm)
        return parts + (self._list_heads() if index == len(self._layers_of_stages) - 1 else [])

    def _list_heads(self) -> list[nn.Module]:
        """The parts after the last trunk."""
        bodies = {id(trunk.parent) for trunk in self.trunks}
        for trunk in self.trunks:
            bodies |= {id(getattr(trunk.parent, name)) for name in (trunk.embedding, trunk.stack)}
        return [part for part in self.model.children() if id(part) not in bodies]

    def _build_stage(self, index: int) -> Stage:
        numbers = self._layers_of_stages[index]
        last = self.last_trunks[index]
        uses = Counter(id(w) for part in self._list_parts(index) for w in part.parameters())
        # torch splits the graph at the input's path, which parts before a decoder's first cross-attention and
        # weights with several uses are not on
        begins_decoder = index > 0 and any(t > 0 and i == 0 for t, i in numbers)
        stage = Stage(index, last, not begins_decoder and max(uses.values(), default=1) == 1)
        encoder_end = None
        for t, trunk in enumerate(self.trunks):
            stack: Stack = getattr(trunk.parent, trunk.stack)
            own = [stack.layers[i] for u, i in numbers if u == t]
            begins, ends = (t, 0) in numbers, (t, len(stack.layers) - 1) in numbers
            norm = stack.final_norm if ends else None
            if not begins:
                start = LaterStart() if t > last else StageStart(stage)
                stage.replacements.append(Replacement(trunk.parent, trunk.embedding, start))
            if t == last and index < len(self._layers_of_stages) - 1:
                norm = StageEnd(norm, encoder_end)
            elif t < last and index < len(self._layers_of_stages) - 1:
                norm = encoder_end = EncoderEnd(norm)
            stage.replacements += [
                Replacement(stack, "layers", nn.ModuleList(own)),
                Replacement(stack, "final_norm", norm),
            ]
        return stage

    def _build_probe(self) -> tuple[list[SizeProbe], list[Replacement]]:
        probes = [SizeProbe(getattr(trunk.parent, trunk.stack).layers) for trunk in self.trunks]
        replacements = []
        for probe, trunk in zip(probes, self.trunks, strict=True):
            stack = getattr(trunk.parent, trunk.stack)
            replacements += [
                Replacement(trunk.parent, trunk.embedding, probe),
                Replacement(stack, "layers", nn.ModuleList()),
                Replacement(stack, "final_norm", StageEnd()),
            ]
        return probes, replacements

    def _remove_absent_parts(self, own_indices: Sequence[int], used: set[int]) -> list[AbsentPart]:
        """Replace the parts of other processes, so that their memory is free; returns what is there now."""
        own = {id(part) for index in own_indices for part in self._list_parts(index)}
        own_layers = {number for index in own_indices for number in self._layers_of_stages[index]}
        for t, trunk in enumerate(self.trunks):
            stack: Stack = getattr(trunk.parent, trunk.stack)
            for i, layer in enumerate(stack.layers):
                if (t, i) not in own_layers:
                    stack.layers[i] = make_absent(layer, used)
            embedding = getattr(trunk.parent, trunk.embedding)
            if id(embedding) not in own:
                setattr(trunk.parent, trunk.embedding, make_absent(embedding, used))
            if stack.final_norm is not None and id(stack.final_norm) not in own:
                stack.final_norm = make_absent(stack.final_norm, used)
        for name, part in list(self.model.named_children()):
            if any(part is head for head in self._list_heads()) and id(part) not in own:
                setattr(self.model, name, make_absent(part, used))
        return [part for part in self.model.modules() if isinstance(part, AbsentPart)]


def remove_embedding_positions(model: Any, trunks: Sequence[Trunk]) -> None:
    """Remove position schemes from the layers, with their tables, where only the embedding reads them."""
    nothing = Position(model.config.attention_shape(causal=False))
    for trunk in trunks:
        parts = [part for layer in trunk.layers for part in layer.modules()]
        for part in parts:
            for name, child in list(part.named_children()):
                if isinstance(child, Position) and child.kind == "embeddings":
                    setattr(part, name, nothing)


def check_trainable(model: nn.Module, ranks_of_weights: Mapping[str, Sequence[int]], size: int) -> None:
    """Raise a UserError, the same on all ranks, if one of ``size`` ranks would have nothing to train."""
    busy = {
        rank
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        for rank in ranks_of_weights[name]
    }
    if idle := sorted(set(range(size)) - busy):
        raise UserError(
            f"train.parallel.pipeline={size}: all weights of process {idle[0] + 1} of {size} are frozen, so "
            "it would have nothing to train; set a lower number, or freeze less"
        )


def make_absent(part: nn.Module, used: set[int]) -> AbsentPart:
    """The placeholder of a part, with its weights whose id() is in ``used``, in modules of the same names."""
    absent = AbsentPart()
    for name, parameter in part.named_parameters(recurse=False):
        if id(parameter) in used:
            absent.register_parameter(name, parameter)
    for name, child in part.named_children():
        ids = {id(parameter) for parameter in child.parameters()}
        if ids & used:
            absent.add_module(name, child if ids <= used else make_absent(child, used))
    return absent


def pack(hidden_states: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
    """Hidden states as one tensor of ``size`` numbers, 0 after them, so that all batches have one shape."""
    flat = torch.cat([x.to(dtype).flatten() for x in hidden_states])
    packed = nn.functional.pad(flat, (0, size - len(flat)))
    # the schedules pass gradients through every stage, also where all weights so far are frozen
    return packed if packed.requires_grad or not torch.is_grad_enabled() else packed.requires_grad_()


def unpack(flat: Tensor, d_model: int) -> ReadHidden:
    """Reads the hidden states of ``pack`` one after the other."""
    start = 0

    def read_hidden(shape: torch.Size) -> Tensor:
        nonlocal start
        begin, start = start, start + shape.numel() * d_model
        return flat[begin:start].view(*shape, d_model)

    return read_hidden
