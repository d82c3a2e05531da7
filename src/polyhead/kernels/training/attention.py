"""Softmax attention of training in one kernel forward and one backward, on the layout of the projections."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polyhead.kernels.build_extension import DTYPE_SUFFIX, INT64, POINTER, load_kernels
from polyhead.nn.kv import KV, WeightsHook
from polyhead.nn.precision import product_dtype

LANES = 16  # head dimensions must be multiples of this
MAX_HEAD_DIM = 1024


class _Strides(ctypes.Structure):
    _fields_ = [("row", INT64), ("token", INT64), ("head", INT64)]


_TENSORS = ["q", "k", "v", "out", "grad", "dq", "dk", "dv"]

_SUMS = ["dq_sums", "dk_sums", "dv_sums"]


class _Sizes(ctypes.Structure):
    """TrainSizes of train_attention.hpp."""

    _fields_ = [
        *((name, INT64) for name in ["rows", "heads", "group", "queries", "keys", "dim", "v_dim"]),
        *((name, _Strides) for name in [*_TENSORS, "mask", "bias"]),
        *((name, INT64) for name in ["causal", "rotary", "interleaved"]),
        ("angle", _Strides),
        ("scale", ctypes.c_double),
    ]


class _Pointers(ctypes.Structure):
    """TrainTensors of train_attention.hpp."""

    _fields_ = [(name, POINTER) for name in [*_TENSORS, "log_sums", "mask", "bias", "cos", "sin", *_SUMS]]


@cache
def attention_kernels() -> dict[torch.dtype, Any]:
    """The kernel for each data type of queries, keys and values; none without a compiler."""
    library = load_kernels()
    if library is None:
        return {}
    kernels = {dtype: getattr(library, f"train_attention_{suffix}") for dtype, suffix in DTYPE_SUFFIX.items()}
    for kernel in kernels.values():
        kernel.argtypes = [ctypes.POINTER(_Pointers), ctypes.POINTER(_Sizes), INT64]
    return kernels


def can_attend(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel takes queries (B, T, H, D), keys (B, S, K, D) and values (B, S, K, Dv)."""
    return (
        q.device.type == k.device.type == v.device.type == "cpu"
        and q.dtype == k.dtype == v.dtype
        and q.dtype in attention_kernels()
        and q.size(0) == k.size(0)
        and 0 < q.size(3) <= MAX_HEAD_DIM
        and 0 < v.size(3) <= MAX_HEAD_DIM
        and q.size(3) % LANES == v.size(3) % LANES == 0
        and min(q.numel(), k.numel()) > 0
    )


