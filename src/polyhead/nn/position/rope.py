"""Rotary position embeddings (RoPE)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError, format_value
from polyhead.core.option_types import PositiveFraction, PositiveInt
from polyhead.core.registry import POSITION
from polyhead.nn.position.base import Position
from polyhead.nn.position.relative import same_positions
from polyhead.nn.shard_plan import ShardPlan

Scaling = Literal["none", "linear", "ntk", "yarn", "llama3", "longrope"]
BETA_FAST, BETA_SLOW = 32, 1  # turns within original_len of high- and low-frequency pairs


class RopeFrequencies(NamedTuple):
    """The parameters of a scaling."""

    theta: float  # base of the angles
    rotary_dim: int  # rotated features
    factor: float = 1.0  # text length relative to original_len
    original_len: int = 1  # tokens that the model was trained with
    pair_factors: Sequence[float] = ()  # by how much each pair rotates more slowly (longrope)

    def compute_inv_freq(self) -> Tensor:
        """theta^(-2j / width) for width = rotary_dim (Su et al., 2021, sec. 3.2.2)."""
        return self.theta ** (-torch.arange(0, self.rotary_dim, 2).float() / self.rotary_dim)


def keep_frequencies(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """No scaling."""
    return frequencies.compute_inv_freq(), 1.0


def scale_linear(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """Positions divided by the factor (Chen et al., 2023, eq. 4)."""
    return frequencies.compute_inv_freq() / frequencies.factor, 1.0


def scale_ntk(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """A larger base: the lowest frequency is scaled by the factor, the highest not at all (bloc97, 2023)."""
    larger = frequencies.theta * frequencies.factor ** (frequencies.rotary_dim / (frequencies.rotary_dim - 2))
    return frequencies._replace(theta=larger).compute_inv_freq(), 1.0


def scale_yarn(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """Low frequencies scaled, high ones not, a ramp between; sharper scores.

    Peng et al., 2023, sec. 3.2 to 3.4.
    """
    theta, width, factor, original_len, _ = frequencies

    def find_pair_index(n_rotations: float) -> float:
        """The pair (real-valued, counted in features) with this number of rotations within original_len."""
        return width * math.log(original_len / (n_rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(find_pair_index(BETA_FAST)), 0)
    high = min(math.ceil(find_pair_index(BETA_SLOW)), width - 1)
    top = high if high != low else low + 0.001
    ramp = ((torch.arange(width // 2).float() - low) / (top - low)).clamp(0, 1)
    rates = frequencies.compute_inv_freq()
    return rates * (1 - ramp) + rates / factor * ramp, yarn_attention_factor("yarn", factor, original_len)


def scale_llama3(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """Pairs of less than one turn in original_len are scaled, those of four or more not (Llama 3.1, 2024)."""
    rates = frequencies.compute_inv_freq()
    n_turns = frequencies.original_len * rates / (2 * math.pi)
    unscaled = ((n_turns - 1) / 3).clamp(0, 1)
    return rates * unscaled + rates / frequencies.factor * (1 - unscaled), 1.0


def scale_longrope(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """Each pair by its own factor, found by a search; sharper scores (Ding et al., 2024, sec. 3; Phi-3)."""
    gain = yarn_attention_factor("longrope", frequencies.factor, frequencies.original_len)
    return frequencies.compute_inv_freq() / torch.tensor(frequencies.pair_factors), gain


def yarn_attention_factor(scaling: str, factor: float, original_len: int) -> float:
    """Factor on queries and keys that keeps attention sharp in longer texts; 1 if texts are not longer."""
    if factor <= 1 or scaling not in ("yarn", "longrope"):
        return 1.0
    log_factor = math.log(factor)
    return 0.1 * log_factor + 1 if scaling == "yarn" else math.sqrt(1 + log_factor / math.log(original_len))


ROPE_SCALINGS: dict[str, Callable[[RopeFrequencies], tuple[Tensor, float]]] = {
    "none": keep_frequencies,
    "linear": scale_linear,
    "ntk": scale_ntk,
    "yarn": scale_yarn,
    "llama3": scale_llama3,
    "longrope": scale_longrope,
}
SCALING_OPTIONS = {
    "original_len": (
        ("yarn", "llama3", "longrope"),
        "scaling 'yarn' requires original_len, as do 'llama3' and 'longrope'",
    ),
    "short": (("longrope",), "scaling 'longrope' requires a number for each pair"),
    "long": (("longrope",), "scaling 'longrope' requires a number for each pair"),
}
"""Options that only some scalings take: those scalings, and the requirement as an error message."""


RopeLayout = Literal["half", "interleaved"]
"""Which features form a pair.

