"""Probabilities of tokens and aligned words of pairs, against single passes over the model."""

import math

import pytest
import torch
from tests.serve.conftest import TEXTS, build_run

from polyhead.core.errors import UserError
from polyhead.introspect.word_alignment import align_pairs, format_alignment
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.scripts import find_words

TARGETS = TEXTS[::-1]


@pytest.fixture(scope="module")
def translator():
    return build_run("encoder-decoder", n_layers=3, position="learned")


def list_words(text):
    return [text[start:end] for start, end in find_words(text)]


def test_words_are_between_white_space_or_characters():
    assert list_words(" A dog, barking\u3000loud ") == ["A", "dog,", "barking", "loud"]
    assert list_words("3月5日 PM、ねこ cat猫") == ["3", "月", "5", "日", "PM、", "ね", "こ", "cat", "猫"]


def test_probabilities_of_tokens_are_those_of_each_step(translator):
    t = translator.tokenizer
    for source, target, reading in zip(TEXTS, TARGETS, translator.align_pairs(TEXTS, TARGETS), strict=True):
        (ids,), (out,) = t.encode([source]), t.target_tokenizer.encode([target])
        template = with_languages(t)
        tokens, expected = [*out, template.eos_id], []
        for i, token in enumerate(tokens):
            row = template.decoder_input(tokens[:i])
            with torch.inference_mode():
                logits = translator.model(torch.tensor([template.encoder_input(ids)]), torch.tensor([row]))
            expected.append(logits[0, -1].double().log_softmax(-1)[token].item())
        assert reading.tokens == tokens
        assert reading.log_probs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("layer", [None, 0, 1, 2])
def test_words_are_aligned_by_their_weights(layer, translator):
    readings = translator.align_pairs(TEXTS, TARGETS, layer=layer)
    for source, target, reading in zip(TEXTS, TARGETS, readings, strict=True):
        maps = translator.attention_maps(source, target)["cross"]
        weights = maps.weights.mean((0, 1)) if layer is None else maps.weights[layer].mean(0)
        rows = count_parts(translator.tokenizer.target_tokenizer, target)
        columns = count_parts(translator.tokenizer, source)
        best = {}
        for t, row in enumerate(rows):
            for s, column in enumerate(columns):
                for i in row:
                    for j in column:
                        best.setdefault(i, {}).setdefault(j, 0.0)
                        best[i][j] += float(weights[t, s])
        assert reading.alignment == [(max(of, key=of.get), i) for i, of in sorted(best.items())]
    assert len({source for reading in readings for source, _ in reading.alignment}) > 1


def count_parts(tokenizer, text):
    """For each token of a text the numbers of the words that it has a part of."""
    words, parts, done = find_words(text), [], 0
    (ids,) = tokenizer.encode([text])
    for n in range(1, len(ids) + 1):
        end = len(tokenizer.decode([ids[:n]])[0].rstrip("\ufffd"))
        parts.append([i for i, (a, b) in enumerate(words) if a < max(end, done + 1) and b > done])
        done = max(end, done)
    return parts


def test_pairs_do_not_depend_on_their_batch(translator):
    one_by_one = [translator.align_pairs([a], [b])[0] for a, b in zip(TEXTS, TARGETS, strict=True)]
    for reading, alone in zip(translator.align_pairs(TEXTS, TARGETS), one_by_one, strict=True):
        assert (reading.tokens, reading.alignment) == (alone.tokens, alone.alignment)
        assert reading.log_probs == pytest.approx(alone.log_probs, abs=1e-5)
    assert format_alignment([(0, 0), (3, 1)]) == "0-0 3-1"


def test_texts_that_are_no_pairs_are_refused(translator):
    with pytest.raises(UserError, match="layer is 3, expected 0 to 2"):
        translator.align_pairs(["a"], ["b"], layer=3)
    with pytest.raises(UserError, match="2 sources and 1 targets"):
        translator.align_pairs(["a", "b"], ["c"])
    with pytest.raises(UserError, match="target 2 has 400 tokens; the model's maximum is 48"):
        translator.align_pairs(["a", "b"], ["c", "@" * 400])
    with pytest.raises(UserError, match="encoder-decoder"):
        build_run("decoder").align_pairs(["a"], ["b"])


def test_long_source_is_cut_as_in_translation(translator):
    source = " ".join(["long words"] * 200)
    ((best, *_),) = translator.hypotheses([source], truncate=True)
    template = with_languages(translator.tokenizer)
    (reading,) = align_pairs(translator.model, translator.tokenizer, template, [source], [best.tokens])
    log_probs = reading.log_probs[: best.length]  # it may have no end
    assert sum(log_probs) == pytest.approx(best.log_prob, abs=1e-3)
    assert best.confidence == pytest.approx(math.exp(sum(log_probs) / len(log_probs)), rel=1e-4)
