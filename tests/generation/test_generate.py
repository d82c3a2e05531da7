import math

import pytest
import torch
from tests.generation.generate_helpers import DESIGNS, EOS, NO_EOS, PAD, PROMPTS, WARM, V, collect, make
from tests.generation.helpers import REFUSALS, decode_plain, is_last_flags, stop_rows

from polyhead.core.errors import UserError
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.request import pad_rows
from polyhead.generation.generate import generate


@pytest.fixture(scope="module", params=DESIGNS)
def model(request):
    return make(request.param)


@pytest.mark.parametrize("limit", [1, 20])
def test_greedy_equals_argmax_without_cache(model, limit):
    """Log-probabilities are those of the model, whatever the sampling."""
    rows, events = collect(model, PROMPTS, max_new_tokens=limit)
    assert rows == [decode_plain(model, prompt, limit) for prompt in PROMPTS]
    for row, tokens in enumerate(rows):
        assert is_last_flags(events, row) == [False] * (len(tokens) - 1) + [True]
    rows, events = collect(model, PROMPTS, sampling=WARM, seed=5)
    for row, (prompt, tokens) in enumerate(zip(PROMPTS, rows, strict=True)):
        with torch.no_grad():
            log_p = model(torch.tensor([[*prompt, *tokens]]))[0].log_softmax(-1)
        expected = [float(log_p[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens)]
        assert [event.log_prob for event in events if event.row == row] == pytest.approx(expected, abs=1e-4)


def test_samples_do_not_depend_on_other_rows(model):
    """n = 3 of four prompts is twelve sequences with the rows 0 to 11, however they are batched."""
    rows, _ = collect(model, PROMPTS, sampling=WARM, n=3, seed=8)
    assert len({tuple(tokens) for tokens in rows}) == 12
    for i, prompt in enumerate(PROMPTS):
        copies, _ = collect(model, [prompt] * 3, sampling=WARM, seed=8, row_offset=3 * i)
        assert copies == rows[3 * i : 3 * i + 3]
        single, events = collect(model, [prompt], sampling=WARM, seed=8, row_offset=3 * i + 1)
        assert single == [rows[3 * i + 1]] and {event.row for event in events} == {3 * i + 1}
    assert collect(model, PROMPTS, sampling=WARM, n=3, seed=9)[0] != rows
    options = {"sampling": WARM, "n": 2, "seed": 1, "max_new_tokens": 9, "eos_id": EOS}
    expected, _ = collect(model, PROMPTS, **options)
    rows = stop_rows(generate(model, PROMPTS, **options), len(expected))
    assert rows == [tokens[:2] if row % 3 == 0 else tokens for row, tokens in enumerate(expected)]


@pytest.mark.parametrize(("design", "prefix"), [("gpt-2", ()), ("lstm", (4, 4)), ("gpt-2", (5,))])
def test_texts_past_max_len_continue_from_second_half(design, prefix):
    """Those that begin with the prefix keep it."""
    model, prompts = make(design, max_len=8), [[5, 6, 7], [9], [4, 4, 8, 11, 3, 12, 20, 5]]
    ends = {"max_len": 8, "eos_id": NO_EOS}
    expected = [decode_plain(model, prompt, 18, prefix=prefix, **ends) for prompt in prompts]
    options = ends | {"max_new_tokens": 18, "prefix_ids": prefix}
    assert collect(model, prompts, **options)[0] == expected
    samples, _ = collect(model, prompts, sampling=WARM, n=2, **options)
    for row, prompt in enumerate(prompts):
        single, _ = collect(model, [prompt], sampling=WARM, row_offset=2 * row + 1, **options)
        assert single == [samples[2 * row + 1]]


@pytest.mark.parametrize(("prompts", "options", "message"), REFUSALS["prompts"])
def test_invalid_options_are_refused(prompts, options, message):
    model = make("llama")
    assert collect(model, [])[1] == []
    with torch.no_grad():
        model.head.weight[3, 0] = math.nan
    with pytest.raises(UserError, match=message):
        collect(model, prompts, **options)


def search(model, prompts, limit, **options):
    tokens, pos = pad_rows(prompts, PAD, torch.device("cpu"))
    return beam_search(model, tokens, pos, eos_id=EOS, max_new_tokens=[limit] * len(prompts), **options)


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 1.3, "top_k": 9}, {}, 1, 3])
def test_text_ends_where_every_token_would_repeat(model, how):
    """The end, which is in the prompt, comes where nothing else may; sampled, or with so many beams."""
    prompts = [[EOS, 5, 6], [9]]
    if isinstance(how, int):
        outputs = search(model, prompts, 40, beam_size=how, n_best=how, no_repeat_ngram_size=1)
        rows = [[*best.tokens, EOS] for best, *_ in outputs]
    else:
        sampling = Sampling(**how, no_repeat_ngram_size=1)
        rows, events = collect(model, prompts, sampling=sampling, max_new_tokens=40)
        assert [event.is_last for event in events].count(True) == 2
    assert sorted(rows[0]) == sorted(set(range(V)) - {5, 6})
    assert all(tokens[-1] == EOS and len(set(tokens)) == len(tokens) for tokens in rows)
