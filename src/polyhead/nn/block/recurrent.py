"""Recurrent layers (plain RNN, LSTM, GRU) as a baseline for the Transformer.

Shapes as in ``nn/kv.py``, and H the units of a layer.

Options:
  attention: attend to the source in a decoder; without it the source only sets the initial state
  bidirectional: encoders read in both directions, with half of the units each
  units: width of the state; d_model if not given
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from polyhead.config.model import AttentionShape, ModelSpec
from polyhead.core.errors import UserError
from polyhead.core.option_types import PositiveInt
from polyhead.core.registry import BLOCK
from polyhead.nn.block.base import AttentionPart
from polyhead.nn.block.transformer import build_cross_attention, build_residual, reject_self_attention
from polyhead.nn.cache import LayerCache
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.packed_rows import apply_per_document, apply_unpadded, first_and_last
from polyhead.nn.position.base import Position
from polyhead.nn.positions import Positions, has_several_documents
from polyhead.nn.shard_plan import ShardPlan

RnnState = tuple[Tensor, ...]
"""The recurrent state after the tokens so far, (B, H) each."""


class RecurrentMemory(NamedTuple):
    """What a recurrent decoder stores of the source: its initial state and the memory of its attention."""

    start_state: Tensor  # (B, H)
    kv: EncoderMemory | None

    def select(self, rows: Tensor) -> RecurrentMemory:
        """Select batch rows, in the given order."""
        return RecurrentMemory(
            self.start_state.index_select(0, rows), None if self.kv is None else self.kv.select(rows)
        )

    def cat_rows(self, other: RecurrentMemory) -> RecurrentMemory:
        """Concatenate the rows of both."""
        kv = None if self.kv is None or other.kv is None else self.kv.cat_rows(other.kv)
        return RecurrentMemory(torch.cat([self.start_state, other.start_state]), kv)

    def contiguous_for_decoding(self) -> RecurrentMemory:
        """The same in a layout for reading at every step."""
        return self._replace(kv=None if self.kv is None else self.kv.contiguous_for_decoding())


@contextmanager
def fp32_if_no_bf16(x: Tensor) -> Iterator[Tensor]:
    """Context manager that yields x, in fp32 where oneDNN's LSTM would run in unsupported bf16.

    That is under CPU autocast to bf16, on a processor for which oneDNN has no bf16 LSTM.
    """
    is_cpu_autocast = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    if (
        is_cpu_autocast
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        with torch.autocast("cpu", enabled=False):
            yield x.float()
    else:
        yield x


class RNN(nn.RNN):
    """Plain recurrent network, tanh(x_t W + h_{t-1} U) (Elman, 1990)."""

    n_states = 1  # h

    def __init__(self, input_size: int, hidden_size: int, *, batch_first: bool) -> None:
        super().__init__(input_size, hidden_size, bias=False, batch_first=batch_first)

    def forward(self, x: Tensor, state: RnnState) -> tuple[Tensor, RnnState]:  # type: ignore[override]
        """(B, T, C) and the state before -> (B, T, H) and the state after."""
        out, h = super().forward(x, state[0].to(x.dtype)[None])
        return out, (h[0],)

    def init_state(self, start: Tensor) -> RnnState:
        """The initial state of a decoder: (B, H) -> h."""
        return (start.tanh(),)


class LSTM(nn.LSTM):
    """Long short-term memory (Hochreiter & Schmidhuber, 1997; forget gate: Gers et al., 2000)."""

    n_states = 2  # h, c

    def forward(self, x: Tensor, state: RnnState) -> tuple[Tensor, RnnState]:  # type: ignore[override]
        """(B, T, C) and the state before -> (B, T, H) and the state after."""
        with fp32_if_no_bf16(x) as x:
            h, c = (s.to(x.dtype)[None] for s in state)
            out, (h, c) = super().forward(x, (h, c))
        return out, (h[0], c[0])

    def init_state(self, start: Tensor) -> RnnState:
        """The initial state of a decoder: (B, H) -> h, c."""
        return start.tanh(), start


class GRU(nn.GRU):
    """Gated recurrent unit (Cho et al., 2014), the reset gate after the product, as in cuDNN."""

    n_states = 1  # h

    def forward(self, x: Tensor, state: RnnState) -> tuple[Tensor, RnnState]:  # type: ignore[override]
        """(B, T, C) and the state before -> (B, T, H) and the state after."""
        out, h = super().forward(x, state[0].to(x.dtype)[None])
        return out, (h[0],)

    def init_state(self, start: Tensor) -> RnnState:
        """The initial state of a decoder: (B, H) -> h."""
        return (start.tanh(),)


RecurrentNetwork = RNN | LSTM | GRU


class RecurrentBlock(nn.Module):
    """A recurrent layer in a residual, then, in a decoder, attention to the source in another.

    An encoder may have a second RNN in the reverse direction (``reverse``). A decoder starts from a
    projection of the source's first and last vector: the final states of such an encoder's two RNNs.
    """

    shard_plan = ShardPlan(parts=("cross",))
    attn, reads_documents = None, True

    def __init__(
        self,
        config: ModelSpec,
        rnns: list[RecurrentNetwork],
        *,
        cross: AttentionPart | None = None,
        is_decoder: bool = False,
    ) -> None:
        super().__init__()
        self.rnn, self.rnn_residual = rnns[0], build_residual(config, is_decoder)
        self.reverse = rnns[1] if len(rnns) == 2 else None
        self.units = rnns[0].hidden_size
        width = self.units * len(rnns)
        self.o_proj = None if width == config.d_model else nn.Linear(width, config.d_model)
        self.start_proj = nn.Linear(2 * config.source_width, self.units) if is_decoder else None
        self.cross = cross
        if cross is not None:
            self.cross_residual = build_residual(config, is_decoder)

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """The state shapes of a decoding row."""
        return ((self.units,),) * self.rnn.n_states

    def project_kv(self, x: Tensor, pos: Tensor | None) -> RecurrentMemory:
        """The encoder's output (B, S, C) as this layer reads it."""
        assert self.start_proj is not None, "only a decoder has a cache"
        kv = None if self.cross is None else self.cross.project_kv(x, pos)
        return RecurrentMemory(self.start_proj(first_and_last(x, pos)), kv)

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: RecurrentMemory | None = None,
        position: Position | None = None,
        documents: Positions | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); a recurrence needs no ``position``."""
        x = self.rnn_residual(x, self.run_rnn, pos, cache, memory, documents)
        if self.cross is not None and memory is not None:
            x = self.cross_residual(x, self.cross, pos, None, memory.kv)
        return x

    def run_rnn(
        self,
        x: Tensor,
        pos: Tensor | None,
        cache: LayerCache | None,
        memory: RecurrentMemory | None,
        documents: Positions | None = None,
    ) -> Tensor:
        """(B, T, C) -> (B, T, C): the states after each token."""
        if cache is None and memory is None and pos is not None and has_several_documents(pos, documents):
            return apply_per_document(
                lambda h, at: self.run_rnn(h, at.pos, None, None, at), x, pos, documents
            )
        start_state = (x.new_zeros(len(x), self.units),) * self.rnn.n_states
        if memory is not None:  # n beams share its row i
            start_state = self.rnn.init_state(
                memory.start_state.repeat_interleave(len(x) // len(memory.start_state), 0)
            )
        if cache is not None:
            assert pos is not None, "a step requires positions"
            out = self.step(x, pos, cache, start_state)
        else:
            out = apply_unpadded(lambda h: self.rnn(h, start_state)[0], x, pos)
        if self.reverse is not None:
            reverse, reversed_pos = self.reverse, None if pos is None else pos.flip(1)
            reverse_out = apply_unpadded(lambda h: reverse(h, start_state)[0], x.flip(1), reversed_pos)
            out = torch.cat([out, reverse_out.flip(1)], -1)
        return out if self.o_proj is None else cast(Tensor, self.o_proj(out))

    def step(self, x: Tensor, pos: Tensor, cache: LayerCache, start_state: RnnState) -> Tensor:
        """(B, T, C) -> (B, T, H), continuing from the cache; a row at position 0 starts anew."""
        valid, first = pos >= 0, (pos == 0).any(1, keepdim=True)
        state: RnnState = tuple(
            torch.where(first, new.to(old.dtype), old)
            for new, old in zip(start_state, cache.state, strict=True)
        )
        if bool(valid.all()):
            out, cache.state = self.rnn(x, state)
            return cast(Tensor, out)
        outs = []
        for t in range(x.size(1)):  # padding does not change the state
            out, next_state = self.rnn(x[:, t : t + 1], state)
            is_token = valid[:, t : t + 1]
            state = tuple(
                torch.where(is_token, a, b.to(a.dtype)) for a, b in zip(next_state, state, strict=True)
            )
            outs.append(out.masked_fill(~is_token[..., None], 0))
        cache.state = state
        return torch.cat(outs, 1)


def _build_recurrent(
    rnn_class: type[RNN] | type[LSTM] | type[GRU],
    config: ModelSpec,
    shape: AttentionShape,
    cross: bool,
    attention: bool,
    bidirectional: bool,
    units: int | None,
) -> RecurrentBlock:
    name = rnn_class.__name__.lower()
    reject_self_attention(config, name, cross)
    if cross and not attention and config.cross_attention is not None:
        raise UserError(f"cross_attention is set, but block {name!r} with attention=false has none")
    units = config.d_model if units is None else units
    is_bidirectional = bidirectional and not shape.causal
    if is_bidirectional and units % 2:
        raise UserError(
            f"units of block {name!r} is {units}; a bidirectional encoder splits them between both "
            f"directions, so it must be even: {units + 1}"
        )
    units_each = units // 2 if is_bidirectional else units
    rnns: list[RecurrentNetwork] = [
        rnn_class(config.d_model, units_each, batch_first=True) for _ in range(1 + is_bidirectional)
    ]
    return RecurrentBlock(
        config,
        rnns,
        cross=build_cross_attention(config, shape) if cross and attention else None,
        is_decoder=cross,
    )


@BLOCK.register("rnn")
def rnn_block(
    config: ModelSpec,
    shape: AttentionShape,
    position: Position,
    cross: bool,
    *,
    attention: bool = True,
    bidirectional: bool = True,
    units: PositiveInt | None = None,
) -> RecurrentBlock:
    """A plain recurrent layer without gates and, in a decoder, attention to the source.

    Like ``lstm`` otherwise, with a single state vector and no gate that could preserve it: the gradient of a
    state with respect to an earlier one is a product of one matrix per token, which vanishes or explodes. U
    starts orthogonal. No biases.

    Equation: Y_i = tanh(X_i W + Y_{i-1} U),  Y_0 = 0
              encoder: N(X_i + [Y_i forward; Y_i backward])
              decoder: N(S_i + Attention(S_i, source)),  S_i = N(X_i + Y_i),
                       Y_0 = tanh(V [source first; source last] + v)
    Paper: Elman, 1990; its gradients: Bengio et al., 1994
    When: to measure what gates and attention gain; as ``lstm``, with a quarter of the weights
    Recipe: model: {block: rnn, position: none}
    """
    return _build_recurrent(RNN, config, shape, cross, attention, bidirectional, units)


@BLOCK.register("lstm")
def lstm_block(
    config: ModelSpec,
    shape: AttentionShape,
    position: Position,
    cross: bool,
    *,
    attention: bool = True,
    bidirectional: bool = True,
    units: PositiveInt | None = None,
) -> RecurrentBlock:
    """A layer of long short-term memory and, in a decoder, attention to the source.

    It has a state of constant size in place of all tokens, and processes one token after the other. No
    self-attention, no feed-forward layer; the recurrence encodes order, so ``position: none`` suffices. Norm
    and residual are those of this package. A decoder starts from a projection of the source's first and last
    vector, which are the final states of a bidirectional encoder. The output of attention is added to h_t for
    the layers above and is not fed back. U starts orthogonal, and the bias of f at 1.

    Equation: i, f, o = σ(W x_t + U h_{t-1} + b) each,  g = tanh(W x_t + U h_{t-1} + b)
              c_t = f ⊙ c_{t-1} + i ⊙ g,  h_t = o ⊙ tanh(c_t)
              encoder: y_t = N(x_t + [h_t forward; h_t backward])
              decoder: y_t = N(s_t + Attention(s_t, source)),  s_t = N(x_t + h_t),  h_0 = tanh(c_0),
                       c_0 = V [source first; source last] + v
    Paper: Hochreiter & Schmidhuber, 1997; Gers et al., 2000; without attention: Sutskever et al., 2014; with:
           Luong et al., 2015
    When: as a baseline, or where the memory of decoding must not grow
    Recipe: model: {block: lstm, position: none}
    """
    return _build_recurrent(LSTM, config, shape, cross, attention, bidirectional, units)


@BLOCK.register("gru")
def gru_block(
    config: ModelSpec,
    shape: AttentionShape,
    position: Position,
    cross: bool,
    *,
    attention: bool = True,
    bidirectional: bool = True,
    units: PositiveInt | None = None,
) -> RecurrentBlock:
    """A layer of gated recurrent units and, in a decoder, attention to the source.

    Like ``lstm`` otherwise, with two gates in place of three and one state vector in place of two. The reset
    gate acts after the product, as in cuDNN.

    Equation: r, z = σ(W x_t + U h_{t-1} + b) each,  n = tanh(W x_t + b + r ⊙ (U h_{t-1} + b'))
              h_t = (1 - z) ⊙ n + z ⊙ h_{t-1},  h_0 = tanh(V [source first; source last] + v)
    Paper: Cho et al., 2014; Bahdanau et al., 2015
    When: as ``lstm``, with a quarter fewer weights
    Recipe: model: {block: gru, position: none}
    """
    return _build_recurrent(GRU, config, shape, cross, attention, bidirectional, units)
