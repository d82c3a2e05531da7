import numpy as np
import pytest
import torch
from tests.generation.run_helpers import TEXTS, make_run

from polyhead import Choice
from polyhead.generation.constraints.unfinished_word import split_prefixes
from polyhead.generation.shortlist.shortlist import Shortlist
from polyhead.tokenizers.train_tokenizer import train_tokenizer

PREFIXES = ["a d", "two ", "a dog  ", " tw", "dogs", "two dogs b", "a dog bark"]


def spell_greedily(run, source, prefix, limit):
    """The most likely token at each step whose text agrees with the prefix; the words before are forced."""
    tokenizer, template = run.tokenizer, run.tokenizer.seq2seq_template
    memory = torch.tensor([template.encoder_input(tokenizer.encode([source])[0])])
    head, _, _ = prefix.rpartition(" ")
    ids = tokenizer.encode([head])[0]
    while len(ids) < limit:
        target = torch.tensor([[template.decoder_start_id, *ids]])
        with torch.inference_mode():
            order = run.model(memory, target)[0, -1].argsort(descending=True).tolist()
        for token in order:
            (text,) = tokenizer.decode([[*ids, token]])
            is_special = token in tokenizer.special_ids
            (typed,) = tokenizer.decode([ids])
            if typed.startswith(prefix) or (
                not is_special and (text.startswith(prefix) or (prefix.startswith(text) and text != typed))
            ):
                break
        if token == template.eos_id:
            break
        ids.append(token)
    return tokenizer.decode([ids])[0]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_greedy_spelling_equals_search_over_texts(prefix):
    run = make_run("encoder-decoder", seed=7)
    options = {"beam_size": 1, "max_length_ratio": 0, "max_length_extra": 20}
    for source in TEXTS:
        (output,) = run.translate([source], prefix=[prefix], **options)
        assert output == spell_greedily(run, source, prefix, 20).rstrip("\ufffd")


THAI = ["สวัสดีครับ", "สวัสดี"]


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "unigram", "wordpiece"])
@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 3, "no_repeat_ngram_size": 3, "terminology": {"hund": "dog"}},
        {"beam_size": 2, "shortlist": True, "bad_words": ["d"]},
        {"temperature": 2.0, "seed": 3, "no_repeat_ngram_size": 1},
        {"top_k": 5, "shortlist": True},
    ],
)
def test_outputs_begin_with_the_typed_prefix(kind, options):
    run = make_run(
        "encoder-decoder", train_tokenizer(["他们在公园里散步", *THAI, *TEXTS] * 5, Choice(kind), 340), seed=7
    )
    vocab_size, empty = run.tokenizer.vocab_size, np.array([], np.int32)
    few = Shortlist(np.array([run.tokenizer.eos_id], np.int32), np.zeros(vocab_size + 1, np.int64), empty)
    run.get_shortlist = lambda: few
    prefixes = ["a d", "two ", "", "hund b", "他们在公", "สวั", "犬 "]
    outputs = run.translate(["ein hund"] * len(prefixes), prefix=prefixes, **options)
    assert all(text.startswith(prefix) for text, prefix in zip(outputs, prefixes, strict=True))


def test_word_begins_where_a_longer_token_may():
    tokenizer = train_tokenizer([*THAI, "ab cde"] * 9, Choice("bpe"), 340)

    def split(text, max_tokens=99):
        ((ids, word),) = split_prefixes(tokenizer, [text], max_tokens)
        return tokenizer.decode([ids])[0], word and word.text.decode()

    assert split("ab c") == ("ab", " c") and split("ab cde ") == ("ab cde", " ")
    assert split("ab สวั") == ("ab ", "สวั")
    assert split("ab c", 3) == ("ab c", None), "no room for a token per byte"
    assert split("") == ("", None)
