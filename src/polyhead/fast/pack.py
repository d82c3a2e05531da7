"""A model whose weights were laid out once for the kernels of the CPU: the same numbers, faster, for inference only."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from polyhead.fast.attention import PackedAttention, can_fuse
from polyhead.fast.int4 import int4_product
from polyhead.fast.int8 import int8_product
from polyhead.fast.linear import NativeLinear, PackedLinear, Product, product
from polyhead.fast.memory import give_back
from polyhead.fast.native import SUFFIX, kernels
from polyhead.fast.operations import Unknown
from polyhead.fast.step import PackedStack
from polyhead.fast.whole import PlainWholeLinear, WholeLinear
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.head import Head
from polyhead.nn.stack import Stack

WHOLE: dict[str, Product] = {"int8": int8_product, "int4": int4_product}


def packed(model: nn.Module, way: Product = product) -> nn.Module:
    """Put packed layers in the place of every Linear, Head and softmax attention of an evaluated CPU model, and return it.

    Results differ from the plain ones by rounding only (fp32 about 1e-6). With ``int8_product`` weights, and what they are
    multiplied with, are rounded to 8 bits (about 1e-2 a product), with ``int4_product`` weights to 4 (about 1e-1), and all else stays as it
    is. The model cannot be trained, saved or moved afterwards, and takes no hooks. The kernels are our own where they could be compiled,
    else oneDNN's; where this build of torch has none of those either, or the model is on a GPU, nothing is changed.
    """
    weight = next(model.parameters())
    known = can_pack() or way is not product
    if known and weight.device.type == "cpu" and not model.training and weight.dtype in SUFFIX:
        # of what 4 bits lose most is lost by the head
        _pack(model, way, int8_product if way is int4_product else way)
        for part in model.modules():
            _lighten(part)
        give_back()
    return model


def product_of(dtype: str) -> Product:
    """How matrices are multiplied that are kept so."""
    return WHOLE.get(dtype, product)


def dtype_of(model: nn.Module) -> str:
    """Of its products: int8, int4, or float32, bfloat16 and so on."""
    rounded = [part.dtype for part in model.modules() if isinstance(part, WholeLinear | PlainWholeLinear)]
    return min(rounded, default=str(next(model.parameters()).dtype).removeprefix("torch."))


def replaced(model: nn.Module, dtype: torch.dtype | None = None) -> set[int]:
    """The ids of weights of that type, or of any, which nothing reads any more when a model is packed."""
    parts = [*model.modules()]
    linear = (part.weight for part in parts if type(part) is nn.Linear)
    read = {id(x) for part in parts if type(part) is not nn.Linear for x in part.parameters(recurse=False)}
    return {id(weight) for weight in linear if dtype in (None, weight.dtype)} - read


def is_packed(model: nn.Module) -> bool:
    """Whether weights lie as kernels read them, and no longer as they can be saved."""
    kinds = NativeLinear, PackedLinear, WholeLinear, PlainWholeLinear, PackedHead
    return any(isinstance(part, kinds) for part in model.modules())


def can_pack() -> bool:
    """Whether this build of torch has oneDNN's packed linear product."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def _pack(parent: nn.Module, product: Product, of_head: Product) -> None:
    for name, layer in list(parent.named_children()):
        if type(layer) is nn.Linear:  # not a router, whose scores stay exact
            setattr(parent, name, product(layer.weight, layer.bias))
        elif isinstance(layer, Head):
            setattr(parent, name, PackedHead(layer, of_head))
        elif isinstance(layer, Attention) and can_fuse(layer):
            setattr(parent, name, PackedAttention(layer, product))
        else:
            _pack(layer, product, of_head)
            if isinstance(layer, Stack):
                setattr(parent, name, _stepping(layer))


def _stepping(stack: Stack) -> Stack:
    """With steps in one call where all of its parts can be written down as operations, and nobody hangs on to one."""
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in stack.modules())
    try:
        return stack if hooked or kernels() is None else PackedStack(stack)
    except Unknown:
        return stack


def _lighten(part: nn.Module) -> None:
    """A call of it becomes a call of its forward, and what it is made of is found at once.

    What torch does around a call, for hooks above all, and its search for parts take as long as a small operation, and
    a step of a small model has hundreds of both.
    """
    if not part._forward_hooks and not part._forward_pre_hooks:
        part.__class__ = _direct(type(part))  # type: ignore[arg-type]
    vars(part).update(part._modules | part._parameters)


@cache
def _direct(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (kind,), {"__call__": kind.forward, "__module__": kind.__module__})


class PackedHead(Head):
    """A head whose product is packed."""

    def __init__(self, head: Head, product: Product) -> None:
        bias = None if head.bias is None else nn.Parameter(head.bias.detach(), requires_grad=False)
        super().__init__(head.weight.detach(), bias, head.scale, head.softcap)
        self.way, self.product = product, product(head.weight, head.bias)

    def narrowed(self, tokens: Tensor) -> PackedHead:
        """A packed head for these tokens alone."""
        return PackedHead(super().narrowed(tokens), self.way)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V)."""
        return self.bounded(self.product(self.scaled(x)))
