import numpy as np
import pytest
from tests.generation.table_helpers import BOS, EOS, Table, plain_beam_search

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.generation.batch_decode import SamplingRequest, decode_sources, max_output_len, restore_order
from polyhead.generation.decoding.sampling import Sampling
from polyhead.tokenizers.special_tokens import Seq2SeqTemplate

OPTIONS = {"seq2seq_template": Seq2SeqTemplate((), (EOS,), BOS, (), False, EOS), "max_len": 12}
SOURCES = [[1, 2], [3], [], [2, 2, 1, 3], [1, 2], [], [3, 1, 2]]


def decode(model, sources, config, progress=None, **options):
    outputs = decode_sources(model, sources, config, **OPTIONS, **options)
    return restore_order(outputs, len(sources), progress)


@pytest.mark.acceptance("C1")
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("batch_tokens", [1, 20, 4096])
def test_lines_come_back_in_order_whatever_the_batches(beam_size, batch_tokens):
    model, progress_calls = Table(2, eos=0.3), []
    lengths = {"max_length_ratio": 1.0, "max_length_extra": 3}
    config = GenerationConfig(beam_size=beam_size, n_best=beam_size, batch_tokens=batch_tokens, **lengths)
    lines = [line for line, _ in decode_sources(model, SOURCES, config, **OPTIONS)]
    assert sorted(lines) == list(range(7)) and lines[5:] == [2, 5]  # the empty ones last
    if batch_tokens == 1:
        assert lines == [3, 6, 0, 4, 1, 2, 5], "the longest first"
    outputs = decode(model, SOURCES, config, progress=progress_calls.append)
    assert progress_calls == list(range(1, len(SOURCES) + 1))
    for source, hypotheses in zip(SOURCES, outputs, strict=True):
        if not source:
            assert [(h.tokens, h.score) for h in hypotheses] == [([], 0.0)]
            continue
        expected = plain_beam_search(model, [*source, EOS], len(source) + 3, 1.0, beam_size, False)
        assert [tuple(h.tokens) for h in hypotheses] == [w.tokens for w in expected]
        assert [h.score for h in hypotheses] == pytest.approx([w.score for w in expected], abs=1e-5)


def sample_plain(model, source, prefix, limit, temperature, rng):
    """One output, each token where the summed probabilities exceed the next number of the stream."""
    tokens, log_prob = list(prefix), 0.0
    while len(tokens) < limit:
        logits = model.logits(source, tokens).astype(np.float64) / temperature
        token = int((np.cumsum(np.exp(logits) / np.exp(logits).sum()) <= rng.random()).sum())
        log_prob += model.log_probs(source, tokens)[token]
        if token == EOS:
            break
        tokens.append(token)
    return tokens, log_prob


@pytest.mark.parametrize("batch_tokens", [1, 20, 4096])
@pytest.mark.parametrize(("n", "row_offset"), [(1, 0), (3, 2)])
@pytest.mark.parametrize("prefix", [None, [[1], [], [2], [3, 1], [], [], [2, 2]]])
def test_samples_depend_only_on_seed_and_line(batch_tokens, n, row_offset, prefix):
    model = Table(2, eos=0.3)
    config = GenerationConfig(batch_tokens=batch_tokens, max_length_ratio=1.0, max_length_extra=3)
    request = SamplingRequest(Sampling(temperature=1.7), n, 5, row_offset)
    outputs = decode(model, SOURCES, config, prefix=prefix, sampling_request=request)
    for row, (source, hypotheses) in enumerate(zip(SOURCES, outputs, strict=True)):
        assert len(hypotheses) == n
        for i, hypothesis in enumerate(hypotheses):
            rng = np.random.Generator(np.random.PCG64([5, n * (row_offset + row) + i]))
            ids = prefix[row] if prefix and source else []
            limit = min(12, max(len(source) + 3, len(ids) + 1)) if source else 0
            tokens, log_prob = sample_plain(model, [*source, EOS], ids, limit, 1.7, rng)
            assert hypothesis.tokens == tokens
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-5)


@pytest.mark.acceptance("C5")
@pytest.mark.parametrize("length", [10, 11, 12, 13])
def test_long_lines_are_refused_or_truncated(length):
    source, model, config = [1, 2, 3] * 5, Table(2), GenerationConfig(beam_size=2)
    sources = [[1], source[:length]]
    truncated_outputs = decode(model, sources, config, truncate=True)
    [expected, _] = plain_beam_search(model, [*source[: min(length, 11)], EOS], 12, 1.0, 2, False)
    best = truncated_outputs[1][0]
    assert (tuple(best.tokens), best.score) == (expected.tokens, pytest.approx(expected.score, abs=1e-5))
    if length <= 11:
        assert decode(model, sources, config) == truncated_outputs
    else:
        with pytest.raises(UserError, match=rf"line 2 has {length} tokens.* maximum is 11 .*first 11 tokens"):
            decode(model, sources, config)


@pytest.mark.acceptance("C5")
def test_prefixes_start_the_outputs_of_their_lines():
    prefix = [[3], [], [2], [1, 1, 1, 1, 1, 1], [2], [], [3, 3]]
    model, config = Table(2), GenerationConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=0)
    outputs = decode(model, SOURCES, config, prefix=prefix)
    for source, ids, hypotheses in zip(SOURCES, prefix, outputs, strict=True):
        assert hypotheses[0].tokens[: len(ids)] == ids or not source
    config = GenerationConfig(beam_size=2, max_length_ratio=1.5, max_length_extra=2)
    outputs = decode(Table(0, eos=-100.0), [[1], [1, 2, 3], [3] * 11], config)
    assert [len(h[0].tokens) for h in outputs] == [3, 6, 12]
    assert [max_output_len(n, config) for n in (0, 1, 2, 3)] == [2, 3, 5, 6]
    for sources, prefix, message in (
        (SOURCES, [[3]], "1 prefixes for 7 texts"),
        ([[1]], [[3] * 12], "prefix of line 1 has 12 tokens"),
        ([[1], [1]], [[], [1, EOS]], "prefix of line 2 contains the end-of-sentence token 0"),
    ):
        with pytest.raises(UserError, match=message):
            decode(model, sources, config, prefix=prefix)
