"""What levers compare of a text of each kind of model."""

from __future__ import annotations

import pytest
import torch
from tests.lab.caches_helpers import TEXT
from torch import nn

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.explain.inputs import read_inputs
from polyhead.explain.levers.lever_input import (
    copy_modules,
    list_stacks,
    read_lever_input,
    reuse_layers,
)
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXT.splitlines(), Choice("bpe"), 300)


def make_run(tokenizer, kind="decoder", **changes) -> Run:
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_len": 48}
    model = build(ModelConfig(kind=kind, **(sizes | {"vocab_size": tokenizer.vocab_size} | changes)), seed=1)
    return Run(model, tokenizer, GenerationConfig(max_length_ratio=1.0, max_length_extra=3))


def read(run, text, target=None, window=None):
    inputs = read_inputs(run, text, target)
    return read_lever_input(run, inputs, window or (0, len(inputs.sides[-1].ids)))


def spell_words(run, ids, words):
    return ["".join(run.tokenizer.decode([[ids[i] for i in word]])).strip() for word in words]


def test_a_language_model_predicts_each_next_token(tokenizer):
    run = make_run(tokenizer)
    lever_input = read(run, "the dog barks at you")
    assert lever_input.labels == [*lever_input.tokens[1:], None]
    assert lever_input.rows == [*range(len(lever_input.tokens))]
    assert spell_words(run, lever_input.tokens, lever_input.words) == ["the", "dog", "barks", "at", "you"]
    with torch.no_grad():
        logits = run.model(torch.tensor([lever_input.tokens]))[0]
    torch.testing.assert_close(lever_input.plain_logits, logits)
    assert lever_input.side == 0


def test_a_window_has_its_own_rows(tokenizer):
    run = make_run(tokenizer)
    whole, part = read(run, "the dog barks at you"), read(run, "the dog barks at you", window=(2, 4))
    assert (part.rows, part.labels) == ([2, 3], whole.labels[2:4])
    torch.testing.assert_close(part.plain_logits, whole.plain_logits[2:4])


def test_a_translator_reads_its_source_and_predicts_the_target(tokenizer):
    run = make_run(tokenizer, "encoder-decoder")
    lever_input = read(run, "the dog barks", "a cat barks")
    (target,) = tokenizer.encode(["a cat barks"])
    template = tokenizer.seq2seq_template
    assert lever_input.labels == template.labels(target)
    assert lever_input.tokens == template.decoder_input(target)
    assert spell_words(run, lever_input.source, lever_input.words) == ["the", "dog", "barks"]
    assert (lever_input.side, lever_input.eos_id) == (1, template.eos_id)
    own = read(run, "the dog barks")
    assert own.labels == template.labels(run.hypotheses(["the dog barks"])[0][0].tokens)


def test_an_encoder_predicts_its_masks_or_every_token(tokenizer):
    run = make_run(tokenizer, "encoder")
    masked = read(run, "the <mask> barks")
    (place,) = masked.rows
    assert masked.tokens[place] == tokenizer.mask_id
    assert masked.labels == [None]
    assert len(masked.words) == 3
    plain = read(run, "the dog barks")
    assert plain.labels == plain.tokens
    assert 0 not in {i for word in plain.words for i in word}  # the special token


def test_a_classifier_has_one_row_and_reads_pairs_with_segments(tokenizer):
    run = make_run(tokenizer, "encoder", labels=["a", "b"], n_segments=2)
    lever_input = read(run, "the dog", "a cat")
    assert (lever_input.rows, lever_input.labels) == ([None], [None])
    assert 1 in lever_input.segments
    args = read_inputs(run, "the dog", "a cat").args
    with torch.no_grad():
        torch.testing.assert_close(lever_input.plain_logits, run.model(*args))
    assert lever_input.references == lever_input.plain_logits.argmax(-1).tolist()


def test_one_logit_is_a_choice_between_no_and_yes(tokenizer):
    reranker = read(make_run(tokenizer, "encoder", labels=["relevant"]), "the dog")
    assert reranker.plain_logits.shape == (1, 2)
    assert reranker.plain_logits[0, 0] == 0
    detector = read(make_run(tokenizer, "encoder", generator_layers=1), "the dog barks")
    assert detector.plain_logits.shape == (len(detector.tokens), 2)
    assert detector.labels == [None] * len(detector.tokens)


def test_an_encoder_without_a_head_has_nothing_to_compare(tokenizer):
    with pytest.raises(UserError, match="without a head has no output"):
        read(make_run(tokenizer, "encoder", lm_head=False), "the dog")


def test_what_comes_before_a_layer_is_not_computed_again(tokenizer):
    lever_input = read(make_run(tokenizer, "encoder-decoder"), "the dog barks", "a cat barks")
    model, called = copy_modules(lever_input.model), []
    parts = dict(model.named_modules())
    for name in ("encoder", "encoder.layers.0", "decoder.layers.0", "decoder.layers.1"):
        parts[name].register_forward_hook(lambda *args, name=name: called.append(name))
    reuse_layers(model, lever_input.plain_states, "decoder", 1)
    logits = lever_input.compute_logits(model)
    assert called == ["decoder.layers.1"]
    assert torch.equal(logits, lever_input.plain_logits)


def test_a_copy_of_the_modules_shares_the_weights(tokenizer):
    model = make_run(tokenizer, "encoder-decoder").model
    copied = copy_modules(model)
    assert all(a is b for a, b in zip(model.parameters(), copied.parameters(), strict=True))
    copied.decoder.layers = nn.ModuleList()
    assert len(list_stacks(model)["decoder"].layers) == 2
    assert list(list_stacks(model)) == ["encoder", "decoder"]
