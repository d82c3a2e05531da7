import pytest
import torch
from tests.explain.levers.levers_helpers import make_lever_input, make_run, run_model
from torch import nn

from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.core.errors import UserError
from polyhead.explain.inputs import read_inputs
from polyhead.explain.levers.lever_input import (
    copy_modules,
    list_stacks,
    read_lever_input,
    read_stepwise,
    reuse_layers,
)


def read(run, text, target=None, window=None):
    inputs = read_inputs(run, text, target)
    windows = [(0, len(side.ids)) for side in inputs.sides]
    return read_lever_input(run, inputs, [window] if window else windows)


def spell_words(run, ids, words):
    return ["".join(run.tokenizer.decode([[ids[i] for i in word]])).strip() for word in words]


def test_language_model_predicts_next_tokens():
    run = make_run()
    lever_input = read(run, "the dog barks at you")
    assert lever_input.labels == [*lever_input.tokens[1:], None]
    assert lever_input.rows == [*range(len(lever_input.tokens))]
    assert spell_words(run, lever_input.tokens, lever_input.words) == ["the", "dog", "barks", "at", "you"]
    with torch.no_grad():
        logits = run.model(torch.tensor([lever_input.tokens]))[0]
    torch.testing.assert_close(lever_input.plain_logits, logits)
    assert lever_input.side == 0
    window = read(run, "the dog barks at you", window=(2, 4))
    assert (window.rows, window.labels) == ([2, 3], lever_input.labels[2:4])
    torch.testing.assert_close(window.plain_logits, logits[2:4])


def test_translator_predicts_target():
    run = make_run("encoder-decoder")
    lever_input = read(run, "the dog barks", "a cat barks")
    template = run.tokenizer.seq2seq_template
    (target,) = run.tokenizer.encode(["a cat barks"])
    assert lever_input.labels == template.labels(target)
    assert lever_input.tokens == template.decoder_input(target)
    assert spell_words(run, lever_input.source, lever_input.words) == ["the", "dog", "barks"]
    assert (lever_input.side, lever_input.eos_id) == (1, template.eos_id)
    output = run.hypotheses(["the dog barks"])[0][0].tokens
    assert read(run, "the dog barks").labels == template.labels(output)


def test_encoder_predicts_masks_or_every_token():
    run = make_run("encoder")
    masked = read(run, "the <mask> barks")
    (row,) = masked.rows
    assert masked.tokens[row] == run.tokenizer.mask_id
    assert masked.labels == [None] and len(masked.words) == 3
    plain_input = read(run, "the dog barks")
    assert plain_input.labels == plain_input.tokens
    assert 0 not in {i for word in plain_input.words for i in word}  # the special token


def test_classifier_has_one_row():
    run = make_run("encoder", labels=["a", "b"], n_segments=2)
    lever_input = read(run, "the dog", "a cat")
    assert (lever_input.rows, lever_input.labels) == ([None], [None])
    assert 1 in lever_input.segments
    with torch.no_grad():
        logits = run.model(*read_inputs(run, "the dog", "a cat").args)
    torch.testing.assert_close(lever_input.plain_logits, logits)
    assert lever_input.references == logits.argmax(-1).tolist()
    # a single logit becomes two classes
    reranker = read(make_run("encoder", labels=["relevant"]), "the dog")
    assert reranker.plain_logits.shape == (1, 2)
    assert reranker.plain_logits[0, 0] == 0
    detector = read(make_run("encoder", generator_layers=1), "the dog barks")
    assert detector.plain_logits.shape == (len(detector.tokens), 2)
    assert detector.labels == [None] * len(detector.tokens)
    with pytest.raises(UserError, match="without a head has no output"):
        read(make_run("encoder", lm_head=False), "the dog")


def test_copies_share_weights_and_reuse_layers():
    lever_input = read(make_run("encoder-decoder"), "the dog barks", "a cat barks")
    model, calls = copy_modules(lever_input.model), []
    for name in ("encoder", "encoder.layers.0", "decoder.layers.0", "decoder.layers.1"):
        model.get_submodule(name).register_forward_hook(lambda *args, name=name: calls.append(name))
    reuse_layers(model, lever_input.plain_states, "decoder", 1)
    logits = lever_input.compute_logits(model)
    assert calls == ["decoder.layers.1"]
    assert torch.equal(logits, lever_input.plain_logits)
    model = make_run("encoder-decoder").model
    module_copy = copy_modules(model)
    assert all(a is b for a, b in zip(model.parameters(), module_copy.parameters(), strict=True))
    module_copy.decoder.layers = nn.ModuleList()
    assert len(list_stacks(model)["decoder"].layers) == 2
    assert list(list_stacks(model)) == ["encoder", "decoder"]


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
