"""What holds for every model, whatever it is made of."""

import copy
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_model, save_model

from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.data.batching.collate import PairBatch, make_dummy_pairs
from polyhead.models import build
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.train.loss_module import LossModule
from polyhead.train.tasks.seq2seq_common import seq2seq_loss

# those that lose nothing; test_caches.py holds the others to what they promise
CACHES = {name: Choice(name) for name in CACHE.names() if CACHE.get(name).lossless}
STATES = {"state"}  # caches of models that keep a state; the others are for keys and values


def close(a, b, atol=1e-5):
    """Equal within rounding, which grows with the numbers (a model without norms has large ones)."""
    torch.testing.assert_close(a, b, rtol=0, atol=atol * max(1.0, float(b.abs().max())))


@pytest.fixture(autouse=True)
def _values_alone():
    """Laws about gradients switch them on where they look."""
    with torch.no_grad():
        yield


def stepwise(model, pairs, choice, widths):
    """Logits (N, T, V) as decoding computes them: each row gets its next tokens, a chunk at a time."""
    memory = [kv.contiguous_for_decoding() for kv in model.encode(pairs.source, pairs.source_pos)]
    tokens, lengths = pairs.target, (pairs.target_pos >= 0).sum(1).tolist()
    cache = make_cache(choice, model.cache_shape, len(tokens), max(lengths))
    out = torch.zeros(*tokens.shape, model.config.vocab_size)
    done, step = [0] * len(tokens), 0
    while done != lengths:
        width = widths[step % len(widths)]
        takes = [
            min(length - at, max(1, width - row % 2))
            for row, (at, length) in enumerate(zip(done, lengths, strict=True))
        ]
        pos, fed = torch.full((len(tokens), max(takes)), -1), torch.full((len(tokens), max(takes)), 3)
        for row, (at, n) in enumerate(zip(done, takes, strict=True)):
            pos[row, :n], fed[row, :n] = torch.arange(at, at + n), tokens[row, at : at + n]
        cache.prepare_step(range(len(tokens)), pos)
        logits = model.decode(fed, pos, cache, memory)
        for row, (at, n) in enumerate(zip(done, takes, strict=True)):
            out[row, at : at + n] = logits[row, :n]
        done, step = [at + n for at, n in zip(done, takes, strict=True)], step + 1
    return out


@pytest.mark.acceptance("C6")
@pytest.mark.parametrize("widths", [[1], [4], [5, 1, 2]], ids=["one by one", "chunks", "prefill then few"])
@pytest.mark.parametrize("cache", CACHES)
def test_stepping_with_a_cache_equals_the_whole(model, pairs, cache, widths):
    if bool(model.cache_shape.kv_layers) == (cache in STATES):
        with pytest.raises(UserError, match=f"cache {cache!r} stores .*: use cache"):
            make_cache(CACHES[cache], model.cache_shape, 3, 9)
        return
    seen = pairs.target_pos >= 0
    full = model(pairs.source, pairs.target, pairs.source_pos, pairs.target_pos)
    steps = stepwise(model, pairs, CACHES[cache], widths)
    close(steps[seen], full[seen])


def test_beams_of_a_sentence_share_its_memory(model, pairs):
    """Rows 2i and 2i + 1 read sentence i, ragged as they are."""
    torch.manual_seed(4)
    target = torch.randint(5, model.config.vocab_size, (6, 9))
    pos = pairs.target_pos[[0, 1, 2, 0, 1, 2]]
    twice = [t.repeat_interleave(2, 0) for t in (pairs.source, pairs.source_pos)]
    full = model(twice[0], target, twice[1], pos)
    beams = pairs._replace(target=target, target_pos=pos)
    steps = stepwise(model, beams, None, [1, 2])
    close(steps[pos >= 0], full[pos >= 0], atol=2e-5)  # feature maps that square double relative errors


def test_teacher_forcing_equals_one_token_at_a_time_over_the_whole_prefix(model, pairs):
    full = model(pairs.source, pairs.target)
    memory = model.encode(pairs.source)
    for t in range(1, pairs.target.size(1) + 1):
        pos = torch.arange(t).expand(3, -1)
        last = model.decode(pairs.target[:, :t], pos, None, memory)[:, -1]
        close(last, full[:, t - 1])


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_padding_is_inert(model, pairs, training):
    """Other tokens where nothing is change the outputs by exactly 0."""
    model = copy.deepcopy(model).train(training)
    seen = pairs.target_pos >= 0
    outs = []
    for filler in (3, 11):
        torch.manual_seed(5)
        source = pairs.source.masked_fill(pairs.source_pos < 0, filler)
        target = pairs.target.masked_fill(~seen, filler)
        outs.append(model(source, target, pairs.source_pos, pairs.target_pos)[seen])
    assert torch.equal(*outs)
    assert outs[0].isfinite().all()


