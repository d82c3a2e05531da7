import numpy as np
import pytest

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.generation.batch_decode import SamplingRequest, decode_sources, max_output_len, restore_order
from polyhead.generation.decoding.sampling import Sampling
from polyhead.tokenizers.seq2seq_template import Seq2SeqTemplate

EOS, BOS, PAD = 0, 4, 9
GIVEN = {"seq2seq_template": Seq2SeqTemplate((), (EOS,), BOS, (), False, EOS), "max_len": 12}
SOURCES = [[1, 2], [3], [], [2, 2, 1, 3], [1, 2], [], [3, 1, 2]]


def search_all(model, sources, config, progress=None, **options):
    return restore_order(decode_sources(model, sources, config, **GIVEN, **options), len(sources), progress)


@pytest.mark.acceptance("C1")
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("batch_tokens", [1, 20, 4096])
def test_lines_come_back_in_order_whatever_the_batches(table, plain, beam_size, batch_tokens):
    model = table(2, eos=0.3)
    config = GenerationConfig(
        beam_size=beam_size,
        n_best=beam_size,
        batch_tokens=batch_tokens,
        max_length_ratio=1.0,
        max_length_extra=3,
    )
    told = []
    found = search_all(model, SOURCES, config, progress=told.append)
    assert told == list(range(1, len(SOURCES) + 1))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        if not source:
            assert [(h.tokens, h.score) for h in hypotheses] == [([], 0.0)]
            continue
        wanted = plain(model, [*source, EOS], len(source) + 3, 1.0, beam_size, False)
        assert [tuple(h.tokens) for h in hypotheses] == [w.tokens for w in wanted]
        assert [h.score for h in hypotheses] == pytest.approx([w.score for w in wanted], abs=1e-5)


def test_the_stream_yields_every_line_once_longest_first_where_one_at_a_time_is_decoded(table):
    for batch_tokens in (1, 20, 4096):
        lines = [
            line
            for line, _ in decode_sources(
                table(2), SOURCES, GenerationConfig(batch_tokens=batch_tokens), **GIVEN
            )
        ]
        assert sorted(lines) == list(range(7))
        assert lines[5:] == [2, 5]  # without a word
        if batch_tokens == 1:
            assert lines == [3, 6, 0, 4, 1, 2, 5]


def drawn(model, source, begin, limit, temperature, stream):
    """One output, each token where the summed probabilities exceed the next number of the stream."""
    tokens, log_prob = list(begin), 0.0
    while len(tokens) < limit:
        logits = model.logits(source, tokens).astype(np.float64) / temperature
        sums = np.cumsum(np.exp(logits) / np.exp(logits).sum())
        token = int((sums <= stream.random()).sum())
        log_prob += model.log_probs(source, tokens)[token]
        if token == EOS:
            break
        tokens.append(token)
    return tokens, log_prob


@pytest.mark.parametrize("batch_tokens", [1, 20, 4096])
@pytest.mark.parametrize(("n", "first"), [(1, 0), (3, 2)])
@pytest.mark.parametrize("prefix", [None, [[1], [], [2], [3, 1], [], [], [2, 2]]])
def test_what_is_drawn_depends_on_seed_and_number_alone(table, batch_tokens, n, first, prefix):
    model = table(2, eos=0.3)
    config = GenerationConfig(batch_tokens=batch_tokens, max_length_ratio=1.0, max_length_extra=3)
    found = search_all(
        model,
        SOURCES,
        config,
        prefix=prefix,
        sampling_request=SamplingRequest(Sampling(temperature=1.7), n, 5, first),
    )
    for row, (source, hypotheses) in enumerate(zip(SOURCES, found, strict=True)):
        assert len(hypotheses) == n
        for i, hypothesis in enumerate(hypotheses):
            stream = np.random.Generator(np.random.PCG64([5, n * (first + row) + i]))
            begin = prefix[row] if prefix and source else []
            most = min(12, max(len(source) + 3, len(begin) + 1)) if source else 0
            tokens, log_prob = drawn(model, [*source, EOS], begin, most, 1.7, stream)
            assert hypothesis.tokens == tokens
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-5)


@pytest.mark.acceptance("C5")
@pytest.mark.parametrize("length", [10, 11, 12, 13])
def test_a_line_longer_than_the_model_is_named_or_cut_when_asked(table, plain, length):
    source = [1, 2, 3] * 5
    sources, config = [[1], source[:length]], GenerationConfig(beam_size=2)
    cut = search_all(table(2), sources, config, truncate=True)
    [wanted, _] = plain(table(2), [*source[: min(length, 11)], EOS], 12, 1.0, 2, False)
    assert (tuple(cut[1][0].tokens), cut[1][0].score) == (
        wanted.tokens,
        pytest.approx(wanted.score, abs=1e-5),
    )
    if length <= 11:
        assert search_all(table(2), sources, config) == cut
    else:
        with pytest.raises(UserError, match=rf"line 2 has {length} tokens.* maximum is 11 .*first 11 tokens"):
            search_all(table(2), sources, config)


@pytest.mark.acceptance("C5")
def test_outputs_stop_at_the_ratio_and_at_the_greatest_length_of_the_model(table):
    model = table(0, eos=-100.0)
    config = GenerationConfig(beam_size=2, max_length_ratio=1.5, max_length_extra=2)
    lengths = [len(h[0].tokens) for h in search_all(model, [[1], [1, 2, 3], [3] * 11], config)]
    assert lengths == [3, 6, 12]
    assert [max_output_len(n, config) for n in (0, 1, 2, 3)] == [2, 3, 5, 6]


def test_a_prefix_begins_the_output_of_its_line(table):
    prefix = [[3], [], [2], [1, 1, 1, 1, 1, 1], [2], [], [3, 3]]
    config = GenerationConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=0)
    found = search_all(table(2), SOURCES, config, prefix=prefix)
    for source, given, hypotheses in zip(SOURCES, prefix, found, strict=True):
        assert hypotheses[0].tokens[: len(given)] == given or not source
    with pytest.raises(UserError, match="7 lines, but 1 prefixes"):
        search_all(table(2), SOURCES, config, prefix=[[3]])
    with pytest.raises(UserError, match="prefix of line 1 has 12 tokens"):
        search_all(table(2), [[1]], config, prefix=[[3] * 12])
    with pytest.raises(UserError, match="prefix of line 2 contains the end-of-sentence token 0"):
        search_all(table(2), [[1], [1]], config, prefix=[[], [1, EOS]])
