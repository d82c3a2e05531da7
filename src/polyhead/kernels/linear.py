"""Linear layers and heads with weights packed in the order in which a kernel reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from polyhead.kernels.build_extension import DTYPE_SUFFIX, INT64, load_kernels
from polyhead.kernels.malloc_tuning import alloc_huge_pages

LinearFactory = Callable[[Tensor, Tensor | None], nn.Module]  # W (N, K), b (N) -> module for x W^T + b

PANEL = 64  # outputs per panel in products.hpp
_ONEDNN_ROWS = 64  # batch rows that oneDNN's layout is tuned for; others work as well


def make_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Build x W^T + b with our kernel, with oneDNN's if ours is not available, or with torch's plain one.

    oneDNN packs bf16 only on processors with instructions for it (AVX-512 or newer).
    """
    is_step_aligned = weight.size(1) * weight.element_size() % 4 == 0
    if is_step_aligned and load_kernels() is not None:
        return NativeLinear(weight, bias)
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return make_plain_linear(weight, bias)
    return PackedLinear(weight, bias)


def make_plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """x W^T + b as torch computes it, without gradients."""
    linear = nn.Linear(weight.size(1), len(weight), bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    linear.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)  # type: ignore[assignment]
    return linear


class NativeLinear(nn.Module):
    """x W^T + b with W (N, K) packed in panels; W itself is not stored."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        kernels, weight = load_kernels(), weight.detach().contiguous()
        assert kernels is not None, "no kernel available"
        self.out_features, self.steps = len(weight), weight.size(1) * weight.element_size() // 4
        self.panels = alloc_huge_pages(-(-self.out_features // PANEL) * PANEL * self.steps)
        kernels.pack(weight.data_ptr(), self.panels.data_ptr(), self.out_features, self.steps)
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        self.pointers = self.panels.data_ptr(), None if self.bias is None else self.bias.data_ptr()
        self.in_features = weight.size(1)
        self.dtype = weight.dtype
        self.kernel = getattr(kernels, f"linear_{DTYPE_SUFFIX[weight.dtype]}")

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        return self.forward_slice(x, 0, self.out_features)

    def forward_slice(self, x: Tensor, start: int, end: int) -> Tensor:
        """Only the outputs from ``start``, a panel's first, to ``end``: (..., K) -> (..., end - start)."""
        assert x.dtype == self.dtype, f"{x.dtype} for weights in {self.dtype}"
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], end - start))
        panels, bias = self.pointers
        self.kernel(
            x.data_ptr(), panels + start * self.steps * 4, None if bias is None else bias + start * 4,
                out.data_ptr(),
            x.numel() // self.in_features, end - start, self.steps,
        )  # fmt: skip
        return out

    def __deepcopy__(self, memo: object) -> NativeLinear:
        return self  # immutable


class PackedLinear(nn.Module):
    """x W^T + b with W in oneDNN's packed layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed_weight = torch.ops.mkldnn._reorder_linear_weight(
            weight.detach().contiguous(), _ONEDNN_ROWS
        )
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed_weight, self.bias, "none", [], "")
        return out


MAX_K = 64  # largest k of the kernel; for more, sorting is faster


def topk_rows(x: Tensor, k: int, banned_ids: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Like ``x.topk(k)`` on rows (N, V), with -inf at the columns ``banned_ids``; ties in column order.

    Numbers that are -inf or NaN are returned as -inf, with an arbitrary column id.
    """
    found = _run_topk("best_of", x, k, banned_ids)
    if found is not None:
        return found
    x = x.index_fill(1, torch.tensor(banned_ids, device=x.device), float("-inf")) if banned_ids else x
    values, ids = x.topk(k)
    return values, ids


def topk_log_softmax(x: Tensor, k: int, banned_ids: Sequence[int] = ()) -> tuple[Tensor, Tensor] | None:
    """``topk_rows`` with the numbers' log softmax over the whole row; None without kernels."""
    return _run_topk("best_log_probs", x, k, banned_ids)


def _run_topk(kernel: str, x: Tensor, k: int, banned_ids: Sequence[int]) -> tuple[Tensor, Tensor] | None:
    on_cpu = x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous()
    kernels = load_kernels() if on_cpu and k <= MAX_K else None
    if kernels is None:
        return None
    values, ids = x.new_empty(len(x), k), torch.empty(len(x), k, dtype=torch.int64)
    banned_array = (INT64 * len(banned_ids))(*banned_ids)
    getattr(kernels, kernel)(
        x.data_ptr(), *x.shape, k, banned_array, len(banned_ids), values.data_ptr(), ids.data_ptr()
    )
    return values, ids


def max_and_logsumexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum m and log Σ exp(x - m) of rows, (N, V) -> (N, 1) twice; log softmax is x minus both. fp32."""
    kernels = load_kernels() if x.device.type == "cpu" and x.is_contiguous() else None
    if kernels is None:
        row_max = x.amax(-1, keepdim=True)
        return row_max, (x - row_max).logsumexp(-1, keepdim=True)
    assert x.dtype == torch.float32, f"the kernel is for fp32, not {x.dtype}"
    out = x.new_empty(len(x), 2)
    kernels.log_sums(x.data_ptr(), out.data_ptr(), *x.shape)
    return out[:, :1], out[:, 1:]