half: j and j + width / 2, as in Llama's checkpoints; interleaved: 2j and 2j + 1, as in the paper.
"""

RotaryTables = dict[int, tuple[Tensor, Tensor]]
"""cos and sin of the angles for each number of heads H: (1|B, T, H, width / 2) each, fp32."""


@POSITION.register("rope")
class Rope(Position):
    """Turn each pair of features of a query or key by an angle that grows with its position.

    Their product then depends only on the distance. Angles are computed in fp32. ``scaling`` stretches them
    for texts longer than those of training: "linear" all equally (Chen et al., 2023), "ntk" by a larger
    theta, high frequencies least, "yarn" only low frequencies, with sharper scores (Peng et al., 2023),
    "llama3" those below four turns (Llama 3.1, 2024), "longrope" each by its own factor, found by a search
    (Ding et al., 2024; Phi-3).

    Equation: (x_a, x_b) -> (x_a cos iω_j - x_b sin iω_j,  x_b cos iω_j + x_a sin iω_j),  ω_j = theta^(-2j/D)
    Paper: Su et al., 2021, eq. 34
    When: a good first choice, above all where distance matters more than position, as in copying numbers
    Options:
      theta: base of the angles
      layout: pair (a, b) is features (j, j + D/2) as in Llama's checkpoints, or (2j, 2j + 1) as in GPT-J's
      fraction: fraction of the features that are rotated, the first ones (GPT-NeoX, Phi)
      scaling: how angles are stretched
      factor: how many times longer texts are than those of training
      original_len: tokens that the model was trained with, for yarn, llama3 and longrope
      short: for longrope, factors by which each pair rotates more slowly if max_len is original_len at most
      long: the same for max_len above it
    """

    shard_plan = ShardPlan()

    def __init__(
        self,
        shape: AttentionShape,
        *,
        theta: Annotated[float, Field(gt=1)] = 10000.0,
        layout: RopeLayout = "half",
        fraction: PositiveFraction = 1.0,
        scaling: Scaling = "none",
        factor: Annotated[float, Field(ge=1)] = 1.0,
        original_len: PositiveInt | None = None,
        short: list[float] | None = None,
        long: list[float] | None = None,
    ) -> None:
        super().__init__(shape)
        self.rotary_dim = _compute_rotary_dim(shape, fraction)
        if factor > 1 and scaling == "none":
            raise UserError(f"factor of rope is {factor}; it requires a scaling")
        for name, value in {"original_len": original_len, "short": short, "long": long}.items():
            scalings, requirement = SCALING_OPTIONS[name]
            if (value is not None) != (scaling in scalings):
                raise UserError(
                    f"{name} of rope is {format_value(value)}: {requirement}, the others ignore it; "
                    f"scaling is {scaling!r}"
                )
        if scaling == "longrope" and original_len == 1:  # its logarithm divides
            raise UserError("original_len of rope must be at least 2 tokens for longrope, got 1")
        pairs = self.rotary_dim // 2
        for name, factors in {"short": short, "long": long}.items():
            if factors is not None and (len(factors) != pairs or not all(x > 0 for x in factors)):
                raise UserError(
                    f"{name} of rope is {format_value(factors)}, expected {pairs} numbers above 0, one for "
                    "each pair of features"
                )
        if scaling == "ntk" and self.rotary_dim == 2:
            raise UserError(
                "scaling 'ntk' does not scale the fastest pair, and there is no other: use 'linear'"
            )
        self.theta, self.layout, self.scaling = theta, layout, scaling
        self.factor, self.original_len = factor, original_len
        self.pair_factors = (short if shape.max_len <= (original_len or 0) else long) or ()
        self.head_counts = {shape.n_heads, shape.n_kv_heads}
        self.tables: RotaryTables = {}  # of one forward pass, in a copy that ``prepare`` makes
        self.compute_buffers()

    def keep_shard(self, rank: int, size: int) -> None:
        """Prepare tables for as many heads as a rank has."""
        self.head_counts = {heads // size for heads in self.head_counts}

    def compute_buffers(self) -> None:
        """Compute the rates on the default device."""
        rate, self.attention_factor = self._compute_inv_freq()
        self.register_buffer("inv_freq", rate, persistent=False)
        self.inv_freq: Tensor

    def _compute_inv_freq(self) -> tuple[Tensor, float]:
        # on the CPU even for a model on the meta device, where arange takes two seconds
        with torch.device("cpu"):
            frequencies = RopeFrequencies(
                self.theta, self.rotary_dim, self.factor, self.original_len or 1, self.pair_factors
            )
            rates, gain = ROPE_SCALINGS[self.scaling](frequencies)
        return rates.to(torch.get_default_device()), gain

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rope:
        """Move to another device, but keep fp32: bf16 rates are off by radians a thousand tokens later."""
        super()._apply(fn, recurse)
        self.inv_freq = self._compute_inv_freq()[0].to(self.inv_freq.device)
        return self

    def prepare(
        self, pos: Tensor | None, length: int, device: torch.device, head_counts: Iterable[int] | None = None
    ) -> Rope:
        """A copy with cos and sin at pos (B, T), by default for the numbers of query and key heads.

        All heads have the same, but a materialised copy per head halves the time of the products.
        """
        if torch.compiler.is_compiling():
            return self
        pos = torch.arange(length, device=device)[None] if pos is None else same_positions(pos)
        angle = pos[:, :, None, None] * self.inv_freq
        cos, sin = angle.cos() * self.attention_factor, angle.sin() * self.attention_factor
        prepared = copy.copy(self)
        prepared.tables = {}
        for heads in self.head_counts if head_counts is None else head_counts:
            size = (-1, -1, heads, -1)
            prepared.tables[heads] = cos.expand(size).contiguous(), sin.expand(size).contiguous()
        return prepared

    def rotate(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, H, T, D), (B, T) -> (B, H, T, D)."""
        if torch.compiler.is_compiling():
            return self._rotate_traced(x, pos)
        heads = x.size(1)
        tables = (self if heads in self.tables else self.prepare(pos, x.size(2), x.device, (heads,))).tables
        cos, sin = tables[heads]
        if not torch.is_grad_enabled():  # the overhead of an autograd function equals its cost
            return _apply_rotary(x, cos, sin, self.layout)
        out: Tensor = _RotaryFunction.apply(x, cos, sin, self.layout)
        return out

    def scale_only(self, x: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D)."""
        if self.attention_factor == 1:
            return x
        return torch.cat([x[..., : self.rotary_dim] * self.attention_factor, x[..., self.rotary_dim :]], -1)

    def _rotate_traced(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """``rotate`` for a compiled or exported graph: without tables and in-place operations."""
        pos = torch.arange(x.size(2), device=x.device)[None] if pos is None else pos
        angle = pos[:, None, :, None] * self.inv_freq
        cos, sin = (y * self.attention_factor for y in (angle.cos(), angle.sin()))
        rotary, rest = x[..., : self.rotary_dim].to(cos.dtype), x[..., self.rotary_dim :]
        half = self.layout == "half"
        a, b = rotary.chunk(2, -1) if half else rotary.unflatten(-1, (-1, 2)).unbind(-1)
        rotated = [a * cos - b * sin, b * cos + a * sin]
        out = torch.cat(rotated, -1) if half else torch.stack(rotated, -1).flatten(-2)
        return torch.cat([out.to(x.dtype), rest], -1) if rest.size(-1) else out.to(x.dtype)


class _RotaryFunction(torch.autograd.Function):
    """The rotation, in fp32 at least; with fewer backward passes over memory than autograd would take."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: RopeLayout) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout = layout
        return _apply_rotary(x, cos, sin, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        back: Tensor = _RotaryFunction.apply(grad, cos, -sin, ctx.layout)
        return back, None, None, None


def _apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, layout: RopeLayout) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)  # bf16 has no fast products on the CPU
    # (B, T, H, D) is the memory layout of a projection's heads, but not always that of a gradient
    y = x.transpose(1, 2).to(wide, memory_format=torch.contiguous_format).contiguous()
    out, width = torch.empty_like(y), 2 * cos.size(-1)
    _ROTATIONS[layout](y[..., :width], cos, sin, out[..., :width])
    if width < y.size(-1):
        out[..., width:] = y[..., width:]
    return out.to(x.dtype).transpose(1, 2)


