"""What holds for every decoder-only model, whatever it is made of."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from tests.laws.conftest import SIZES, VOCAB, choices, first, possible, say
from tests.laws.test_models import close

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.registry import ATTENTION, BLOCK, POSITION
from polyhead.models import CausalLM, build

POS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0, 1], [3, 4, 0, 1, -1, -1, 2, 0, 0], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
DOCUMENTS = [  # of the rows above
    (0, [0, 1, 2]), (0, [3, 4, 5, 6]), (0, [7, 8]), (1, [0, 1]), (1, [2, 3, 6]), (1, [7]), (1, [8]), (2,
        [*range(9)]),
]  # fmt: skip
LENGTHS = [9, 1, 6]


def designs() -> dict[str, dict[str, Any]]:
    """Every attention with every position, variants of each once, and every block."""
    plain = [(a, p) for a in choices(ATTENTION) for p in choices(POSITION) if len(a) + len(p) == 2]
    varied = [(a, {"name": "rope"}) for a in choices(ATTENTION) if len(a) > 1]
    varied += [({"name": "softmax"}, p) for p in choices(POSITION) if len(p) > 1]
    found: list[dict[str, Any]] = [{"attention": a, "position": p} for a, p in plain + varied]
    found += [{"block": b, "position": {"name": "none"}, **first({"block": b})} for b in choices(BLOCK)]
    found += [
        {"norm": {"name": "batchnorm"}},
        {"norm_first": True, "sandwich_norm": True, "tie_embeddings": "none"},
    ]
    found = [
        {"kind": "decoder", "n_kv_heads": 2, "norm_first": i % 2 == 0} | case for i, case in enumerate(found)
    ]
    return {"-".join(map(say, list(case.values())[3:])): case for case in found if possible(case)}


DESIGNS = designs()


@functools.cache
def made(design: str) -> CausalLM:
    model = build(ModelConfig(vocab_size=VOCAB, **{**SIZES, **DESIGNS[design]}), seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        for _ in range(30):  # running statistics that fit
            model.train()(torch.randint(5, VOCAB, (4, 9)))
    return model.eval()


@pytest.fixture(params=DESIGNS)
def model(request: pytest.FixtureRequest) -> CausalLM:
    return made(request.param)


@pytest.fixture
def tokens() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randint(5, VOCAB, (3, 9))


def test_every_attention_position_and_block_is_there():
    said = " ".join(DESIGNS)
    for registry in (ATTENTION, POSITION, BLOCK):
        assert all(name in said for name in registry.names() if name != "transformer")


@pytest.mark.acceptance("C6")
@pytest.mark.parametrize("widths", [[1], [4], [5, 1, 2]], ids=["one by one", "chunks", "prefill then few"])
@torch.no_grad()
def test_stepping_with_a_cache_equals_the_whole(model, tokens, widths):
    """Ragged rows, each fed its next tokens, a chunk at a time."""
    full = torch.cat([model(tokens[row : row + 1, :n])[0] for row, n in enumerate(LENGTHS)])
    steps = torch.zeros(3, 9, VOCAB)
    cache = make_cache(None, model.cache_shape, 3, max(LENGTHS))
    done, step = [0, 0, 0], 0
    while done != LENGTHS:
        width = widths[step % len(widths)]
        takes = [
            min(n - at, max(1, width - row % 2))
            for row, (at, n) in enumerate(zip(done, LENGTHS, strict=True))
        ]
        pos, fed = torch.full((3, max(takes)), -1), torch.full((3, max(takes)), 3)
        for row, (at, n) in enumerate(zip(done, takes, strict=True)):
            pos[row, :n], fed[row, :n] = torch.arange(at, at + n), tokens[row, at : at + n]
        cache.prepare_step(range(3), pos)
        logits = model.decode(fed, pos, cache)
        for row, (at, n) in enumerate(zip(done, takes, strict=True)):
            steps[row, at : at + n] = logits[row, :n]
        done, step = [at + n for at, n in zip(done, takes, strict=True)], step + 1
    close(torch.cat([steps[row, :n] for row, n in enumerate(LENGTHS)]), full)


@torch.no_grad()
def test_a_packed_row_equals_its_documents_alone(model, tokens):
    packed = model(tokens, POS)
    for row, slots in DOCUMENTS:
        alone = model(tokens[row : row + 1, slots], POS[row : row + 1, slots])
        close(packed[row, slots], alone[0])


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@torch.no_grad()
def test_padding_is_inert(model, tokens, training):
    """Other tokens where nothing is change the outputs by exactly 0, in packed rows too."""
    model = copy.deepcopy(model).train(training)
    at = torch.arange(9).expand(3, -1)
    for pos in (POS, at.masked_fill(at >= torch.tensor(LENGTHS)[:, None], -1)):
        outs = []
        for filler in (3, 11):
            torch.manual_seed(5)
            outs.append(model(tokens.masked_fill(pos < 0, filler), pos)[pos >= 0])
        assert torch.equal(*outs)
        assert outs[0].isfinite().all()


@pytest.mark.parametrize("where", ["left", "between"])
@torch.no_grad()
def test_where_padding_stands_does_not_matter(model, tokens, where):
    kept = {"left": [*range(3, 12)], "between": [0, *range(4, 12)]}[where]
    more, pos = torch.full((3, 12), 4), torch.full((3, 12), -1)
    more[:, kept], pos[:, kept] = tokens, torch.arange(9)
    close(model(more, pos)[:, kept], model(tokens))


def test_the_future_and_other_documents_are_invisible(model, tokens):
    """The gradient of output t to input s is 0 unless s is of the same document and not after t."""
    x = torch.randn(3, 9, model.config.d_model, requires_grad=True)
    y = model.stack(x, POS)
    documents = {(row, slot): slots for row, slots in DOCUMENTS for slot in slots}
    for row, t in [(0, 0), (0, 5), (0, 8), (1, 6), (1, 8), (2, 4)]:
        (g,) = torch.autograd.grad((y[row, t] * torch.randn(16)).sum(), x, retain_graph=True)
        seen = [s for s in documents[row, t] if s <= t]
        assert g[row, t].abs().sum() > 0
        g[row, seen] = 0
        assert (g == 0).all()
