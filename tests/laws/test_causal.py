import functools

import pytest
import torch
from tests.laws import conftest as laws
from tests.laws.test_models import assert_close, decode_in_chunks

from polyhead import ModelConfig, build
from polyhead.cache.factory import make_cache
from polyhead.core.registry import ATTENTION, BLOCK, POSITION

POS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0, 1], [3, 4, 0, 1, -1, -1, 2, 0, 0], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
DOCUMENTS = {  # row -> slots of its documents
    0: [[0, 1, 2], [3, 4, 5, 6], [7, 8]],
    1: [[0, 1], [2, 3, 6], [7], [8]],
    2: [[*range(9)]],
}
LENGTHS = [9, 1, 6]


def make_designs():
    pairs = [(a, p) for a in laws.choices(ATTENTION) for p in laws.choices(POSITION) if len(a) + len(p) == 2]
    pairs += [(a, {"name": "rope"}) for a in laws.choices(ATTENTION) if len(a) > 1]
    pairs += [({"name": "softmax"}, p) for p in laws.choices(POSITION) if len(p) > 1]
    cases = [{"attention": a, "position": p} for a, p in pairs]
    blocks = [{"block": part, "position": {"name": "none"}} for part in laws.choices(BLOCK)]
    cases += [case | laws.required_options(case) for case in blocks] + [{"norm": {"name": "batchnorm"}}]
    cases.append({"norm_first": True, "sandwich_norm": True, "tie_embeddings": "none"})
    base = {"kind": "decoder", "n_kv_heads": 2}
    cases = [base | {"norm_first": i % 2 == 0} | case for i, case in enumerate(cases)]
    ids = ["-".join(map(laws.format_id, list(case.values())[3:])) for case in cases]
    return {id: case for id, case in zip(ids, cases, strict=True) if laws.is_valid(case)}


DESIGNS = make_designs()


@functools.cache
def build_decoder(design):
    model = build(ModelConfig(vocab_size=laws.VOCAB, **{**laws.SIZES, **DESIGNS[design]}), seed=1)
    laws.perturb(model, 0.1)
    laws.fit_running_statistics(model, torch.randint(5, laws.VOCAB, (16, 9)))
    return model.eval()


@pytest.fixture(params=DESIGNS)
def model(request):
    return build_decoder(request.param)


@pytest.fixture
def tokens():
    torch.manual_seed(3)
    return torch.randint(5, laws.VOCAB, (3, 9))


@pytest.mark.acceptance("C6")
@pytest.mark.parametrize("widths", [[1], [4], [5, 1, 2]], ids=["single tokens", "chunks", "prefill"])
@torch.no_grad()
def test_cached_decoding_equals_full_forward(model, tokens, widths):
    full = torch.cat([model(tokens[row : row + 1, :n])[0] for row, n in enumerate(LENGTHS)])
    cache = make_cache(None, model.cache_shape, 3, max(LENGTHS))
    steps = decode_in_chunks(model.decode, cache, tokens, LENGTHS, widths)
    assert_close(torch.cat([steps[row, :n] for row, n in enumerate(LENGTHS)]), full)


@torch.no_grad()
def test_packed_documents_are_independent(model, tokens):
    packed = model(tokens, POS)
    for row, documents in DOCUMENTS.items():
        for slots in documents:
            single = model(tokens[row : row + 1, slots], POS[row : row + 1, slots])
            assert_close(packed[row, slots], single[0])


def test_future_and_other_documents_have_no_gradient(model, tokens):
    """The gradient of output t to input s is 0 unless s is in the same document and not after t."""
    x = torch.randn(3, 9, model.config.d_model, requires_grad=True)
    y = model.stack(x, POS)
    for row, t in [(0, 0), (0, 5), (0, 8), (1, 6), (1, 8), (2, 4)]:
        (gradient,) = torch.autograd.grad((y[row, t] * torch.randn(16)).sum(), x, retain_graph=True)
        (document,) = (slots for slots in DOCUMENTS[row] if t in slots)
        assert gradient[row, t].abs().sum() > 0
        gradient[row, [s for s in document if s <= t]] = 0
        assert (gradient == 0).all()
