import copy

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.kernels.training.fusion_helpers import record_fusions
from tests.laws.conftest import CASES
from tests.laws.test_tensor_parallel import LabelTask, make_batch, make_config

from polyhead.kernels.training.mode import training_kernels
from polyhead.models import build
from polyhead.train.precision import autocast

pytestmark = needs_kernels
CPU = torch.device("cpu")


def make_model(case):
    return build(make_config(case, d_model=64, d_ff=48, dropout=0.25), seed=1).float()


def compute_gradients(model, context):
    model = copy.deepcopy(model).train()
    torch.manual_seed(1)
    with context:
        loss = LabelTask().loss(model, make_batch(model.config))
    (loss.total / loss.count).backward()
    # an expert without tokens has no gradient; rounding changes which expert that is
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}


def find_errors(model, precision):
    exact = compute_gradients(copy.deepcopy(model).double(), torch.enable_grad())
    half = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    results = [compute_gradients(model, half), compute_gradients(model, autocast(precision, CPU))]
    norm = sum(float(exact[name].norm()) ** 2 for name in exact) ** 0.5
    return [sum(float((x[n] - exact[n]).norm()) ** 2 for n in x) ** 0.5 / norm for x in results]


@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-5), ("bf16", 0.03)])
def test_gradients_equal_those_without_kernels(case, precision, error):
    """Up to rounding, which in bf16 switches single units of a ReLU."""
    if CASES[case].get("norm", {}).get("name") == "none":
        pytest.skip("not applicable: without a norm, rounding alone changes the gradients")
    plain, fused = find_errors(make_model(CASES[case]), precision)
    assert fused <= 3 * plain + error


def test_standard_designs_have_fused_sublayers(monkeypatch):
    """The comparison above is not vacuous: the mode replaces residuals of the standard designs."""
    with record_fusions(monkeypatch) as is_fused:
        compute_gradients(make_model({"kind": "encoder-decoder"}), training_kernels())
    assert len(is_fused) >= 4 and all(is_fused)
