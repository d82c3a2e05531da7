"""Beam search against Hugging Face generate, on tiny models with random weights."""

import pytest
import torch

from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search

transformers = pytest.importorskip("transformers")

PAD, BOS, EOS, V = 1, 3, 2, 30
LENGTHS = (7, 4, 7, 2)


def network(kind, eos):
    sizes = {"vocab_size": V, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
             "max_position_embeddings": 32,
             "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS,
             "forced_eos_token_id": None}  # fmt: skip
    if kind == "marian":
        model = transformers.MarianMTModel(transformers.MarianConfig(**sizes))
    else:
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
        model.final_logits_bias.zero_()[0, EOS] = eos
    return model.eval()


@pytest.fixture(
    scope="module", params=[("marian", 2.0), ("marian", 3.0), ("bart", 2.0), ("bart", 3.0)], ids=str
)
def theirs(request):
    return network(*request.param)


@pytest.fixture
def ours(theirs, tape):
    class Wrapped(tape):
        """Their network behind our protocol: the prefix is what the cache remembers."""

        def encode(self, source, source_pos=None):
            self.attention_mask = (source_pos >= 0).long()
            return super().encode(source, source_pos)

        def say(self, sources, prefixes):
            longest = max(map(len, sources))
            ids = torch.tensor([[*s, *[PAD] * (longest - len(s))] for s in sources])
            seen = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sources])
            return theirs(
                input_ids=ids, attention_mask=seen, decoder_input_ids=torch.tensor(prefixes), use_cache=False
            ).logits[:, -1]

    return Wrapped()


@pytest.fixture(scope="module")
def batch():
    torch.manual_seed(1)
    ids = torch.randint(4, V, (len(LENGTHS), max(LENGTHS)))
    pos = torch.arange(max(LENGTHS)).expand_as(ids)
    padded = pos >= torch.tensor(LENGTHS)[:, None]
    return ids.masked_fill(padded, PAD), pos.masked_fill(padded, -1)


def reference(theirs, batch, **options):
    return theirs.generate(
        batch[0], attention_mask=(batch[1] >= 0).long(), max_new_tokens=12, do_sample=False, use_cache=False,
        output_scores=True, return_dict_in_generate=True, **options,
    )  # fmt: skip


def words(sequence):
    """Their tokens without begin, end and what follows the end."""
    tokens = sequence.tolist()[1:]
    return tokens[: tokens.index(EOS)] if EOS in tokens else tokens


@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize(("beam", "alpha"), [(4, 0.6), (4, 1.0), (5, 0.6), (5, 1.0), (3, 0.0), (3, 2.0)])
def test_beam_search_equals_generate(theirs, ours, batch, beam, alpha, early):
    wanted = reference(
        theirs, batch, num_beams=beam, num_return_sequences=beam, length_penalty=alpha, early_stopping=early
    )
    found = beam_search(
        ours, *batch, bos_id=BOS, eos_id=EOS, beam_size=beam, n_best=beam, length_penalty=alpha,
        early_stopping=early,
        max_new_tokens=[12] * len(LENGTHS),
    )  # fmt: skip
    flat = [h for hypotheses in found for h in hypotheses]
    assert [h.tokens for h in flat] == [words(s) for s in wanted.sequences]
    assert [h.score for h in flat] == pytest.approx(wanted.sequences_scores.tolist(), abs=1e-5)


def test_the_outputs_compared_are_of_many_lengths(batch):
    compared = (network("marian", 2.0), network("marian", 3.0), network("bart", 2.0), network("bart", 3.0))
    found = [reference(theirs, batch, num_beams=4, num_return_sequences=4) for theirs in compared]
    assert len({len(words(sequence)) for wanted in found for sequence in wanted.sequences}) > 6


def test_one_beam_equals_greedy_generate(theirs, ours, batch):
    wanted = reference(theirs, batch, num_beams=1)
    given = {"bos_id": BOS, "eos_id": EOS, "max_new_tokens": [12] * len(LENGTHS)}
    found = greedy_search(ours, *batch, **given)
    assert [h.tokens for h in found] == [words(s) for s in wanted.sequences]
    assert [[h] for h in found] == beam_search(ours, *batch, beam_size=1, **given)
    for i, h in enumerate(found):
        length = len(words(wanted.sequences[i])) + (EOS in wanted.sequences[i].tolist())
        log_prob = sum(
            float(wanted.scores[t].log_softmax(-1)[i, wanted.sequences[i, t + 1]]) for t in range(length)
        )
        assert h.score == pytest.approx(log_prob / length, abs=1e-5)
