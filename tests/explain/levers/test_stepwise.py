import torch
from tests.explain.levers.levers_helpers import make_lever_input, run_model

from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.explain.levers.stepwise import read_stepwise


def decode_with_cache(lever_input, choice, prefill=1):
    model, n = lever_input.model, len(lever_input.tokens)
    cache = make_cache(choice, model.cache_shape, 1, n)
    tokens, pos = torch.tensor([lever_input.tokens]), torch.arange(n)[None]
    logits = []
    with torch.inference_mode():
        memory = None if lever_input.source is None else model.encode(torch.tensor([lever_input.source]))
        for span in (slice(0, prefill), *(slice(t, t + 1) for t in range(prefill, n))):
            cache.prepare_step([0], pos[:, span])
            logits.append(model.decode(tokens[:, span], pos[:, span], cache, memory)[0])
    return torch.cat(logits), cache


def test_lossless_cache_has_every_position_without_error():
    reading = read_stepwise(make_lever_input(position="rope"), None)
    assert reading.layer_numbers == [0, 1]
    for record in reading.layers:
        assert [row.tolist() for row in record.visible] == [[[True] * (t + 1)] * 4 for t in range(9)]
        assert [errors.tolist() for errors in record.measure_errors()] == [[[0.0] * 9] * 4] * 2
    assert read_stepwise(make_lever_input(attention="linear", position="none"), None).layers == []


def test_h2o_evicts_smallest_attention_sum_of_each_head():
    lever_input = make_lever_input(n_layers=1, n_kv_heads=2)
    weights = []
    lever_input.model.stack.layers[0].attn.weights_hooks.append(lambda w: weights.append(w[0]))
    record = read_stepwise(lever_input, Choice("h2o", budget=4, recent=2, sink=0)).layers[0]
    # until the budget is exceeded slots are in the order of positions; then each head evicts one of 0..2
    sums = sum(torch.nn.functional.pad(w[:, 0, :5], (0, 5 - w[:, 0, :5].size(1))) for w in weights[:5])
    by_head = sums.unflatten(0, (2, 2)).sum(1)  # query heads of a key/value head
    evicted_slots = by_head[:, :3].argmin(-1)
    for head, row in enumerate(record.visible[5]):
        assert row.nonzero()[:, 0].tolist() == [i for i in range(6) if i != evicted_slots[head]]


def test_quantization_errors_match_reference():
    lever_input = make_lever_input(n_layers=1, position="rope")
    record = read_stepwise(lever_input, Choice("quantized", bits=4, group=4)).layers[0]
    attn, projections = lever_input.model.stack.layers[0].attn, []
    attn.k_proj.register_forward_hook(lambda *args: projections.append(args[2]))
    run_model(lever_input.model, lever_input)
    keys = projections[0][0].view(9, 4, 4).transpose(0, 1)[None]
    keys = attn.position.prepare(None, 9, keys.device).rotate(keys, None)[0][:, :8]  # (K, T, D)
    group = keys.unflatten(1, (2, 4))
    low, high = group.amin(2, keepdim=True), group.amax(2, keepdim=True)
    scale = (high - low) / 15
    stored_keys = (((group - low) / scale).round() * scale + low).flatten(1, 2)
    expected = (stored_keys - keys).norm(dim=-1) / keys.norm(dim=-1)
    errors, _ = record.measure_errors()
    torch.testing.assert_close(errors[:, :8], expected, rtol=1e-4, atol=1e-6)
    assert errors[:, 8].tolist() == [0] * 4  # in full precision until its group is full
