import pytest
import torch
from tests.generation.table_helpers import Tape

from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search

transformers = pytest.importorskip("transformers")

PAD, BOS, EOS, V = 1, 3, 2, 30
LENGTHS = (7, 4, 7, 2)
NETWORKS = [("marian", 2.0), ("marian", 3.0), ("bart", 2.0), ("bart", 3.0)]
OPTIONS = {"bos_id": BOS, "eos_id": EOS, "max_new_tokens": [12] * len(LENGTHS)}


def build_network(kind, eos_bias):
    sides = ("layers", 1), ("attention_heads", 2), ("ffn_dim", 16)
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sides}
    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
    config = {"vocab_size": V, "d_model": 16, "max_position_embeddings": 32, "forced_eos_token_id": None}
    if kind == "marian":
        model = transformers.MarianMTModel(transformers.MarianConfig(**config, **sizes, **ids))
    else:
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(**config, **sizes, **ids))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
        model.final_logits_bias.zero_()[0, EOS] = eos_bias
    return model.eval()


@pytest.fixture(scope="module", params=NETWORKS, ids=str)
def network(request):
    return build_network(*request.param)


class WrappedNetwork(Tape):
    """A network of transformers behind our protocol: the prefix is what the cache remembers."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def logits_of(self, sources, prefixes):
        longest = max(map(len, sources))
        ids = torch.tensor([[*s, *[PAD] * (longest - len(s))] for s in sources])
        mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sources])
        inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": torch.tensor(prefixes)}
        return self.network(**inputs, use_cache=False).logits[:, -1]


@pytest.fixture(scope="module")
def batch():
    torch.manual_seed(1)
    ids = torch.randint(4, V, (len(LENGTHS), max(LENGTHS)))
    pos = torch.arange(max(LENGTHS)).expand_as(ids)
    is_padding = pos >= torch.tensor(LENGTHS)[:, None]
    return ids.masked_fill(is_padding, PAD), pos.masked_fill(is_padding, -1)


def generate(network, batch, **options):
    outputs = {"output_scores": True, "return_dict_in_generate": True, "use_cache": False, "do_sample": False}
    mask = (batch[1] >= 0).long()
    return network.generate(batch[0], attention_mask=mask, max_new_tokens=12, **outputs, **options)


def words(sequence):
    """The tokens without begin, end and what follows the end."""
    tokens = sequence.tolist()[1:]
    return tokens[: tokens.index(EOS)] if EOS in tokens else tokens


@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize(("beam", "alpha"), [(4, 0.6), (4, 1.0), (5, 0.6), (5, 1.0), (3, 0.0), (3, 2.0)])
def test_beam_search_equals_generate(network, batch, beam, alpha, early):
    options = {"length_penalty": alpha, "early_stopping": early}
    expected = generate(network, batch, num_beams=beam, num_return_sequences=beam, **options)
    rows = beam_search(WrappedNetwork(network), *batch, beam_size=beam, n_best=beam, **OPTIONS, **options)
    flat = [h for row in rows for h in row]
    assert [h.tokens for h in flat] == [words(s) for s in expected.sequences]
    assert [h.score for h in flat] == pytest.approx(expected.sequences_scores.tolist(), abs=1e-5)


def test_one_beam_equals_greedy_generate(network, batch):
    expected, model = generate(network, batch, num_beams=1), WrappedNetwork(network)
    hypotheses = greedy_search(model, *batch, **OPTIONS)
    assert [h.tokens for h in hypotheses] == [words(s) for s in expected.sequences]
    assert [[h] for h in hypotheses] == beam_search(model, *batch, beam_size=1, **OPTIONS)
    for i, h in enumerate(hypotheses):
        sequence = expected.sequences[i].tolist()
        length = len(h.tokens) + (EOS in sequence)
        steps = zip(expected.scores[:length], sequence[1:], strict=False)
        log_prob = sum(float(scores.log_softmax(-1)[i, token]) for scores, token in steps)
        assert h.score == pytest.approx(log_prob / length, abs=1e-5)
