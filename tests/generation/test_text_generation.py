from tests.generation.generate_helpers import EOS, NO_EOS, PAD, PROMPTS, V, collect, make

from polyhead.config.generation_config import GenerationConfig
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.text_generation import generate_texts


class LetterTokenizer:
    pad_id, vocab_size, token_bytes, prefix_ids = PAD, V, None, ()

    def __init__(self, eos_id=EOS):
        self.eos_id, self.skipped_ids = eos_id, {eos_id}

    def decode(self, rows):
        return ["".join(chr(96 + i) for i in row if i != self.eos_id) for row in rows]


def generate_all(model, n=1, stop=(), batch_tokens=4096, eos_id=EOS):
    config = GenerationConfig(max_new_tokens=15, batch_tokens=batch_tokens)
    options = {"max_len": 64, "n": n, "seed": 2, "stop": stop}
    texts, last = [""] * (n * len(PROMPTS)), []
    for delta in generate_texts(model, LetterTokenizer(eos_id), config, PROMPTS, **options):
        texts[delta.row] += delta.text
        last += [delta.row] * delta.is_last
    assert sorted(last) == list(range(n * len(PROMPTS)))
    return texts


def test_texts_do_not_depend_on_batch_tokens():
    model = make("llama")
    rows, _ = collect(model, PROMPTS, sampling=Sampling(), n=2, seed=2, max_new_tokens=15)
    for batch_tokens in (1, 40, 100, 4096):
        assert generate_all(model, n=2, batch_tokens=batch_tokens) == LetterTokenizer().decode(rows)
    full = generate_all(model, eos_id=NO_EOS)
    stop = full[0][3:5]
    texts = generate_all(model, stop=[stop], eos_id=NO_EOS)
    assert texts == [text.split(stop)[0] for text in full]
    assert texts[0] != full[0] and texts[1:] != [""] * 3
