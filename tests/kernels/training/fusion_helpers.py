from contextlib import ExitStack, contextmanager

import torch

from polyhead.kernels.training.mode import SUBLAYERS, training_kernels
from polyhead.nn import kv


@contextmanager
def record_fusions(monkeypatch, table=SUBLAYERS):
    """For each call that has a form in this table, whether it was fused."""
    record = []

    def record_use(fusion):
        def call(*args, **kwargs):
            index = len(record)
            record.append(True)  # before the call, which a recomputation leaves by an exception
            out = fusion(*args, **kwargs)
            record[index] = out is not None
            return out

        return call

    with monkeypatch.context() as patch:
        for kind, fusion in table.items():
            patch.setitem(table, kind, record_use(fusion))
        yield record


def compute_gradients(sublayer, inputs, weights):
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = sublayer(*inputs)
    return [out, *torch.autograd.grad((out * weights.to(out.dtype)).sum(), (*inputs, *sublayer.parameters()))]


def run_precisions(sublayer, inputs, weights, monkeypatch):
    """Each output and gradient: fused in fp32, fused in bf16, plain in bf16, plain in fp64."""
    state = torch.get_rng_state()

    def run(*contexts):
        torch.set_rng_state(state)
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            return compute_gradients(sublayer, inputs, weights)

    bf16 = torch.autocast("cpu", torch.bfloat16)
    with record_fusions(monkeypatch) as is_fused:
        fused_fp32, fused_bf16 = run(training_kernels()), run(bf16, training_kernels())
    assert is_fused == [True, True]
    assert {x.dtype for x in (*fused_fp32, *fused_bf16)} == {torch.float32}
    monkeypatch.setattr(kv, "_prefer_math_attention", lambda q, kv: False)
    plain_bf16 = run(bf16)
    sublayer.double()
    inputs, weights = [x.double() for x in inputs], weights.double()
    return zip(fused_fp32, fused_bf16, plain_bf16, run(), strict=True)
