import torch

from polyhead.config.model import AttentionShape
from polyhead.core.registry import POSITION
from polyhead.nn.kv import KV

RAGGED_POS = torch.tensor([[0, 1, 2, 3, 4], [0, 1, -1, -1, -1], [0, 1, 2, 3, -1]])
HOLES = torch.tensor([[0, 1, 2, 3, 4], [-1, 7, 0, -1, 1], [60, -1, 3, 2, 0]])
LATER = torch.tensor([[10, 11, 12, 13, 14], [0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])

# positions of queries (B, T) and of slots (B, 1|K, S)
POSITIONS = {
    "full rows": (None, None),
    "padded rows": (RAGGED_POS, RAGGED_POS[:, None]),
    "holes": (HOLES, HOLES[:, None]),
    "other rows": (LATER, LATER.flip(0)[:, None]),
    "one query": (torch.tensor([[4], [2], [61]]), HOLES[:, None]),
    "equal queries": (torch.tensor([[5], [5], [5]]), RAGGED_POS[:, None]),
    "slots per head": (HOLES, torch.stack([HOLES, RAGGED_POS.roll(1, 0)], 1)),
}


def make_scheme(name, n_heads=4, causal=False, **options):
    torch.manual_seed(0)
    sizes = {"head_dim": 3, "v_head_dim": 2, "causal": causal}
    shape = AttentionShape.from_sizes(3 * n_heads, n_heads, n_heads // 2, **sizes)
    scheme = POSITION.get(name)(shape, **options).double()
    for p in scheme.parameters():
        p.data.normal_()
    return scheme


def make_inputs(positions):
    q_pos, k_pos = POSITIONS[positions]
    q = torch.randn(3, 4, 5 if q_pos is None else q_pos.size(1), 3, dtype=torch.double)
    return q, KV(torch.randn(3, 2, 5, 3).double(), torch.randn(3, 2, 5, 2).double(), k_pos), q_pos, k_pos


def iter_positions(q_pos, k_pos, n_queries, n_heads=4, n_rows=3, n_slots=5):
    """(row, head, query, slot), position of the query and of the slot; without padding."""
    for b in range(n_rows):
        for h in range(n_heads):
            kv_head = 0 if k_pos is None or k_pos.size(1) == 1 else h // (n_heads // k_pos.size(1))
            for t in range(n_queries):
                i = t if q_pos is None else int(q_pos[b, t])
                for s in range(n_slots):
                    j = s if k_pos is None else int(k_pos[b, kv_head, s])
                    if i >= 0 and j >= 0:
                        yield (b, h, t, s), i, j
