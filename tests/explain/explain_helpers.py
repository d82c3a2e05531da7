"""Small runs of any design, and a plain walk through a model that the recorded one must equal."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.explain.document import explain
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXT, TARGET = "a dog barks at the red house", "ein hund bellt am haus"
TEXTS = [TEXT, TARGET, "two cats sleep", "zwei katzen schlafen"] * 5
SIZES: dict[str, Any] = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "max_len": 64}


@cache
def make_tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, Choice("bpe"), 300)


def make_run(seed: int = 0, generation: dict[str, Any] | None = None, **config: Any) -> Run:
    """A run whose weights, also biases and norms, are random."""
    tokenizer = make_tokenizer()
    model = build(ModelConfig(vocab_size=tokenizer.vocab_size, **SIZES | config), seed=seed).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return Run(model, tokenizer, GenerationConfig(**generation or {}))


def explain_walk(run: Run, text: str, target: str | None = None, **options: Any) -> dict[str, Any]:
    """An explanation without cases of levers, which take most of the time."""
    return explain(run, text, target, has_lever_cases=False, **options)


class PlainWalk:
    """The forward pass of a Transformer by its equations, with every number by the name of its array.

    ``alibi``, ``window`` and ``t5`` say what the self-attention of the design has.
    """

    def __init__(self, *, rope: bool = False, alibi: bool = False, window: int = 0, t5: bool = False) -> None:
        self.rope, self.alibi, self.window, self.t5 = rope, alibi, window, t5
        self.numbers: dict[str, Tensor] = {}

    def keep(self, name: str, x: Tensor) -> Tensor:
        self.numbers[name] = x
        return x

    def norm(self, path: str, norm: Any, x: Tensor) -> Tensor:
        if hasattr(norm, "bias"):
            mean = self.keep(f"{path}.mean", x.mean(-1))
            variance = self.keep(f"{path}.variance", ((x - mean[:, None]) ** 2).mean(-1))
            y = (x - mean[:, None]) / (variance + norm.eps).sqrt()[:, None] * norm.weight + norm.bias
        else:
            square = self.keep(f"{path}.mean_square", (x * x).mean(-1))
            y = x / (square + norm.eps).sqrt()[:, None] * norm.weight
        return self.keep(f"{path}.out", y)

    def stack(self, path: str, stack: Any, x: Tensor, memory: Tensor | None = None) -> Tensor:
        for i, layer in enumerate(stack.layers):
            for role in ("attn", "cross", "ffn"):
                if not hasattr(layer, role):
                    continue
                at, residual = f"{path}.layers.{i}", getattr(layer, f"{role}_residual")
                norm_path = f"{at}.{role}_residual.norm"
                h = self.norm(norm_path, residual.norm, x) if residual.norm_first else x
                part, place = getattr(layer, role), f"{at}.{role}"
                if role == "ffn":
                    out = self.feed_forward(place, part, h)
                else:
                    out = self.attention(place, part, h, memory if role == "cross" else None)
                x = self.keep(f"{at}.{role}_residual.out", x + self.keep(f"{place}.out", out))
                x = x if residual.norm_first else self.norm(norm_path, residual.norm, x)
        return x if stack.final_norm is None else self.norm(f"{path}.final_norm", stack.final_norm, x)

    def attention(self, path: str, attn: Any, x: Tensor, memory: Tensor | None) -> Tensor:
        is_self, D = memory is None, attn.head_dim
        source = x if memory is None else memory

        def heads(proj: Any, y: Tensor) -> Tensor:
            return F.linear(y, proj.weight, proj.bias).view(len(y), -1, D).transpose(0, 1)

        q, k, v = heads(attn.q_proj, x), heads(attn.k_proj, source), heads(attn.v_proj, source)
        if self.rope and is_self:
            q, k = self.rotate(self.keep(f"{path}.q_raw", q)), self.rotate(self.keep(f"{path}.k_raw", k))
        for role, y in {"q": q, "k": k, "v": v}.items():
            self.keep(f"{path}.{role}", y)
        H, T, S = len(q), len(x), len(source)
        k, v = (y.repeat_interleave(H // len(y), 0) for y in (k, v))
        scores = q @ k.mT / math.sqrt(D)
        query, key = torch.arange(T)[:, None], torch.arange(S)
        hidden = torch.zeros(T, S, dtype=torch.int64)
        if is_self and self.alibi:
            slopes = torch.tensor([2.0 ** (-8 * (h + 1) / H) for h in range(H)])
            scores = scores - slopes[:, None, None] * (query - key).abs()
        if is_self and self.t5:
            table = attn.position.weight
            scores = scores + torch.stack(
                [torch.stack([table[t5_bucket(s - t)] for s in range(S)]) for t in range(T)]
            ).permute(2, 0, 1)
        if is_self and attn.causal:
            hidden[key > query] = 2
        if is_self and self.window:
            hidden[(query - key >= self.window) & (hidden == 0)] = 3
        self.keep(f"{path}.hidden", hidden[None])
        self.keep(f"{path}.scores", scores.masked_fill(hidden != 0, 0.0))
        weights = self.keep(f"{path}.weights", scores.masked_fill(hidden != 0, -math.inf).softmax(-1))
        mix = self.keep(f"{path}.mix", weights @ v)
        joined = self.keep(f"{path}.joined", mix.transpose(0, 1).reshape(T, -1))
        return F.linear(joined, attn.o_proj.weight, attn.o_proj.bias)

    def rotate(self, x: Tensor) -> Tensor:
        """Pairs (j, j + D/2) as complex numbers, times exp(i t θ^(-2j/D))."""
        D = x.size(-1)
        rate = 10000.0 ** (-torch.arange(0, D, 2) / D)
        turn = torch.polar(torch.ones(()), torch.arange(x.size(1))[:, None] * rate)
        y = torch.complex(x[..., : D // 2], x[..., D // 2 :]) * turn
        return torch.cat([y.real, y.imag], -1)

    def feed_forward(self, path: str, ffn: Any, x: Tensor) -> Tensor:
        if hasattr(ffn, "gate_proj"):
            inner = F.silu(F.linear(x, ffn.gate_proj.weight)) * F.linear(x, ffn.up_proj.weight)
            return F.linear(inner, ffn.down_proj.weight)
        inner = F.linear(x, ffn.up_proj.weight, ffn.up_proj.bias)
        inner = (
            F.gelu(inner, approximate="tanh") if isinstance(ffn.activation, torch.nn.GELU) else inner.relu()
        )
        return F.linear(inner, ffn.down_proj.weight, ffn.down_proj.bias)


def t5_bucket(distance: int) -> int:
    """The bucket of an encoder's distance, of 32 up to 128 (Raffel et al., 2020), without tensors."""
    ahead, size = (16 if distance > 0 else 0), abs(distance)
    if size < 8:
        return ahead + size
    return ahead + min(15, 8 + int(math.log(size / 8) / math.log(128 / 8) * 8))


def sinusoid(length: int, width: int) -> Tensor:
    """sin(t / 10000^(2j/C)) and cos in turn (Vaswani et al., 2017, sec. 3.5)."""
    rows = [
        [(math.sin, math.cos)[j % 2](t / 10000 ** ((j - j % 2) / width)) for j in range(width)]
        for t in range(length)
    ]
    return torch.tensor(rows)