@pytest.mark.parametrize("where", ["right", "left", "between"])
def test_where_padding_stands_does_not_matter(model, pairs, where):
    """Positions are data: a row with holes equals the row without."""
    source, target = pairs.source, pairs.target
    full = model(source, target)
    padded = []
    for tokens in (source, target):
        length = tokens.size(1)
        kept = {"right": range(length), "left": range(3, length + 3), "between": [0, *range(4, length + 3)]}[
            where
        ]
        more, pos = torch.full((3, length + 3), 4), torch.full((3, length + 3), -1)
        more[:, list(kept)], pos[:, list(kept)] = tokens, torch.arange(length)
        padded.append((more, pos))
    (source, source_pos), (target, target_pos) = padded
    out = model(source, target, source_pos, target_pos)[target_pos >= 0].view_as(full)
    close(out, full)


def test_rows_do_not_interact(model, pairs):
    before = model(*pairs)
    other = pairs._replace(**{name: getattr(pairs, name).clone() for name in pairs._fields})
    other.source[1], other.source_pos[1] = 9, torch.arange(7)
    other.target[1], other.target_pos[1] = 8, torch.arange(9)
    after = model(*other)
    if model.config.feed_forward.name == "moe":  # rows share products, so that their shapes differ
        close(after[[0, 2]], before[[0, 2]])
    else:
        assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])
    alone = model(*(part[2:, : 6 if "target" in name else 1] for name, part in pairs._asdict().items()))
    close(alone[0], before[2, :6])


@pytest.mark.parametrize("given", [False, True], ids=["whole rows", "positions"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_the_future_is_invisible(model, pairs, training, given):
    """The gradient of output t to input s is exactly 0 for s > t, and the present and the past are seen."""
    if training and model.config.norm.name == "batchnorm":
        pytest.skip("statistics of the batch show every token to every other while training")
    decoder = copy.deepcopy(model.decoder).train(training)
    pos = torch.arange(6)[None] if given else None
    memory = model.encode(pairs.source[:1])
    with torch.enable_grad():
        x = torch.randn(1, 6, model.config.d_model, requires_grad=True)
        y = decoder(x, pos, None, memory)
        for t in range(6):
            (g,) = torch.autograd.grad((y[0, t] * torch.randn(16)).sum(), x, retain_graph=True)
            assert (g[0, t + 1 :] == 0).all()
            assert g[0, t].abs().sum() > 0
            assert t == 0 or g[0, t - 1].abs().sum() > 0


@pytest.mark.acceptance("A1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_row_of_padding_alone_does_not_touch_the_gradients(model, pairs, dtype):
    grads = []
    for rows in ([0, 1, 2], [0, 2]):
        batch = pairs._replace(source_pos=pairs.source_pos.clone(), target_pos=pairs.target_pos.clone())
        batch.source_pos[1], batch.target_pos[1] = -1, -1
        batch = [part[rows] for part in batch]
        trained = copy.deepcopy(model)
        with torch.enable_grad(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            out = trained(*batch)
            assert out.isfinite().all()
            out.float()[batch[3] >= 0].square().mean().backward()
        grads.append({n: p.grad for n, p in trained.named_parameters() if p.grad is not None})
    scale = max(g.abs().max() for g in grads[1].values())
    assert grads[0].keys() == grads[1].keys()
    for name, g in grads[0].items():
        assert g.isfinite().all(), name
        off = (g - grads[1][name]).abs().max() / scale
        assert off < (1e-5 if dtype == torch.float32 else 2e-2), name


@pytest.mark.acceptance("A1")
def test_a_dummy_batch_reaches_every_weight_with_a_gradient_of_zero(model, pairs):
    """A rank without rows has the gradients that the others have, and adds nothing to them."""
    labels = pairs.target.masked_fill(pairs.target_pos < 0, IGNORE_INDEX)
    real = PairBatch(pairs.source, pairs.source_pos, pairs.target, labels, int((labels >= 0).sum()))
    grads = []
    task = SimpleNamespace(loss=lambda model, batch: seq2seq_loss(model, batch, 0.1))
    module = LossModule(copy.deepcopy(model), task)
    with torch.enable_grad():
        for batch in (real, make_dummy_pairs()):
            loss = module.train(batch is not real)(batch)
            grads.append(torch.autograd.grad(loss.total, list(module.parameters()), allow_unused=True))
    assert loss.count == float(loss.total) == float(loss.nll) == 0
    for (name, _), learned, dummy in zip(module.named_parameters(), *grads, strict=True):
        assert (learned is None) == (dummy is None), name
        assert dummy is None or not dummy.count_nonzero(), name  # NaN is not zero


@pytest.mark.acceptance("A15")
def test_saving_and_loading_is_identity(model, config, pairs, tmp_path):
    save_model(model, str(tmp_path / "model.safetensors"))
    other = build(config, seed=9).eval()
    assert not torch.equal(other(*pairs), model(*pairs))
    load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(other(*pairs), model(*pairs))
    for tied in (other, copy.deepcopy(other)):
        source, target = (e.token.weight.data_ptr() for e in (tied.encoder_embedding, tied.decoder_embedding))
        assert (source == target) == (config.tie_embeddings in ("all", "inputs"))
        assert (target == tied.head.weight.data_ptr()) == (config.tie_embeddings in ("all", "target"))


def test_the_same_seed_builds_the_same_model(config):
    a, b, c = (build(config, seed=seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)