def _rotate_half(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """(..., width), (..., width / 2) twice -> out (..., width)."""
    (a, b), (to_a, to_b) = x.chunk(2, -1), out.chunk(2, -1)
    torch.mul(a, cos, out=to_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=to_b).addcmul_(a, sin)


def _rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """The same with adjacent pairs, as complex numbers."""
    pairs = x.unflatten(-1, (-1, 2))
    if any(step % 2 for step in (pairs.storage_offset(), *pairs.stride()[:-1])):
        # complex views need even offsets and strides
        pairs = pairs.clone(memory_format=torch.contiguous_format)
    out.copy_(torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin)).flatten(-2))


_ROTATIONS = {"half": _rotate_half, "interleaved": _rotate_interleaved}


def _compute_rotary_dim(shape: AttentionShape, fraction: float) -> int:
    """The number of rotated features, which must be even."""
    width = int(shape.head_dim * fraction)
    if width % 2 == 0 and width:
        return width
    if fraction < 1:
        nearest = max(2, 2 * round(shape.head_dim * fraction / 2))
        raise UserError(
            f"fraction {fraction} of head_dim {shape.head_dim} is {width} features, but rope rotates pairs; "
            f"the nearest fraction is {nearest / shape.head_dim:g}"
        )
    even = " or ".join(str(n) for n in (width - 1, width + 1) if n)
    raise UserError(
        f"head_dim must be even for rope, which rotates pairs of features, got {width} (d_model "
        f"{shape.d_model}, n_heads {shape.n_heads}); the nearest head_dim is {even}"
    )
