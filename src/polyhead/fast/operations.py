"""What the layers of a decoder do, written down as operations of the kernels (kernels/step.hpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.fast.attention import PackedAttention
from polyhead.fast.linear import NativeLinear
from polyhead.fast.native import POINTER, WHOLE
from polyhead.fast.whole import WholeLinear
from polyhead.nn.attention.projections import WholeNorm
from polyhead.nn.block.parallel import Parallel
from polyhead.nn.block.transformer import Block
from polyhead.nn.feed_forward.layers import FeedForward, GatedFeedForward, squared
from polyhead.nn.kv import Window
from polyhead.nn.norm import LayerNorm, NoNorm, RMSNorm
from polyhead.nn.position.base import Position
from polyhead.nn.position.rope import Rope
from polyhead.nn.residual import Residual

# the words of step.hpp and activations.hpp, in their order
NORM, ROUND, ANGLES, HEADS, PRODUCT, ATTEND = range(6)
LAYER, RMS = range(2)
FP32, BF16, INT8, INT4 = range(4)
ALONE, ADDED, MULTIPLIED = range(3)
PLAIN, RELU, LEAKY, GELU, GELU_TANH, SILU, SIGMOID, TANH, SQUARED = range(9)
NOWHERE = -1
WAYS = {"int8": INT8, "int4": INT4}

FUNCTIONS: dict[Any, int] = {
    torch.relu: RELU, F.silu: SILU, torch.sigmoid: SIGMOID, torch.tanh: TANH, squared: SQUARED,
}  # fmt: skip
WHOLES = "what in_ out with_ width inner way activation joins heads kv_heads dim v_dim layer source mask"

Ready = tuple[nn.Module, int]  # a linear layer, and the rows that it shall read


class Op(ctypes.Structure):
    """As in step.hpp."""

    _fields_ = [
        *((name, WHOLE) for name in WHOLES.split()),
        *((name, POINTER) for name in ("weight", "bias", "sizes", "offsets")),
        *((name, ctypes.c_double) for name in ("number", "bound")),
    ]


class Unknown(Exception):
    """A part that these operations cannot express."""


class Writer:
    """Operations as they are written down, the room that their rows take, and what they point to.

    Rows of one name and width share a place, for nobody needs the former ones any more. Places count the numbers of a
    token before them.
    """

    def __init__(self, d_model: int) -> None:
        self.ops: list[Op] = []
        self.held: list[Tensor] = []
        self.attentions: list[PackedAttention] = []
        self.windows: list[Window | None] = [None]  # a mask for each
        self.biases: list[Position] = []  # what each adds to scores
        self.width = 0  # of all rows of a token together
        self._places: dict[tuple[object, int], int] = {}
        self.x = self.place("x", d_model)  # what layers read and add to

    def place(self, name: object, width: int) -> int:
        """Where rows of so many numbers lie."""
        if (name, width) not in self._places:
            self._places[name, width] = self.width
            self.width += width
        return self._places[name, width]

    def layer(self, block: nn.Module, number: int) -> None:
        """A layer of the decoder; it reads and writes ``x``."""
        if type(block) not in (Block, Parallel):
            raise Unknown
        assert isinstance(block, Block)
        parts = [(block.attn_residual, partial(self.attention, block.attn, number))]
        if hasattr(block, "cross"):
            parts.append((block.cross_residual, partial(self.attention, block.cross, number, source=True)))
        parts.append((block.ffn_residual, partial(self.feed_forward, block.ffn)))
        if type(block) is Block:
            for residual, part in parts:
                self.join(residual, part(self.normed(residual)))
            return
        if any(isinstance(residual.norm, NoNorm) for residual, _ in parts):
            raise Unknown  # it would read what the others have added already
        given = [self.normed(residual, i) for i, (residual, _) in enumerate(parts)]
        for h, (residual, part) in zip(given, parts, strict=True):
            self.join(residual, part(h))

    def normed(self, residual: Residual, name: object = "normed") -> int:
        """What a sub-layer reads."""
        if not residual.pre or isinstance(residual.norm, NoNorm):
            return self.x
        return self.norm(residual.norm, self.x, name)

    def join(self, residual: Residual, ready: Ready) -> None:
        """The last product of a sub-layer, added to ``x``."""
        layer, h = ready
        if residual.scale != 1:
            raise Unknown
        if residual.after is None or isinstance(residual.after, NoNorm):
            self.product(layer, self.rounded(layer, h), self.x, joins=ADDED, with_=self.x)
        else:
            branch = self.place("branch", _linear(layer).width)
            self.product(layer, self.rounded(layer, h), branch)
            self.norm(residual.after, branch, "x", self.x)
        if not residual.pre and not isinstance(residual.norm, NoNorm):
            self.norm(residual.norm, self.x, "x")

    def norm(self, norm: nn.Module, x: int, name: object, added: int = NOWHERE) -> int:
        """The norm of rows x and what is added to it, at the place that comes back."""
        weight: Tensor
        if type(norm) is LayerNorm:
            way, weight, bias = LAYER, norm.weight, norm.bias
        elif type(norm) is RMSNorm:
            way, weight, bias = RMS, _factor(norm), None
        else:
            raise Unknown
        n = len(weight)
        out = self.place(name, n)
        self.add(
            NORM, x, out, with_=added, width=n, inner=n, way=way, weight=self.hold(weight),
            bias=None if bias is None else self.hold(bias), number=norm.eps,
        )  # fmt: skip
        return out

    def attention(self, attn: nn.Module, number: int, h: int, *, source: bool = False) -> Ready:
        """Queries, keys and values of h, and what queries take of all values; of a source they are there already."""
        if type(attn) is not PackedAttention:
            raise Unknown
        self.attentions.append(attn)
        D, Dv = attn.head_dim, attn.v_head_dim
        heads, kv_heads = attn.widths[0] // D, attn.widths[1] // D
        width = attn.widths[0] if source else attn.qkv.width
        read = self.place("heads", width)
        self.product(attn.qkv, self.rounded(attn.qkv, h), read, width)
        angles, turning, interleaved = self.angles(attn.position)
        about = {"heads": heads, "dim": D, "v_dim": Dv, "layer": number, "source": int(source)}
        normed, whole = isinstance(attn.q_norm, RMSNorm), isinstance(attn.q_norm, WholeNorm)
        if not normed and not isinstance(attn.q_norm, nn.Identity):
            raise Unknown
        if not source or normed or turning:
            factors = [self.hold(_factor(norm)) if normed else None for norm in (attn.q_norm, attn.k_norm)]
            self.add(
                HEADS, read, read, with_=angles, width=width, inner=turning, way=interleaved, kv_heads=0 if source else kv_heads,
                weight=factors[0], bias=factors[1], number=attn.q_norm.eps if normed else 0.0, joins=whole, **about,
            )  # fmt: skip
        window = None if source else attn.window
        if window not in self.windows:
            self.windows.append(window)
        if attn.position.acts_on == "scores" and attn.position not in self.biases:
            self.biases.append(attn.position)
        bias = self.biases.index(attn.position) if attn.position in self.biases else NOWHERE
        out = self.place("merged", heads * Dv)
        self.add(
            ATTEND, read, out, with_=bias, width=heads * Dv, inner=width, kv_heads=kv_heads, mask=self.windows.index(window),
            number=D**-0.5 if attn.scale is None else attn.scale, bound=attn.softcap or 0.0, **about,
        )  # fmt: skip
        return attn.o_proj, out

    def angles(self, position: Position) -> tuple[int, int, bool]:
        """Where the angles of each token lie, how many features they turn, and whether pairs lie side by side."""
        if type(position) is Rope:
            place = self._places.get((position, position.width))
            if place is None:
                place = self.place(position, position.width)
                self.add(
                    ANGLES,
                    0,
                    place,
                    width=position.width,
                    weight=self.hold(position.rate),
                    number=position.gain,
                )
            return place, position.width, position.layout == "interleaved"
        if type(position).rotate is not Position.rotate:
            raise Unknown
        return NOWHERE, 0, False

    def feed_forward(self, ffn: nn.Module, h: int) -> Ready:
        """All but its last product."""
        if type(ffn) is FeedForward:
            inner = self.place("inner", _linear(ffn.up_proj).width)
            self.product(ffn.up_proj, self.rounded(ffn.up_proj, h), inner, activation=ffn.activation)
            return ffn.down_proj, inner
        if type(ffn) is not GatedFeedForward:
            raise Unknown
        gate, inner = (self.place(name, _linear(ffn.up_proj).width) for name in ("gate", "inner"))
        read = self.rounded(ffn.up_proj, h)
        self.product(ffn.gate_proj, read, gate, activation=ffn.activation)
        self.product(ffn.up_proj, read, inner, joins=MULTIPLIED, with_=gate)
        return ffn.down_proj, inner

    def rounded(self, layer: nn.Module, x: int) -> int:
        """The rows x as the product of a layer reads them."""
        layer, way = _linear(layer), _way(layer)
        if way == FP32:
            return x
        out = self.place("rounded", layer.steps + (way >= INT8))
        self.add(ROUND, x, out, width=layer.steps, inner=layer.inputs, way=way)
        return out

    def product(
        self,
        layer: nn.Module,
        x: int,
        out: int,
        width: int | None = None,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        joins: int = ALONE,
        with_: int = 0,
    ) -> None:
        """The first outputs of a linear layer, activated, then joined with other rows."""
        layer, way, (kind, slope) = _linear(layer), _way(layer), _activation(activation)
        panels, *sizes, bias = layer.at
        self.add(
            PRODUCT, x, out, with_=with_, width=width or layer.width, inner=layer.steps, way=way, activation=kind, joins=joins,
            weight=panels, bias=bias, number=slope, **dict(zip(("sizes", "offsets"), sizes, strict=False)),
        )  # fmt: skip

    def add(self, what: int, in_: int, out: int, **rest: Any) -> None:
        """An operation."""
        self.ops.append(Op(what=what, in_=in_, out=out, **{"with_": NOWHERE, **rest}))

    def hold(self, x: Tensor) -> int:
        """The address of numbers in fp32, which stay there."""
        self.held.append(x.detach().float().clone(memory_format=torch.contiguous_format))
        return self.held[-1].data_ptr()


def written(layers: Sequence[nn.Module], final_norm: nn.Module | None) -> tuple[Writer, int]:
    """The operations of a stack of packed layers, and where the result lies; Unknown where a part has none."""
    first = getattr(layers[0], "attn", None)
    if type(first) is not PackedAttention:
        raise Unknown
    writer = Writer(_linear(first.o_proj).width)
    for number, layer in enumerate(layers):
        writer.layer(layer, number)
    if final_norm is None or isinstance(final_norm, NoNorm):
        return writer, writer.x
    return writer, writer.norm(final_norm, writer.x, "out")


def _factor(norm: nn.Module) -> Tensor:
    assert isinstance(norm, RMSNorm)
    return 1 + norm.weight if norm.around_one else norm.weight


def _linear(layer: nn.Module) -> NativeLinear | WholeLinear:
    if not isinstance(layer, NativeLinear | WholeLinear):
        raise Unknown
    return layer


def _way(layer: nn.Module) -> int:
    """How the weights of a linear layer are kept."""
    if isinstance(layer, WholeLinear):
        return WAYS[layer.dtype]
    return FP32 if _linear(layer).dtype == torch.float32 else BF16


def _activation(given: Callable[[Tensor], Tensor] | None) -> tuple[int, float]:
    """Which one it is, and its slope below 0."""
    if given is None:
        return PLAIN, 0.0
    if type(given) is nn.GELU:
        return (GELU_TANH if given.approximate == "tanh" else GELU), 0.0
    if type(given) is nn.LeakyReLU:
        return LEAKY, given.negative_slope
    if type(given) is nn.PReLU and given.weight.numel() == 1:
        return LEAKY, given.weight.item()
    if given not in FUNCTIONS:
        raise Unknown
    return FUNCTIONS[given], 0.0
