import copy
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_model, save_model

from polyhead import Choice, build
from polyhead.cache.factory import make_cache
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.data.batching.collate import PairBatch, make_dummy_pairs
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.train.loss_module import LossModule
from polyhead.train.tasks.common import seq2seq_loss

# lossless caches; test_caches.py tests the others
CACHES = {name: Choice(name) for name in CACHE.names() if CACHE.get(name).lossless}


def assert_close(actual, expected, atol=1e-5):
    """Equal within rounding, which grows with the numbers (a model without norms has large ones)."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol * max(1.0, float(expected.abs().max())))


@pytest.fixture(autouse=True)
def _no_grad():
    """Tests of gradients enable them themselves."""
    with torch.no_grad():
        yield


def decode_in_chunks(decode, cache, tokens, lengths, widths):
    cached_lens, step, chunks = [0] * len(tokens), 0, []
    while cached_lens != lengths:
        width = widths[step % len(widths)]
        counts = [
            min(length - start, max(1, width - row % 2))
            for row, (start, length) in enumerate(zip(cached_lens, lengths, strict=True))
        ]
        shape = len(tokens), max(counts)
        pos, inputs = torch.full(shape, -1), torch.full(shape, 3)
        for row, (start, n) in enumerate(zip(cached_lens, counts, strict=True)):
            pos[row, :n], inputs[row, :n] = torch.arange(start, start + n), tokens[row, start : start + n]
        cache.prepare_step(range(len(tokens)), pos)
        chunks.append((pos, decode(inputs, pos, cache)))
        cached_lens, step = [start + n for start, n in zip(cached_lens, counts, strict=True)], step + 1
    output = torch.zeros(*tokens.shape, chunks[0][1].size(-1))
    for pos, logits in chunks:
        rows, columns = (pos >= 0).nonzero(as_tuple=True)
        output[rows, pos[rows, columns]] = logits[rows, columns]
    return output


def decode_pairs(model, pairs, choice, widths):
    memory = [kv.contiguous_for_decoding() for kv in model.encode(pairs.source, pairs.source_pos)]
    lengths = (pairs.target_pos >= 0).sum(1).tolist()
    cache = make_cache(choice, model.cache_shape, len(lengths), max(lengths))
    return decode_in_chunks(
        lambda *inputs: model.decode(*inputs, memory), cache, pairs.target, lengths, widths
    )


@pytest.mark.acceptance("C6")
@pytest.mark.parametrize("widths", [[1], [4], [5, 1, 2]], ids=["single tokens", "chunks", "prefill"])
def test_cached_decoding_equals_full_forward(model, pairs, widths):
    is_token = pairs.target_pos >= 0
    full = model(pairs.source, pairs.target, pairs.source_pos, pairs.target_pos)
    for name, choice in CACHES.items():
        if bool(model.cache_shape.kv_layers) == (name == "state"):
            with pytest.raises(UserError, match=f"cache {name!r} stores .*: use cache"):
                make_cache(choice, model.cache_shape, 3, 9)
        else:
            assert_close(decode_pairs(model, pairs, choice, widths)[is_token], full[is_token])


def test_beams_share_the_memory_of_their_source(model, pairs):
    torch.manual_seed(4)
    target = torch.randint(5, model.config.vocab_size, (6, 9))
    pos = pairs.target_pos[[0, 1, 2, 0, 1, 2]]
    source, source_pos = (x.repeat_interleave(2, 0) for x in (pairs.source, pairs.source_pos))
    full = model(source, target, source_pos, pos)
    steps = decode_pairs(model, pairs._replace(target=target, target_pos=pos), None, [1, 2])
    assert_close(steps[pos >= 0], full[pos >= 0], atol=2e-5)  # square feature maps double relative errors


def test_teacher_forcing_equals_decoding_each_prefix(model, pairs):
    full = model(pairs.source, pairs.target)
    memory = model.encode(pairs.source)
    for t in range(1, pairs.target.size(1) + 1):
        last = model.decode(pairs.target[:, :t], torch.arange(t).expand(3, -1), None, memory)[:, -1]
        assert_close(last, full[:, t - 1])


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_padding_tokens_have_no_effect(model, pairs, training):
    model = copy.deepcopy(model).train(training)
    is_token = pairs.target_pos >= 0
    outputs = []
    for filler in (3, 11):
        torch.manual_seed(5)
        source = pairs.source.masked_fill(pairs.source_pos < 0, filler)
        target = pairs.target.masked_fill(~is_token, filler)
        outputs.append(model(source, target, pairs.source_pos, pairs.target_pos)[is_token])
    assert torch.equal(*outputs) and outputs[0].isfinite().all()


def insert_padding(tokens, side):
    n = tokens.size(1)
    slots = {"right": range(n), "left": range(3, n + 3), "between": [0, *range(4, n + 3)]}[side]
    padded, pos = torch.full((3, n + 3), 4), torch.full((3, n + 3), -1)
    padded[:, list(slots)], pos[:, list(slots)] = tokens, torch.arange(n)
    return padded, pos


@pytest.mark.parametrize("side", ["right", "left", "between"])
def test_output_does_not_depend_on_padding_side(model, pairs, side):
    full = model(pairs.source, pairs.target)
    (source, source_pos), (target, pos) = (insert_padding(x, side) for x in (pairs.source, pairs.target))
    assert_close(model(source, target, source_pos, pos)[pos >= 0].view_as(full), full)


def test_rows_do_not_interact(model, pairs):
    expected = model(*pairs)
    changed_pairs = type(pairs)(*(part.clone() for part in pairs))
    changed_pairs.source[1], changed_pairs.source_pos[1] = 9, torch.arange(7)
    changed_pairs.target[1], changed_pairs.target_pos[1] = 8, torch.arange(9)
    output = model(*changed_pairs)
    if model.config.feed_forward.name == "moe":  # rows share products, so that their shapes differ
        assert_close(output[[0, 2]], expected[[0, 2]])
    else:
        assert torch.equal(expected[[0, 2]], output[[0, 2]])
    assert not torch.equal(expected[1], output[1])
    single = model(*(part[2:, : 6 if "target" in name else 1] for name, part in pairs._asdict().items()))
    assert_close(single[0], expected[2, :6])


@pytest.mark.parametrize("has_positions", [False, True], ids=["full rows", "positions"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_decoder_is_causal(model, pairs, training, has_positions):
    """The gradient of output t to input s is exactly 0 for s > t, and not 0 for the present and the past."""
    # while training, the statistics of a batch depend on every token
    decoder = copy.deepcopy(model.decoder).train(training and model.config.norm.name != "batchnorm")
    pos = torch.arange(6)[None] if has_positions else None
    memory = model.encode(pairs.source[:1])
    with torch.enable_grad():
        x = torch.randn(1, 6, model.config.d_model, requires_grad=True)
        y = decoder(x, pos, None, memory)
        for t in range(6):
            (gradient,) = torch.autograd.grad((y[0, t] * torch.randn(16)).sum(), x, retain_graph=True)
            assert (gradient[0, t + 1 :] == 0).all()
            assert (gradient[0, max(0, t - 1) : t + 1].abs().sum(-1) > 0).all()


@pytest.mark.acceptance("A1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_row_of_padding_does_not_change_gradients(model, pairs, dtype):
    gradients = []
    for rows in ([0, 1, 2], [0, 2]):
        batch = pairs._replace(source_pos=pairs.source_pos.clone(), target_pos=pairs.target_pos.clone())
        batch.source_pos[1], batch.target_pos[1] = -1, -1
        batch = [part[rows] for part in batch]
        model_copy = copy.deepcopy(model)
        with torch.enable_grad(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            output = model_copy(*batch)
            assert output.isfinite().all()
            output.float()[batch[3] >= 0].square().mean().backward()
        gradients.append({n: p.grad for n, p in model_copy.named_parameters() if p.grad is not None})
    actual, expected = gradients
    scale = max(g.abs().max() for g in expected.values())
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        assert gradient.isfinite().all(), name
        error = (gradient - expected[name]).abs().max() / scale
        assert error < (1e-5 if dtype == torch.float32 else 2e-2), name


@pytest.mark.acceptance("A1")
def test_dummy_batch_has_zero_gradients_of_every_weight(model, pairs):
    """A rank without rows has the gradients that the others have, and adds nothing to them."""
    labels = pairs.target.masked_fill(pairs.target_pos < 0, IGNORE_INDEX)
    real = PairBatch(pairs.source, pairs.source_pos, pairs.target, labels, int((labels >= 0).sum()))
    task = SimpleNamespace(loss=lambda model, batch: seq2seq_loss(model, batch, 0.1))
    module, gradients = LossModule(copy.deepcopy(model), task), []
    with torch.enable_grad():
        for batch in (real, make_dummy_pairs()):
            loss = module.train(batch is not real)(batch)
            gradients.append(torch.autograd.grad(loss.total, list(module.parameters()), allow_unused=True))
    assert loss.count == float(loss.total) == float(loss.nll) == 0
    for (name, _), real_gradient, dummy in zip(module.named_parameters(), *gradients, strict=True):
        assert (real_gradient is None) == (dummy is None), name
        assert dummy is None or not dummy.count_nonzero(), name  # NaN is not zero


@pytest.mark.acceptance("A15")
def test_saved_weights_or_seeds_determine_a_model(model, config, pairs, tmp_path):
    save_model(model, str(tmp_path / "model.safetensors"))
    loaded_model = build(config, seed=9).eval()
    assert not torch.equal(loaded_model(*pairs), model(*pairs))
    load_model(loaded_model, tmp_path / "model.safetensors")
    assert torch.equal(loaded_model(*pairs), model(*pairs))
    for tied in (loaded_model, copy.deepcopy(loaded_model)):
        source, target = (e.token.weight.data_ptr() for e in (tied.encoder_embedding, tied.decoder_embedding))
        assert (source == target) == (config.tie_embeddings in ("all", "inputs"))
        assert (target == tied.head.weight.data_ptr()) == (config.tie_embeddings in ("all", "target"))
    a, b, c = (build(config, seed=seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)
