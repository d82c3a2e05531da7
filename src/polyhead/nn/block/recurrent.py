"""Recurrent layers, the sequence models before the Transformer: a baseline on equal footing.

Shapes as in ``nn/kv.py``, and H the units of a layer.

Options:
  attention: attend to the source in a decoder; without it the first state is all that a decoder knows of it
  bidirectional: encoders read both ways, with half of the units each way
  units: width of the state; d_model if not given
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from polyhead.cache.base import LayerCache
from polyhead.config import ModelSection, Shape
from polyhead.errors import UserError
from polyhead.nn.block.sublayers import cross_attention, refuse_self_attention, residual
from polyhead.nn.kv import Memory
from polyhead.nn.position.base import Position
from polyhead.nn.rows import documents_apart, ends, several_documents, without_padding
from polyhead.registry import BLOCK

State = tuple[Tensor, ...]
"""What a layer knows of the tokens so far, (B, H) each."""


class Source(NamedTuple):
    """What a recurrent decoder keeps of the source: where to begin, and what attention reads, if it has any."""

    start: Tensor  # (B, H)
    kv: Memory | None

    def select(self, rows: Tensor) -> Source:
        """The given batch rows, in that order."""
        return Source(self.start.index_select(0, rows), None if self.kv is None else self.kv.select(rows))

    def join(self, other: Source) -> Source:
        """The rows of both, in this order."""
        kv = None if self.kv is None or other.kv is None else self.kv.join(other.kv)
        return Source(torch.cat([self.start, other.start]), kv)

    def kept(self) -> Source:
        """The same, laid out for being read at every step."""
        return self._replace(kv=None if self.kv is None else self.kv.kept())


@contextmanager
def fp32_if_there_is_no_bf16(x: Tensor) -> Iterator[Tensor]:
    """Within it x, in fp32 where autocast would hand it to oneDNN's LSTM in bf16 on a processor for which that has none."""
    asked = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    if (
        asked
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        with torch.autocast("cpu", enabled=False):
            yield x.float()
    else:
        yield x


class LSTM(nn.LSTM):
    """Long short-term memory (Hochreiter & Schmidhuber, 1997; forget gate: Gers et al., 2000)."""

    n_states = 2  # h, c

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:  # type: ignore[override]
        """(B, T, C) after state -> (B, T, H), and the state after it."""
        with fp32_if_there_is_no_bf16(x) as x:
            h, c = (s.to(x.dtype)[None] for s in state)
            out, (h, c) = super().forward(x, (h, c))
        return out, (h[0], c[0])

    def begin(self, start: Tensor) -> State:
        """The state of a decoder that has read nothing yet: (B, H) -> h, c."""
        return start.tanh(), start


class GRU(nn.GRU):
    """Gated recurrent unit (Cho et al., 2014), the reset gate after the product, as in cuDNN."""

    n_states = 1  # h

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:  # type: ignore[override]
        """(B, T, C) after state -> (B, T, H), and the state after it."""
        out, h = super().forward(x, state[0].to(x.dtype)[None])
        return out, (h[0],)

    def begin(self, start: Tensor) -> State:
        """The state of a decoder that has read nothing yet: (B, H) -> h."""
        return (start.tanh(),)


class Recurrent(nn.Module):
    """A recurrent layer in a residual, then, in a decoder, attention to the source in another.

    An encoder may have a second reader that begins at the end (``reverse``). A decoder begins at a projection of
    the source's first and last vector: the final states of such an encoder's two readers.
    """

    def __init__(
        self,
        config: ModelSection,
        readers: list[LSTM | GRU],
        *,
        cross: nn.Module | None = None,
        begins: bool = False,
    ) -> None:
        super().__init__()
        self.rnn, self.rnn_residual = readers[0], residual(config)
        self.reverse = readers[1] if len(readers) == 2 else None
        self.units = readers[0].hidden_size
        width = self.units * len(readers)
        self.o_proj = None if width == config.d_model else nn.Linear(width, config.d_model)
        self.start_proj = nn.Linear(2 * config.d_model, self.units) if begins else None
        self.cross = cross
        if cross is not None:
            self.cross_residual = residual(config)

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of what a decoding row keeps."""
        return ((self.units,),) * self.rnn.n_states

    def remember(self, x: Tensor, pos: Tensor | None) -> Source:
        """The encoder's output (B, S, C) as this layer will read it."""
        assert self.start_proj is not None, "only a decoder remembers"
        kv = None if self.cross is None else self.cross.remember(x, pos)  # type: ignore[operator]
        return Source(self.start_proj(ends(x, pos)), kv)

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: Source | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        x = self.rnn_residual(x, lambda h: self.read(h, pos, cache, memory), pos)
        if self.cross is not None and memory is not None:
            cross = self.cross
            x = self.cross_residual(x, lambda h: cross(h, pos, memory=memory.kv), pos)
        return x

    def read(self, x: Tensor, pos: Tensor | None, cache: LayerCache | None, memory: Source | None) -> Tensor:
        """(B, T, C) -> (B, T, C): the states after each token."""
        if cache is None and memory is None and pos is not None and several_documents(pos):
            return documents_apart(lambda h, at: self.read(h, at, None, None), x, pos)
        begin = (x.new_zeros(len(x), self.units),) * self.rnn.n_states
        if memory is not None:  # its row i is read by n rows of beams
            begin = self.rnn.begin(memory.start.repeat_interleave(len(x) // len(memory.start), 0))
        if cache is not None:
            assert pos is not None, "a step says where it is"
            out = self.step(x, pos, cache, begin)
        else:
            out = without_padding(lambda h: self.rnn(h, begin)[0], x, pos)
        if self.reverse is not None:
            reverse, back = self.reverse, None if pos is None else pos.flip(1)
            other = without_padding(lambda h: reverse(h, begin)[0], x.flip(1), back)
            out = torch.cat([out, other.flip(1)], -1)
        return out if self.o_proj is None else cast(Tensor, self.o_proj(out))

    def step(self, x: Tensor, pos: Tensor, cache: LayerCache, begin: State) -> Tensor:
        """(B, T, C) -> (B, T, H) after what the cache holds; a row at position 0 begins."""
        valid, first = pos >= 0, (pos == 0).any(1, keepdim=True)
        state: State = tuple(
            torch.where(first, new.to(old.dtype), old) for new, old in zip(begin, cache.state, strict=True)
        )
        if bool(valid.all()):
            out, cache.state = self.rnn(x, state)
            return cast(Tensor, out)
        outs = []
        for t in range(x.size(1)):  # padding leaves the state as it is
            out, after = self.rnn(x[:, t : t + 1], state)
            seen = valid[:, t : t + 1]
            state = tuple(torch.where(seen, a, b.to(a.dtype)) for a, b in zip(after, state, strict=True))
            outs.append(out.masked_fill(~seen[..., None], 0))
        cache.state = state
        return torch.cat(outs, 1)


def _recurrent(
    kind: type[LSTM] | type[GRU],
    config: ModelSection,
    shape: Shape,
    cross: bool,
    attention: bool,
    bidirectional: bool,
    units: int | None,
) -> Recurrent:
    name = kind.__name__.lower()
    refuse_self_attention(config, name, cross)
    if cross and not attention and config.cross_attention is not None:
        raise UserError(f"cross_attention is given, and block {name!r} with attention=false has none")
    units = config.d_model if units is None else units
    both = bidirectional and not shape.causal
    if units < 1 or (both and units % 2):
        raise UserError(
            f"units of block {name!r} is {units}; an encoder that reads both ways gives half of them to each, "
            f"so it is even and above 0: {max(2, units + 1)}"
        )
    each = units // 2 if both else units
    readers: list[LSTM | GRU] = [kind(config.d_model, each, batch_first=True) for _ in range(1 + both)]
    return Recurrent(
        config,
        readers,
        cross=cross_attention(config, shape) if cross and attention else None,
        begins=cross,
    )


@BLOCK.register("lstm")
def lstm(
    config: ModelSection,
    shape: Shape,
    position: Position,
    cross: bool,
    *,
    attention: bool = True,
    bidirectional: bool = True,
    units: int | None = None,
) -> Recurrent:
    """A layer of long short-term memory and, in a decoder, attention to the source.

    It keeps a state of constant size in place of all tokens, and reads one token after the other. No self-attention, no
    feed-forward layer; order is in the recurrence, so ``position: none`` will do. Norm and residual are the project's.
    A decoder begins at a projection of the source's first and last vector, which are the final states of an encoder
    that reads both ways. What attention finds is added to h_t for the layers above and is not fed back. U begins
    orthogonal, and the bias of f at 1.

    Equation: i, f, o = σ(W x_t + U h_{t-1} + b) each,  g = tanh(W x_t + U h_{t-1} + b)
              c_t = f ⊙ c_{t-1} + i ⊙ g,  h_t = o ⊙ tanh(c_t)
              encoder: y_t = N(x_t + [h_t forward; h_t backward])
              decoder: y_t = N(s_t + Attention(s_t, source)),  s_t = N(x_t + h_t),  h_0 = tanh(c_0),
                       c_0 = V [source first; source last] + v
    Paper: Hochreiter & Schmidhuber, 1997; Gers et al., 2000; without attention: Sutskever et al., 2014; with: Luong et
           al., 2015
    When: as a baseline, or where the memory of decoding must not grow
    Recipe: model: {block: lstm, position: none}
    """
    return _recurrent(LSTM, config, shape, cross, attention, bidirectional, units)


@BLOCK.register("gru")
def gru(
    config: ModelSection,
    shape: Shape,
    position: Position,
    cross: bool,
    *,
    attention: bool = True,
    bidirectional: bool = True,
    units: int | None = None,
) -> Recurrent:
    """A layer of gated recurrent units and, in a decoder, attention to the source.

    As ``lstm`` in all else, with two gates in place of three and one vector of state in place of two. The reset gate acts
    after the product, as in cuDNN.

    Equation: r, z = σ(W x_t + U h_{t-1} + b) each,  n = tanh(W x_t + b + r ⊙ (U h_{t-1} + b'))
              h_t = (1 - z) ⊙ n + z ⊙ h_{t-1},  h_0 = tanh(V [source first; source last] + v)
    Paper: Cho et al., 2014; Bahdanau et al., 2015
    When: as ``lstm``, with a quarter fewer weights
    Recipe: model: {block: gru, position: none}
    """
    return _recurrent(GRU, config, shape, cross, attention, bidirectional, units)
