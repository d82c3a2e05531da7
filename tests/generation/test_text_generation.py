"""Tests of generation/text_generation.py."""

import pytest
from tests.generation.generate_helpers import collect, make

from polyhead.config.generation_config import GenerationConfig
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.text_generation import generate_texts

PAD, EOS, V = 0, 2, 23

NEVER = -1  # an end that no model says

PROMPTS = [[5, 6, 7], [9], [4, 4, 8, 11, 3, 12, 20], [21, 5]]


class Letters:
    """A tokenizer of one letter a token."""

    pad_id, vocab_size = PAD, V
    token_bytes = None  # it is asked for every text

    def __init__(self, eos_id=EOS):
        self.eos_id, self.skipped_ids = eos_id, {eos_id}

    def decode(self, rows):
        return ["".join(chr(96 + i) for i in row if i != self.eos_id) for row in rows]


def said(model, prompts, n=1, stop=(), batch_tokens=4096, eos_id=EOS, **changes):
    config = GenerationConfig(max_new_tokens=15, batch_tokens=batch_tokens, **changes)
    texts, last = [""] * (n * len(prompts)), []
    for new in generate_texts(model, Letters(eos_id), config, prompts, max_len=64, n=n, seed=2, stop=stop):
        texts[new.row] += new.text
        last += [new.row] * new.is_last
    assert sorted(last) == list(range(n * len(prompts)))
    return texts


@pytest.mark.parametrize("batch_tokens", [1, 40, 100, 4096])
def test_texts_are_the_same_in_batches_of_any_size(batch_tokens):
    model = make("llama")
    found, _ = collect(model, PROMPTS, sampling=Sampling(), n=2, seed=2, max_new_tokens=15)
    assert said(model, PROMPTS, n=2, batch_tokens=batch_tokens) == Letters().decode(found)


def test_a_stop_string_ends_its_sequence_alone():
    model = make("llama")
    whole = said(model, PROMPTS, eos_id=NEVER)
    stop = [whole[0][3:5]]
    found = said(model, PROMPTS, stop=stop, eos_id=NEVER)
    assert found == [text.split(stop[0])[0] for text in whole]
    assert found[0] != whole[0] and found[1:] != [""] * 3
