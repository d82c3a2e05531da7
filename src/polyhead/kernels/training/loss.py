"""Cross-entropy of a head's logits in training: one pass over the logits that turns them into gradients."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polyhead.kernels.build_extension import DTYPE_SUFFIX, INT64, POINTER, load_kernels
from polyhead.kernels.training.elementwise import address
from polyhead.kernels.training.products import multiply, round_rows
from polyhead.kernels.training.residual import WeightCopies, copy_weights, is_plain_tensor
from polyhead.nn.device import product_dtype
from polyhead.nn.embedding import Head
from polyhead.nn.loss import LOGITS_CHUNK, Loss, labeled_rows

LOGITS_BYTES = 2**26  # of logits stored at a time


class LossOptions(ctypes.Structure):
    """The struct of the same layout in train_loss.hpp."""

    _fields_ = [("softcap", ctypes.c_float), ("smoothing", ctypes.c_float), ("gradient", ctypes.c_bool)]


def load_loss_kernels() -> ctypes.CDLL | None:
    """The compiled kernels, with the argument types of this file's; None if they cannot be built."""
    return _declare_arguments(load_kernels())


@cache
def _declare_arguments(kernels: ctypes.CDLL | None) -> ctypes.CDLL | None:
    if kernels is not None:
        arguments = [*[POINTER] * 3, INT64, INT64, ctypes.POINTER(LossOptions), POINTER, POINTER]
        for suffix in DTYPE_SUFFIX.values():
            getattr(kernels, f"cross_entropy_{suffix}").argtypes = arguments
        kernels.add_bf16.argtypes = [POINTER, POINTER, INT64, ctypes.c_bool]
    return kernels


class FusedCrossEntropy(torch.autograd.Function):
    """Sums of ``nn.loss.cross_entropy`` over rows that have labels.

    features (M, C) and weight (V, C) fp32, labels (M,) -> total, nll. ``w`` is the weight in the dtype of
    products; sums are fp32. Gradients are computed in the forward pass, where the probabilities are.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        softcap: float | None,
        smoothing: float,
        w: Tensor,
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        features_need_grad, weight_needs_grad = (needs_grad and needed for needed in ctx.needs_input_grad[:2])
        gradient = features_need_grad or weight_needs_grad
        n_rows = round_rows(len(labels))
        x = features.new_zeros(n_rows, features.size(1), dtype=w.dtype)  # rows of zeros have logits of 0
        x[: len(labels)] = features
        d_features = torch.empty_like(features) if features_need_grad else None
        d_weight = torch.empty_like(weight) if weight_needs_grad else None
        d_bias = torch.zeros_like(bias) if bias is not None and gradient else None
        options, sums = LossOptions(softcap or 0.0, smoothing, gradient), torch.zeros(2, dtype=torch.float64)
        kernels = load_loss_kernels()
        assert kernels is not None and labels.is_contiguous()
        add_losses = getattr(kernels, f"cross_entropy_{DTYPE_SUFFIX[w.dtype]}")
        most = max(1, LOGITS_BYTES // (len(w) * w.itemsize))
        n_chunks = -(-n_rows // most)
        chunk = round_rows(-(-n_rows // n_chunks)) if n_chunks else 1  # equal: few rows cost as much as many
        for at in range(0, n_rows, chunk):
            rows, targets = x[at : at + chunk], labels[at : at + chunk]
            scores = multiply("linear", rows, w.T)
            # adds to total and nll, and replaces the logits by the gradients of total
            add_losses(
                scores.data_ptr(), address(bias), targets.data_ptr(), len(targets), len(w), options,
                address(d_bias), sums.data_ptr(),
            )  # fmt: skip
            if d_features is not None:
                d_features[at : at + len(targets)] = multiply("input", scores, w)[: len(targets)]
            if d_weight is not None and w.dtype == torch.bfloat16:
                term = scores.T @ rows
                kernels.add_bf16(d_weight.data_ptr(), term.data_ptr(), d_weight.numel(), at == 0)
            elif d_weight is not None:
                torch.addmm(d_weight, scores.T, rows, beta=int(at > 0), out=d_weight)
            del scores  # before the next ones are there
        if d_weight is not None and not len(labels):
            d_weight.zero_()
        ctx.save_for_backward(d_features, d_weight, d_bias)
        total, nll = sums.float().unbind()
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *[None if d is None else d * grad for d in ctx.saved_tensors], *[None] * 5


def fuse_cross_entropy(
    copies: WeightCopies,
    features: Tensor,
    head: Head,
    labels: Tensor,
    smoothing: float = 0.0,
    chunk: int = LOGITS_CHUNK,
    host: Tensor | None = None,
) -> Loss | None:
    """``nn.loss.cross_entropy`` by the kernel; None if these tensors or this machine have no fused form."""
    weight = head.weight
    is_plain = all(is_plain_tensor(x) and x.is_cpu for x in (features, weight, labels))
    is_plain = is_plain and labels.dtype == torch.int64  # as the kernel reads them
    if not is_plain or head.vocabulary is not None or load_loss_kernels() is None:
        return None
    if product_dtype(features) not in DTYPE_SUFFIX or not features.dtype == weight.dtype == torch.float32:
        return None
    rows = labeled_rows(labels, host)
    x = head.scale_input(features.flatten(0, -2).index_select(0, rows))
    labels = labels.flatten().index_select(0, rows)
    for label in labels.aminmax() if len(labels) else ():  # the kernel would read outside of its logits
        if not 0 <= label < len(weight):
            raise IndexError(f"label {int(label)} is outside of the {len(weight)} rows of the head")
    total, nll = FusedCrossEntropy.apply(
        x,
        weight,
        head.bias,
        labels,
        head.softcap,
        smoothing,
        copy_weights(copies, weight),
        torch.is_grad_enabled(),
    )
    return Loss(total, nll, len(labels))
