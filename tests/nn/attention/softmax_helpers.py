import torch

from polyhead.config.model import AttentionShape
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position


def rms(norm, x, zero_centered=False):
    """x / √(mean(x²) + eps) times a learned factor (Zhang & Sennrich, 2019, eq. 4)."""
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * (norm.weight + zero_centered)


def center(x):
    """Layer norm before its factors (Ba et al., 2016)."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()


def make_attention(n_kv_heads=2, causal=False, position=Position, head_dim=2, v_head_dim=None, **options):
    torch.manual_seed(0)
    sizes = {"head_dim": head_dim, "v_head_dim": v_head_dim, "causal": causal}
    shape = AttentionShape.from_sizes(12, 6, n_kv_heads, **sizes)
    attention = Attention(shape, position(shape), **options).double()
    for p in attention.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    return attention


def reference(a, x, memory=None, qk_norm=False):
    """MultiHead(Q, K, V) head by head (Vaswani et al., 2017, sec. 3.2.2), keys repeated for their group."""
    memory = x if memory is None else memory
    group = a.q_proj.out_features // a.k_proj.out_features
    T, S, D, V = x.size(1), memory.size(1), a.head_dim, a.v_head_dim
    queries, keys, values = a.q_proj(x), a.k_proj(memory), a.v_proj(memory)
    if qk_norm == "all_heads":
        queries, keys = rms(a.q_norm, queries), rms(a.k_norm, keys)
    heads = []
    for h in range(6):
        g = h // group
        q, k, v = (x[..., i * n : (i + 1) * n] for x, i, n in ((queries, h, D), (keys, g, D), (values, g, V)))
        if qk_norm in (True, "zero_centered", "unweighted"):
            q, k = (rms(norm, y, qk_norm == "zero_centered") for norm, y in ((a.q_norm, q), (a.k_norm, k)))
        if qk_norm == "layernorm":
            q, k = (center(y) * norm.weight + norm.bias for norm, y in ((a.q_norm, q), (a.k_norm, k)))
        if qk_norm == "per_head":
            q, k = center(q) * a.q_norm.heads[h], center(k) * a.k_norm.heads[g]
        q, k = (a.position.rotate(y[:, None], None)[:, 0] for y in (q, k))
        scores = (q @ k.mT) * (D**-0.5 if a.scale is None else a.scale)
        if a.softcap is not None:
            scores = torch.tanh(scores / a.softcap) * a.softcap
        q_pos, k_pos = torch.arange(T)[:, None], torch.arange(S)[None]
        visible = torch.ones(T, S, dtype=torch.bool)
        if a.causal:
            visible &= k_pos <= q_pos
        if a.window is not None and memory is x:
            visible &= ((q_pos - k_pos).abs() < a.window.size) | (k_pos < a.window.sink)
        heads.append(scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v)
    return a.o_proj(torch.cat(heads, -1))
