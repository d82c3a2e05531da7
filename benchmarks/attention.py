"""Where two plain products beat the fused attention kernel of this CPU: what nn/kv.py decides by.

python benchmarks/attention.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timing import interleaved, table
from torch import Tensor

# rows, heads, queries, slots, head_dim, does it learn
CASES = [
    (128, 4, 15, 15, 32, True),
    (32, 4, 64, 64, 32, True),
    (8, 4, 256, 256, 32, True),
    (4, 4, 512, 512, 32, True),
    (128, 8, 1, 33, 64, False),
    (16, 12, 1, 512, 64, False),
    (1, 12, 1, 512, 64, False),
    (1, 8, 1, 33, 64, False),
    (32, 8, 26, 26, 64, False),
]


def main() -> None:
    """Time both ways for each case in fp32 and bf16."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [["rows x heads x queries x slots", "pass", "precision", "fused ms", "products ms"]]
    for B, H, T, S, D, learns in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v = (torch.randn(B, H, n, D).to(dtype).requires_grad_(learns) for n in (T, S, S))
            mask = torch.zeros(B, 1, 1, S, dtype=dtype)
            ways = {
                "fused": lambda q=q, k=k, v=v, mask=mask: F.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask
                ),
                "products": lambda q=q, k=k, v=v, mask=mask: products(q, k, v, mask),
            }
            seconds = interleaved(
                {name: learning(way) if learns else way for name, way in ways.items()}, options.n_rounds
            )
            times = [f"{1e3 * statistics.median(seconds[name]):.3f}" for name in ways]
            rows.append([f"{B} x {H} x {T} x {S}", "both" if learns else "forward", str(dtype)[6:], *times])
    print(table(rows))


def products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention written out."""
    return torch._safe_softmax(q * q.size(-1) ** -0.5 @ k.mT + mask, -1) @ v


def learning(way: Callable[[], Tensor]) -> Callable[[], None]:
    """Forward and backward."""
    return lambda: way().sum().backward()


if __name__ == "__main__":
    main()
