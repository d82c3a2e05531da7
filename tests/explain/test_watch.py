from threading import Thread

import pytest
import torch
from tests.explain.explain_helpers import make_run

from polyhead.explain.watch import watch_model


def test_watching_ends_after_error_and_without_threads():
    model = make_run(kind="decoder", attention="linear").model
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        plain = model(ids)
        with watch_model(model, [3], [(0, 3)]) as trace:
            output = model(ids)
    assert torch.equal(plain, output)
    n = len(trace.steps)
    with pytest.raises(IndexError), torch.inference_mode(), watch_model(model, [1], [(0, 1)]):
        model(torch.tensor([[999]]))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert not any(getattr(part, "weights_hooks", []) for part in model.modules())
    with torch.inference_mode():
        model(ids)
    assert len(trace.steps) == n
    # nor are passes of other threads recorded
    with watch_model(model, [3], [(0, 3)]) as trace:
        thread = Thread(target=model, args=(ids,))
        thread.start()
        thread.join()
    assert trace.steps == []
    # layers with shared weights have their own steps
    model = make_run(kind="decoder", share_layers=True).model
    with torch.inference_mode(), watch_model(model, [3], [(0, 3)]) as trace:
        model(torch.tensor([[5, 6, 7]]))
    assert [layer["path"] for layer in trace.layers] == ["stack.layers.0", "stack.layers.1"]
    attentions = [step.place.path for step in trace.steps if step.kind == "attention"]
    assert attentions == ["stack.layers.0.attn", "stack.layers.1.attn"]
