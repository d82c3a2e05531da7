"""Rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from polyhead.config import Shape
from polyhead.errors import UserError, show
from polyhead.nn.kv import whole
from polyhead.nn.position.base import Position
from polyhead.nn.position.distance import agreed
from polyhead.nn.position.once import Once
from polyhead.nn.position.scaling import SCALINGS, WANTS, Scaling, Turns
from polyhead.registry import POSITION

Layout = Literal["half", "interleaved"]
"""Which features are a pair: j and j + width / 2, as in Llama's checkpoints, or 2j and 2j + 1, as in the paper."""


@POSITION.register("rope")
class Rope(Position):
    """Turn each pair of features of a query or key by an angle that grows with its position.

    So their product depends on the distance alone. Angles are computed in fp32. ``scaling`` stretches them for texts
    longer than those of training: "linear" all alike (Chen et al., 2023), "ntk" by a larger theta, the fast ones the
    least, "yarn" the slow ones alone, with sharper scores (Peng et al., 2023), "llama3" those below four turns (Llama 3.1, 2024),
    "longrope" each by a number of its own, found by a search (Ding et al., 2024; Phi-3).

    Equation: (x_a, x_b) -> (x_a cos iω_j - x_b sin iω_j,  x_b cos iω_j + x_a sin iω_j),  ω_j = theta^(-2j/D)
    Paper: Su et al., 2021, eq. 34
    When: a good first choice, above all where distance matters more than place, as in copying figures
    Options:
      theta: base of the angles
      layout: pair (a, b) is features (j, j + D/2) as in Llama's checkpoints, or (2j, 2j + 1) as in GPT-J's
      fraction: part of the features that turn, the first ones (GPT-NeoX, Phi)
      scaling: how angles are stretched
      factor: how many times longer texts are than those of training
      original_len: tokens that the model was trained with, for yarn, llama3 and longrope
      short: for longrope, by how much each pair turns more slowly where max_len is original_len at most
      long: the same where max_len is above it
    """

    def __init__(
        self,
        shape: Shape,
        *,
        theta: float = 10000.0,
        layout: Layout = "half",
        fraction: float = 1.0,
        scaling: Scaling = "none",
        factor: float = 1.0,
        original_len: int | None = None,
        short: list[float] | None = None,
        long: list[float] | None = None,
    ) -> None:
        super().__init__(shape)
        self.width = _width(shape, fraction)
        if theta <= 1:
            raise UserError(f"theta of rope is {theta}; the angles fall with its powers, so it is above 1")
        if factor < 1 or (factor > 1 and scaling == "none"):
            raise UserError(
                f"factor of rope is {factor} with scaling {scaling!r}; at least 1, and above 1 with a scaling alone"
            )
        for name, given in {"original_len": original_len, "short": short, "long": long}.items():
            those, wants = WANTS[name]
            if (given is not None) != (scaling in those):
                raise UserError(
                    f"{name} of rope is {show(given)}: {wants}, the others do not read it; here scaling is {scaling!r}"
                )
        least = 2 if scaling == "longrope" else 1  # its logarithm divides
        if original_len is not None and original_len < least:
            raise UserError(
                f"original_len of rope counts tokens, at least {least}; here it is {original_len}"
            )
        pairs = self.width // 2
        for name, slower in {"short": short, "long": long}.items():
            if slower is not None and (len(slower) != pairs or not all(x > 0 for x in slower)):
                raise UserError(
                    f"{name} of rope is {show(slower)}, wanted {pairs} numbers above 0: one for each pair of features"
                )
        if scaling == "ntk" and self.width == 2:
            raise UserError("scaling 'ntk' leaves the fastest pair alone, and here is no other: use 'linear'")
        self.theta, self.layout, self.scaling = theta, layout, scaling
        self.factor, self.original_len = factor, original_len
        self.slower = (short if shape.max_len <= (original_len or 0) else long) or ()
        rate, self.gain = self._rates()
        self.register_buffer("rate", rate, persistent=False)
        self.rate: Tensor
        self._once = Once()

    def _rates(self) -> tuple[Tensor, float]:
        # even for a model that is built on the meta device: there arange costs two seconds
        with torch.device("cpu"):
            turns = Turns(self.theta, self.width, self.factor, self.original_len or 1, self.slower)
            rates, gain = SCALINGS[self.scaling](turns)
        return rates.to(torch.get_default_device()), gain

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rope:
        """Other devices, but always fp32: rates rounded to bf16 are off by radians a thousand tokens later."""
        super()._apply(fn, recurse)
        self.rate = self._rates()[0].to(self.rate.device)
        self._once = Once()
        return self

    def rotate(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, H, T, D), (B, T) -> (B, H, T, D)."""
        if torch.compiler.is_exporting():
            return self._written_out(x, pos)
        cos, sin = self._once(self._turns, pos, x.size(1), x.size(2), x.device)
        if not torch.is_grad_enabled():  # what surrounds a function of autograd's takes as long as this one
            return _turned(x, cos, sin, self.layout)
        out: Tensor = _Turn.apply(x, cos, sin, self.layout)
        return out

    def scaled(self, x: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D)."""
        if self.gain == 1:
            return x
        return torch.cat([x[..., : self.width] * self.gain, x[..., self.width :]], -1)

    def _written_out(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """The same for a graph that is exported, where nothing is written into what is there already."""
        angle = (whole(x.size(2), x.device) if pos is None else pos)[:, None, :, None] * self.rate
        cos, sin = (y * self.gain for y in (angle.cos(), angle.sin()))
        turning, rest = x[..., : self.width].to(cos.dtype), x[..., self.width :]
        half = self.layout == "half"
        a, b = turning.chunk(2, -1) if half else turning.unflatten(-1, (-1, 2)).unbind(-1)
        turned = [a * cos - b * sin, b * cos + a * sin]
        out = torch.cat(turned, -1) if half else torch.stack(turned, -1).flatten(-2)
        return torch.cat([out.to(x.dtype), rest], -1) if rest.size(-1) else out.to(x.dtype)

    def _turns(
        self, pos: Tensor | None, heads: int, length: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """cos and sin of the angles: (B, T) -> (1|B, T, H, width / 2) each, fp32.

        All heads have the same, but products with numbers that are there take half the time.
        """
        angle = (whole(length, device) if pos is None else agreed(pos))[:, :, None, None] * self.rate
        cos, sin = ((x * self.gain).expand(-1, -1, heads, -1) for x in (angle.cos(), angle.sin()))
        return cos.contiguous(), sin.contiguous()


class _Turn(torch.autograd.Function):
    """The rotation, in fp32 at least; it takes as few passes back as forth, where autograd would take more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout = layout
        return _turned(x, cos, sin, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        back: Tensor = _Turn.apply(grad, cos, -sin, ctx.layout)
        return back, None, None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)  # bf16 has no fast products on the CPU
    # (B, T, H, D), which is how the heads of a projection lie in memory, and those of a gradient need not
    y = x.transpose(1, 2).to(wide, memory_format=torch.contiguous_format).contiguous()
    out, width = torch.empty_like(y), 2 * cos.size(-1)
    _TURNS[layout](y[..., :width], cos, sin, out[..., :width])
    if width < y.size(-1):
        out[..., width:] = y[..., width:]
    return out.to(x.dtype).transpose(1, 2)


def _half(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """(..., width), (..., width / 2) twice -> out (..., width)."""
    (a, b), (to_a, to_b) = x.chunk(2, -1), out.chunk(2, -1)
    torch.mul(a, cos, out=to_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=to_b).addcmul_(a, sin)


def _interleaved(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """The same with pairs side by side, which are complex numbers."""
    pairs = x.unflatten(-1, (-1, 2))
    if any(step % 2 for step in (pairs.storage_offset(), *pairs.stride()[:-1])):
        pairs = pairs.clone(memory_format=torch.contiguous_format)  # complex numbers lie on even places
    out.copy_(torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin)).flatten(-2))


_TURNS = {"half": _half, "interleaved": _interleaved}


def _width(shape: Shape, fraction: float) -> int:
    """How many features turn; they must be pairs."""
    if not 0 < fraction <= 1:
        raise UserError(
            f"fraction of rope is the part of head_dim that turns, above 0 to 1; here it is {fraction}"
        )
    width = int(shape.head_dim * fraction)
    if width % 2 == 0 and width:
        return width
    if fraction < 1:
        near = max(2, 2 * round(shape.head_dim * fraction / 2))
        raise UserError(
            f"fraction {fraction} of head_dim {shape.head_dim} is {width} features, and rope turns pairs; "
            f"the nearest fraction is {near / shape.head_dim:g}"
        )
    even = " or ".join(str(n) for n in (width - 1, width + 1) if n)
    raise UserError(
        f"head_dim must be even for rope, which turns pairs of features; here it is {width} "
        f"(d_model {shape.d_model}, n_heads {shape.n_heads}); the nearest head_dim is {even}"
    )
