"""Every design learns alike with the fused kernels of training, and with its parts alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.laws.conftest import CASES
from tests.laws.test_tensor_parallel import Labels, design, rows
from torch import Tensor, nn

from polyhead.kernels.training.mode import TrainingKernels
from polyhead.models import build
from polyhead.train.precision import autocast

pytestmark = needs_kernels
CPU = torch.device("cpu")


def make_model(case: dict[str, Any]) -> nn.Module:
    """Heads wide enough for the kernel of attention."""
    return build(design(case, d_model=64, d_ff=48, dropout=0.25), seed=1).float()


def gradients(model: nn.Module, context: Any) -> dict[str, Tensor]:
    """The loss and all gradients of a step with dropout, which draws the same numbers each time."""
    model = copy.deepcopy(model).train()
    torch.manual_seed(1)
    with context:
        loss = Labels().loss(model, rows(model.config))  # type: ignore[arg-type]
    (loss.total / loss.count).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.total.detach(), **found}


def find_errors(model: nn.Module, precision: str) -> tuple[float, float]:
    """Errors of the gradients, as parts of their norm: of the parts alone, and with the kernels."""
    exact = gradients(copy.deepcopy(model).double(), torch.enable_grad())
    half = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    found = [gradients(model, half), gradients(model, autocast(precision, CPU))]  # type: ignore[arg-type]
    norm = sum(float(exact[name].norm()) ** 2 for name in exact if name != "loss") ** 0.5
    plain, fused = (
        sum(float((grads[name] - exact[name]).norm()) ** 2 for name in grads if name != "loss") ** 0.5 / norm
        for grads in found
    )
    return plain, fused


@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-5), ("bf16", 0.03)])
def test_gradients_with_kernels_are_those_of_the_parts(case: str, precision: str, error: float) -> None:
    """Up to rounding, which in bf16 turns single units of a ReLU on or off: errors of two ways differ."""
    if CASES[case].get("norm", {}).get("name") == "none":
        pytest.skip("not applicable: without a norm, rounding alone changes the gradients")
    plain, fused = find_errors(make_model(CASES[case]), precision)
    assert fused <= 3 * plain + error


def test_most_designs_have_fused_sublayers() -> None:
    """The comparison above compares something: the mode replaces residuals of the standard designs."""
    calls = []

    class Counting(TrainingKernels):
        def replace_call(self, function: Any, args: Any, kwargs: Any) -> Any:
            out = super().replace_call(function, args, kwargs)
            if isinstance(out, Tensor):
                calls.append(type(out.grad_fn).__name__)
            return out

    gradients(make_model({"kind": "encoder-decoder"}), Counting())
    assert sum("Residual" in name for name in calls) >= 4, calls