class AttentionCall(NamedTuple):
    """What a call of the kernel takes besides queries, keys and values."""

    mask: Tensor | None = None  # (1|B, 1|H, 1|T, S) bool, True where a query sees a key
    bias: Tensor | None = None  # (1|B, 1|H, 1|T, S) fp32, added to the scores
    causal: bool = False  # query i sees only keys 0..i
    scale: float | None = None  # above 0; 1 / √D by default
    cos: Tensor | None = None  # of the angles by which queries and keys are rotated: (1|B, T, width / 2) fp32
    sin: Tensor | None = None
    is_interleaved: bool = False  # rotated pairs are features (2j, 2j + 1), else (j, j + width / 2)

    def split(self) -> tuple[AttentionCall, tuple[Tensor | None, ...]]:
        """The call without tensors, and these, to be saved for the backward pass."""
        return self.with_tensors(None, None, None, None), (self.mask, self.bias, self.cos, self.sin)

    def with_tensors(
        self, mask: Tensor | None, bias: Tensor | None, cos: Tensor | None, sin: Tensor | None
    ) -> AttentionCall:
        """The inverse of ``split``."""
        return self._replace(mask=mask, bias=bias, cos=cos, sin=sin)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output (B, T, H, Dv), and the logsumexp of each query's scores in base 2: (B, H, T)."""
        B, T, H, _ = q.shape
        out, log_sums = q.new_empty(B, T, H, v.size(3)), q.new_empty(B, H, T, dtype=torch.float32)
        self._run({"q": q, "k": k, "v": v, "out": out}, log_sums, backward=False)
        return out, log_sums

    def backward(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        log_sums: Tensor,
        grad: Tensor,
        grads: tuple[Tensor, Tensor, Tensor],
        sums: Sequence[Tensor] = (),
    ) -> None:
        """Write the gradients of q, k and v into ``grads``, from the output and its gradient.

        ``sums`` receive their sums over tokens, in fp32: (B, H, D), (B, K, D), (B, K, Dv).
        """
        tensors = dict(zip(_TENSORS, (*inputs, out, grad, *grads), strict=True))
        self._run(tensors, log_sums, sums, backward=True)

    def _run(
        self, tensors: dict[str, Tensor], log_sums: Tensor, sums: Sequence[Tensor] = (), *, backward: bool
    ) -> None:
        q, k, v = (tensors[name] for name in "qkv")
        (B, T, H, D), (_, S, K, _) = q.shape, k.shape
        sizes, pointers = _Sizes(B, K, H // K, T, S, D, v.size(3)), _Pointers()
        for name, x in tensors.items():
            assert x.stride(3) == 1 and x.dtype == q.dtype, f"{name}: {x.stride()} of {x.dtype}"
            setattr(pointers, name, x.data_ptr())
            setattr(sizes, name, _Strides(*x.stride()[:3]))
        pointers.log_sums = log_sums.data_ptr()
        for name, total in zip(_SUMS, sums, strict=False):
            setattr(pointers, name, total.data_ptr())
        for name, scores in (("mask", self.mask), ("bias", self.bias)):
            if scores is not None:
                assert scores.size(3) == S and scores.stride(3) == 1, f"{name}: {scores.shape}"
                row, head, query = (
                    step * (n > 1) for n, step in zip(scores.shape[:3], scores.stride()[:3], strict=True)
                )
                setattr(pointers, name, scores.data_ptr())
                setattr(sizes, name, _Strides(row, query, head))
        if self.cos is not None and self.sin is not None:
            assert self.cos.stride() == self.sin.stride() and self.cos.stride(2) == 1
            row, token, _ = self.cos.stride()
            sizes.rotary, sizes.interleaved = 2 * self.cos.size(2), self.is_interleaved
            sizes.angle = _Strides(row * (len(self.cos) > 1), token, 0)
            pointers.cos, pointers.sin = self.cos.data_ptr(), self.sin.data_ptr()
        sizes.causal, sizes.scale = self.causal, D**-0.5 if self.scale is None else self.scale
        attention_kernels()[q.dtype](pointers, sizes, backward)


def attend_in_training(q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
    """(B, T, H, D), (B, S, K, D), (B, S, K, Dv) -> (B, T, H, Dv), with gradients of q, k and v."""
    out: Tensor = _AttentionFunction.apply(q, k, v, call)
    return out


class _AttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
        out, log_sums = call.forward(q, k, v)
        ctx.call, tensors = call.split()
        ctx.save_for_backward(q, k, v, out, log_sums, *tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sums, *tensors = ctx.saved_tensors
        grads = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        grad = grad if grad.stride(3) == 1 else grad.contiguous()
        ctx.call.with_tensors(*tensors).backward((q, k, v), out, log_sums, grad, grads)
        return *grads, None


def fuse_attend(
    copies: object,
    q: Tensor,
    kv: KV,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    value_bias: Callable[[Tensor], Tensor | None] | None = None,
    hooks: Sequence[WeightsHook] = (),
) -> Tensor | None:
    """``nn.kv.attend`` in the kernel: (B, H, T, D) over kv -> (B, H, T, Dv); None if it does not apply."""
    needs_weights = bool(hooks) or value_bias is not None or softcap is not None or dropout > 0
    if needs_weights or kv.log_count is not None or (bias is not None and bias.requires_grad):
        return None
    if scale is not None and scale <= 0:
        return None
    dtype = product_dtype(q)
    heads, keys, values = (x.to(dtype).transpose(1, 2) for x in (q, kv.k, kv.v))
    if not can_attend(heads, keys, values):
        return None
    if mask is not None and 1 < mask.size(1) < q.size(1):  # of key heads
        mask = mask.repeat_interleave(q.size(1) // mask.size(1), 1)
    call = AttentionCall(
        None if mask is None else mask.contiguous(),
        None if bias is None else bias.float().contiguous(),
        causal and mask is None,
        scale,
    )
    return attend_in_training(heads, keys, values, call).transpose(1, 2)
