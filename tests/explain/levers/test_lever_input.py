import pytest
import torch
from tests.explain.levers.levers_helpers import make_run
from torch import nn

from polyhead.core.errors import UserError
from polyhead.explain.inputs import read_inputs
from polyhead.explain.levers.lever_input import copy_modules, list_stacks, read_lever_input, reuse_layers


def read(run, text, target=None, window=None):
    inputs = read_inputs(run, text, target)
    return read_lever_input(run, inputs, window or (0, len(inputs.sides[-1].ids)))


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
