"""Pack a model's weights for the CPU kernels: same results, faster, inference only."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from polyhead.kernels.attention import PackedAttention, can_fuse
from polyhead.kernels.build_extension import DTYPE_SUFFIX, load_kernels
from polyhead.kernels.fused_step import GreedySteps, PackedStack
from polyhead.kernels.int_linear import Int8Linear, Int8LinearFallback, make_int4_linear, make_int8_linear
from polyhead.kernels.linear import LinearFactory, NativeLinear, PackedLinear, make_linear
from polyhead.kernels.malloc_tuning import trim_heap
from polyhead.kernels.program import UnsupportedLayerError
from polyhead.kernels.stored_layers import StoredLayers
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.embedding import Head
from polyhead.nn.override import replace_modules
from polyhead.nn.stack import Stack

QUANTIZED_LINEARS: dict[str, LinearFactory] = {"int8": make_int8_linear, "int4": make_int4_linear}


def pack_model(
    model: nn.Module, factory: LinearFactory = make_linear, stored_layers: StoredLayers | None = None
) -> nn.Module:
    """Replace Linear, Head and softmax attention modules of a CPU model in eval mode by packed ones.

    Returns the model. Results differ from the unpacked model by rounding only (fp32 about 1e-6).
    ``make_int8_linear`` quantizes weights and their inputs to 8 bits (error about 1e-2 per product),
    ``make_int4_linear`` weights to 4 bits (about 1e-1); everything else stays as it is. Layers in
    ``stored_layers`` are used. Afterwards the model cannot be trained, saved or moved, and takes no hooks.
    The kernels are our own if they could be compiled, else oneDNN's; if this build of torch has neither, or
    the model is on a GPU, nothing changes.
    """
    weight = next(model.parameters())
    is_supported = can_pack() or factory is not make_linear
    if is_supported and weight.device.type == "cpu" and not model.training and weight.dtype in DTYPE_SUFFIX:
        # most of the loss of int4 is in the head, so the head uses int8
        head_factory = make_int8_linear if factory is make_int4_linear else factory
        with_stored = (lambda make: make) if stored_layers is None else stored_layers.wrap
        _pack_modules(model, with_stored(factory), with_stored(head_factory))
        _add_greedy_steps(model)
        _bypass_module_calls(model)
        trim_heap()
    return model


def linear_factory(dtype: str) -> LinearFactory:
    """The factory of linear layers for "int8", "int4", or any other dtype (unquantized)."""
    return QUANTIZED_LINEARS.get(dtype, make_linear)


def packed_dtype(model: nn.Module) -> str:
    """Dtype of a model's matrix products: int8, int4, or float32, bfloat16 and so on."""
    int_dtypes = [part.dtype for part in model.modules() if isinstance(part, Int8Linear | Int8LinearFallback)]
    return min(int_dtypes, default=str(next(model.parameters()).dtype).removeprefix("torch."))


def unused_weights(model: nn.Module, dtype: torch.dtype | None = None) -> set[int]:
    """``id()`` of weights of ``dtype`` (None: any) that are not read any more once the model is packed."""
    parts = [*model.modules()]
    linear_weights = (part.weight for part in parts if type(part) is nn.Linear)
    read_ids = {
        id(x) for part in parts if type(part) is not nn.Linear for x in part.parameters(recurse=False)
    }
    return {id(weight) for weight in linear_weights if dtype in (None, weight.dtype)} - read_ids


def is_packed(model: nn.Module) -> bool:
    """Whether a model has packed weights, which cannot be saved."""
    kinds = NativeLinear, PackedLinear, Int8Linear, Int8LinearFallback, PackedHead
    return any(isinstance(part, kinds) for part in model.modules())


def can_pack() -> bool:
    """Whether this build of torch has oneDNN's packed linear product."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def _pack_modules(parent: nn.Module, factory: LinearFactory, head_factory: LinearFactory) -> None:
    for name, layer in list(parent.named_children()):
        if type(layer) is nn.Linear:  # not a subclass such as a router, whose scores stay exact
            setattr(parent, name, factory(layer.weight, layer.bias))
        elif isinstance(layer, Head):
            setattr(parent, name, PackedHead(layer, head_factory))
        elif isinstance(layer, Attention) and can_fuse(layer):
            setattr(parent, name, PackedAttention(layer, factory))
        else:
            _pack_modules(layer, factory, head_factory)
            if isinstance(layer, Stack):
                setattr(parent, name, _fuse_stack(layer))


def _fuse_stack(stack: Stack) -> Stack:
    """A PackedStack if all layers can be compiled and no module has hooks; else the stack itself."""
    has_hooks = any(part._forward_hooks or part._forward_pre_hooks for part in stack.modules())
    try:
        return stack if has_hooks or load_kernels() is None else PackedStack(stack)
    except UnsupportedLayerError:
        return stack


def _add_greedy_steps(model: nn.Module) -> None:
    """Set ``decode_greedy`` of a decoder whose parts can all be compiled."""
    parts = getattr(model, "decoder_parts", None)
    if parts is None or not isinstance(parts[2], PackedHead):
        return
    with suppress(UnsupportedLayerError):
        cast(Any, model).decode_greedy = GreedySteps(*parts)


def _bypass_module_calls(model: nn.Module) -> None:
    """Make calls of the modules inside a model call ``forward`` directly, and parts plain attributes.

    The hook handling of ``nn.Module.__call__`` and the attribute lookup of ``nn.Module`` take as long as a
    small operation, and a step of a small model has hundreds of both.
    """
    parts = [part for part in model.modules() if not part._forward_hooks and not part._forward_pre_hooks]
    kinds: list[Any] = [type(part) for part in parts]
    replace_modules(model, dict(zip(parts, map(_direct_call_class, kinds), strict=True)))
    for part in model.modules():
        vars(part).update(part._modules | part._parameters)


@cache
def _direct_call_class(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (kind,), {"__call__": kind.forward, "__module__": kind.__module__})


class PackedHead(Head):
    """A head with a packed linear layer."""

    def __init__(self, head: Head, factory: LinearFactory) -> None:
        bias = None if head.bias is None else nn.Parameter(head.bias.detach(), requires_grad=False)
        super().__init__(head.weight.detach(), bias, head.scale, head.softcap)
        self.factory, self.linear = factory, factory(head.weight, head.bias)

    def for_tokens(self, tokens: Tensor) -> PackedHead:
        """A packed head for a subset of the vocabulary."""
        return PackedHead(super().for_tokens(tokens), self.factory)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V)."""
        return self.apply_softcap(self.linear(self.scale_input(x)))
