"""Laws of every cache of keys and values, with every decoder, head count and position.

Lossless caches, and lossy ones with room for all tokens, give what the model gives without a cache. What a
cache keeps of a row does not depend on the other rows, however rows are copied, moved and dropped.
"""

import copy
import functools
import itertools

import pytest
import torch
from tests.laws.conftest import HEADS, HYBRIDS, VOCAB, choices, format_id, perturb
from tests.laws.test_models import assert_close

from polyhead import Choice, ModelConfig, build
from polyhead.cache.factory import make_cache
from polyhead.cache.low_rank import fit_low_rank
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE, POSITION
from polyhead.generation.decoding.beam_search import beam_search, greedy_search
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead.generation.generate import generate

ROOM = {
    "static": {"chunk": 3},
    "window": {"window": 40, "sink": 1},
    "quantized": {"bits": 8, "group": 4},
    "h2o": {"budget": 40, "recent": 3, "sink": 1},
    "subgen": {"budget": 40, "recent": 3},
    "low_rank": {"rank": 16},
}
"""Options with room for all tokens of a test."""

TIGHT = {
    "window": {"window": 4, "sink": 1},
    "quantized": {"bits": 4, "group": 2},
    "h2o": {"budget": 5, "recent": 2, "sink": 1},
    "subgen": {"budget": 5, "recent": 2},
    "low_rank": {"rank": 2},
}
"""Options with less room, of the lossy caches."""

CACHES = [name for name in CACHE.names() if name != "state"]
ROOMY_CHOICES = {name: Choice(name, **ROOM.get(name, {})) for name in CACHES}
TIGHT_CHOICES = [Choice(name, **TIGHT.get(name, ROOM.get(name, {}))) for name in CACHES]
TIGHT_CHOICES.append(Choice("subgen", **TIGHT["subgen"], values="sampled"))
ROUNDING = {"quantized": 0.05}
"""Largest error of the logits, of caches that round even where there is room."""

SIZES = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 20, "max_len": 32, "dropout": 0.0}
DESIGNS = {
    f"{format_id(p)}-{heads}-{kind}": {"position": p, "n_kv_heads": HEADS[heads], "kind": kind}
    for i, (p, heads) in enumerate(itertools.product([p for p in choices(POSITION) if len(p) == 1], HEADS))
    for kind in [("decoder", "encoder-decoder")[i % 2]]
}
MIXED_SIZES = {"position": {"name": "rope"}, "n_kv_heads": 2, "n_layers": 4}
MIXED_DESIGNS = {
    f"{format_id(pattern)}-{kind}": {**MIXED_SIZES, "kind": kind, "layer_pattern": pattern}
    for pattern, kind in itertools.product(HYBRIDS, ("decoder", "encoder-decoder"))
}
DESIGNS |= MIXED_DESIGNS
PLAIN = next(design for design in DESIGNS if design.startswith("none"))
ROPE_DECODER = next(d for d in DESIGNS if d.startswith("rope") and not d.endswith("encoder-decoder"))
PROMPTS = [[3, 4, 5, 6, 7, 8, 9], [10], [11, 12, 3]]


@functools.cache
def build_design(design, attention=()):
    options = {**SIZES, **DESIGNS[design], "attention": {"name": "softmax", **dict(attention)}}
    model = build(ModelConfig(vocab_size=VOCAB, **options), seed=1)
    perturb(model, 0.2)
    return model.eval()


def is_supported(cache, design):
    config = DESIGNS[design]
    windows = any("window" in layer.get("attention", ()) for layer in config.get("layer_pattern", ()))
    biases = config["position"]["name"] in ("alibi", "t5", "shaw", "disentangled")
    return cache != "subgen" or not (windows or biases)


CACHES_AND_DESIGNS = [x for x in itertools.product(CACHES, DESIGNS) if is_supported(*x)]


def pad_rows(rows, starts):
    width = max([1, *map(len, rows)])
    tokens, pos = torch.full((len(rows), width), 1), torch.full((len(rows), width), -1)
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        tokens[i, : len(row)] = torch.tensor(row)
        pos[i, : len(row)] = torch.arange(start, start + len(row))
    return tokens, pos


class Sequence:
    def __init__(self, source):
        self.source, self.steps = source, list[list[int]]()
        self.single = None

    @property
    def length(self):
        return sum(map(len, self.steps))

    def single_row(self, model, choice):
        """A cache of this row only, which reads the same steps and is copied with the row."""
        if self.single is None or self.length == len(self.steps[-1]):
            self.single = CachedModel(model, choice, [self.source])
        return self.single


class CachedModel:
    def __deepcopy__(self, memo):
        other = copy.copy(self)
        other.cache, other.rows = copy.deepcopy(self.cache, memo), copy.deepcopy(self.rows, memo)
        return other

    def __init__(self, model, choice, sources):
        self.model, self.rows = model, [Sequence(source) for source in sources]
        self.cache = make_cache(choice, model.cache_shape, len(sources), 32)

    def step(self, indices, tokens):
        inputs, pos = pad_rows(tokens, [self.rows[i].length for i in indices])
        self.cache.prepare_step(indices, pos)
        memory = None
        if self.model.encode:
            sources = [self.rows[i].source for i in indices]
            memory = self.model.encode(*pad_rows(sources, [0] * len(indices)))
        logits = self.model.decode(inputs, pos, self.cache, memory)
        for i, new in zip(indices, tokens, strict=True):
            self.rows[i].steps += [new] if new else []
        return [x[: len(new)] for x, new in zip(logits, tokens, strict=True)]

    def read(self, rows, widths):
        """Read whole rows in steps of these widths (row i in shorter ones); the logits of each."""
        outputs = [[] for _ in rows]
        for width in itertools.cycle(widths):
            indices = [i for i, row in enumerate(rows) if self.rows[i].length < len(row)]
            if not indices:
                return [torch.cat(logits) for logits in outputs]
            new = [rows[i][self.rows[i].length :][: max(1, width - i)] for i in indices]
            for i, logits in zip(indices, self.step(indices, new), strict=True):
                outputs[i].append(logits)
        raise AssertionError

    def select(self, indices):
        self.cache.select(indices)
        self.rows = [copy.deepcopy(self.rows[i]) for i in indices]

    def fork(self, src, dst):
        self.cache.fork(src, dst)
        self.rows[dst] = copy.deepcopy(self.rows[src])

    def release(self, row):
        self.cache.release(row)
        self.rows[row].steps = []


def run_uncached(model, row, source):
    tokens = torch.tensor([row])
    output = model(torch.tensor([source]), tokens) if model.encode else model(tokens)
    return output[0]


def draw_rows(*lengths, seed):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB, (n,), generator=rng).tolist() for n in lengths]


def decode(model, decoder, cache):
    source, pos = pad_rows(PROMPTS, [0] * 3)
    bos, prefix = (3, [[4, 5], [], [6]]) if model.encode else (None, [[], [7, 8], [9]])
    options = {"bos_id": bos, "eos_id": 0, "max_new_tokens": [9, 12, 10], "cache": cache}
    if decoder == "sampling":
        options = {"eos_id": 0, "max_new_tokens": 9, "n": 2, "cache": cache}
        outputs = list(generate(model, PROMPTS, sampling=Sampling(1.0), **options))
        return [(t.row, t.id) for t in outputs], [t.log_prob for t in outputs]
    if decoder == "greedy":
        hypotheses = greedy_search(model, source, pos, prefix=prefix, **options)
    else:
        best = beam_search(model, source, pos, beam_size=3, n_best=3, **options)
        hypotheses = [hypothesis for beams in best for hypothesis in beams]
    return [h.tokens for h in hypotheses], [h.score for h in hypotheses]


@functools.cache
def decode_with_static_cache(design, decoder):
    return decode(build_design(design), decoder, Choice("static"))


@pytest.mark.parametrize("decoder", ["greedy", "beams", "sampling"])
@pytest.mark.parametrize(("cache", "design"), [x for x in CACHES_AND_DESIGNS if x[0] not in ROUNDING])
def test_decoders_agree_with_the_static_cache(cache, design, decoder):
    if decoder == "sampling" and "encoder" in design:
        decoder = "beams"
    tokens, scores = decode(build_design(design), decoder, ROOMY_CHOICES[cache])
    expected_tokens, expected_scores = decode_with_static_cache(design, decoder)
    assert tokens == expected_tokens and scores == pytest.approx(expected_scores, abs=1e-4)


@pytest.mark.parametrize(("cache", "design"), CACHES_AND_DESIGNS)
@torch.no_grad()
def test_ragged_steps_equal_uncached_logits(cache, design):
    model, rows = build_design(design), draw_rows(13, 4, 9, seed=4)
    cached_model = CachedModel(model, ROOMY_CHOICES[cache], [[5, 6], [7], [8, 9, 10]])
    for i, logits in enumerate(cached_model.read(rows, [3, 1, 2, 1, 1, 4, 1])):
        expected = run_uncached(model, rows[i], cached_model.rows[i].source)
        if cache in ROUNDING:
            assert (logits - expected).abs().max() < ROUNDING[cache]
            assert i == 1 or not torch.equal(logits, expected)
        else:
            assert_close(logits, expected)


def run_history(cached_model, check):
    rng = torch.Generator().manual_seed(6)

    def step(indices, lengths):
        new = [torch.randint(3, VOCAB, (n,), generator=rng).tolist() for n in lengths]
        for i, logits in zip(indices, cached_model.step(indices, new), strict=True):
            check(cached_model.rows[i], logits)

    step([0, 1, 2], [6, 1, 3])
    step([0, 1, 2], [1, 1, 1])
    cached_model.fork(0, 2)
    step([2, 0], [2, 1])
    cached_model.select([1, 2, 2, 0])
    step([0, 1, 2, 3], [1, 1, 1, 1])
    step([1], [5])
    cached_model.release(2)
    step([0, 1, 2, 3], [1, 0, 2, 1])
    step([3, 2], [1, 1])
    cached_model.select([3, 1])
    for _ in range(4):
        step([0, 1], [1, 1])
    cached_model.select([1])
    step([0], [3])


TIGHT_CASES = [
    (cache, design)
    for cache, design in CACHES_AND_DESIGNS
    if design in MIXED_DESIGNS or design.split("-")[0] in ("rope", "shaw", "sinusoidal")
]


@pytest.mark.parametrize(("cache", "design"), TIGHT_CASES)
@torch.no_grad()
def test_rows_are_independent_of_other_rows(cache, design, tmp_path):
    model, options = build_design(design), dict(TIGHT.get(cache, ROOM.get(cache, {})))
    if cache == "low_rank":
        options["projection"] = str(tmp_path / "bases.safetensors")
        text = torch.randint(3, VOCAB, (4, 20), generator=torch.Generator().manual_seed(1))
        source = (text[:, :5], None) if model.encode else None
        fit_low_rank(model, text, 3, options["projection"], source=source)

    def check_single(row, logits):
        if len(logits):
            single = row.single_row(model, Choice(cache, **options))
            assert_close(logits, single.step([0], row.steps[-1:])[0])

    run_history(CachedModel(model, Choice(cache, **options), [[5, 6], [7], [8, 9, 10]]), check_single)


def continue_by_engine(model, choice, prompt, chunk, n):
    engine = Engine(model, max_len=60, cache=choice, prefill_chunk=chunk)
    state = SampledSequences(SamplingStrategy(Sampling(temperature=0.0), -1), prompt, n)
    return list(engine.submit(prompt, state))


@pytest.mark.parametrize("chunk", [1000, 7, 4])
@pytest.mark.parametrize("choice", TIGHT_CHOICES, ids=str)
@torch.inference_mode()
def test_engine_equals_a_cache_with_equal_chunks(choice, chunk):
    """The first token of a prompt that fits in a chunk is that of the model without a cache."""
    model, rng = build_design(ROPE_DECODER), torch.Generator().manual_seed(8)
    for length in (1, 2, 3, 7, 8, 9, 21):
        if choice.name == "low_rank" and min(length, chunk) < 2:
            continue  # its first step has too few tokens for two directions
        prompt = torch.randint(3, VOCAB, (length,), generator=rng).tolist()
        expected, cached_model, unread = [], CachedModel(model, choice, [[]]), prompt
        for _ in range(5):
            while unread:
                (logits,) = cached_model.step([0], [unread[:chunk]])
                unread = unread[chunk:]
            expected.append(logits[-1].log_softmax(-1))
            unread = [int(logits[-1].argmax())]
        outputs = continue_by_engine(model, choice, prompt, chunk, 5)
        assert [token.id for token in outputs] == [int(x.argmax()) for x in expected]
        log_probs = [float(x.max()) for x in expected]
        # a window and a low rank also change attention within a step
        if length <= chunk and choice.name not in ("window", "low_rank"):
            log_probs[0] = float(run_uncached(model, prompt, [])[-1].log_softmax(-1)[outputs[0].id])
        assert [token.log_prob for token in outputs] == pytest.approx(log_probs, abs=1e-5)


@pytest.mark.acceptance("C6")
@pytest.mark.parametrize("widths", [[1], [3, 1], [11, 2, 1]], ids=str)
@pytest.mark.parametrize("design", [d for d in DESIGNS if {} in DESIGNS[d].get("layer_pattern", [{}])])
@torch.no_grad()
def test_window_cache_equals_windowed_attention(design, widths):
    window_model = build_design(design, (("sink", 2), ("window", 5)))
    rows = draw_rows(28, 28, seed=7)
    for model in (window_model, build_design(design)):
        cached_model = CachedModel(model, Choice("window", window=5, sink=2), [[5, 6], [7]])
        for i, logits in enumerate(cached_model.read(rows, widths)):
            assert_close(logits, run_uncached(window_model, rows[i], cached_model.rows[i].source))


@pytest.mark.parametrize("cache", CACHES)
@torch.no_grad()
def test_kernel_attention_reads_every_cache(cache):
    """It counts the tokens of a slot and computes its weights explicitly."""
    model, rows = (
        build_design(PLAIN, (("name", "kernel"), ("sim", "elu"))),
        [[3, 4, 3, 5, 3, 4], [6, 6, 7, 8, 6, 6]],
    )
    cached_model = CachedModel(model, ROOMY_CHOICES[cache], [[5, 6], [7]])
    for i, logits in enumerate(cached_model.read(rows, [3, 1, 2])):
        error = (logits - run_uncached(model, rows[i], cached_model.rows[i].source)).abs().max()
        assert error < ROUNDING.get(cache, 1e-5)


@pytest.mark.parametrize("cache", CACHES)
def test_rows_move_outside_inference_mode_and_in_bf16(cache):
    model, outputs = copy.deepcopy(build_design(PLAIN)).bfloat16(), []
    for choice in (Choice("static"), ROOMY_CHOICES[cache]):
        cached_model, logits = CachedModel(model, choice, [[5, 6], [5, 6], [7]]), []
        for move, *arguments in (("fork", 0, 1), ("release", 2), ("select", [2, 1, 0]), ("fork", 2, 0)):
            with torch.inference_mode():
                logits += [x.float() for x in cached_model.step([0, 1, 2], [[3, 4, 5], [6, 7], [8]])]
                logits += [x.float() for x in cached_model.step([0, 1, 2], [[9], [10], [11]])]
            getattr(cached_model, move)(*arguments)
        outputs.append(torch.cat(logits))
    error = (outputs[0] - outputs[1]).abs().max()
    assert error < 0.02 * outputs[0].abs().max() + ROUNDING.get(cache, 0)


@pytest.mark.parametrize("cache", [name for name in CACHES if CACHE.get(name).rewinds])
@torch.no_grad()
def test_rewound_tokens_are_overwritten(cache):
    model = build_design(ROPE_DECODER)
    cached_model = CachedModel(model, ROOMY_CHOICES[cache], [[5, 6], [7]])
    cached_model.step([0, 1], [[3, 4, 5, 6, 7], [8, 9]])
    cached_model.rows[0].steps = [[3, 4]]
    for new in ([[11, 12], [13]], [[14], [15]]):
        for row, logits in zip(cached_model.rows, cached_model.step([0, 1], new), strict=True):
            expected = run_uncached(model, list(itertools.chain(*row.steps)), row.source)
            assert_close(logits, expected[-len(logits) :])


@pytest.mark.parametrize("design", [PLAIN, next(iter(MIXED_DESIGNS))])
@pytest.mark.parametrize("cache", CACHES)
@torch.no_grad()
def test_memory_usage_counts_all_bytes(cache, design):
    choice = Choice(cache, **TIGHT.get(cache, ROOM.get(cache, {})))
    cached_model = CachedModel(build_design(design), choice, [[5, 6], [7], [8]])
    # no token twice in a row: equal keys would be one cluster or two, depending on rounding
    unread, used_bytes = [iter(range(3, VOCAB)) for _ in range(3)], 0
    for lengths in ([0, 0, 0], [6, 2, 3], [1, 1, 1], [1, 1, 1], [4, 4, 4], [1, 1, 1]):
        if any(lengths):
            new = [list(itertools.islice(tokens, n)) for tokens, n in zip(unread, lengths, strict=True)]
            cached_model.step([0, 1, 2], new)
        usage = cached_model.cache.memory_usage()
        assert usage.reserved_bytes == cached_model.cache.nbytes
        assert used_bytes <= usage.used_bytes <= usage.reserved_bytes <= usage.peak_bytes
        assert usage.wasted_bytes == usage.reserved_bytes - usage.used_bytes
        used_bytes = usage.used_bytes
    cached_model.select([0])
    selected = cached_model.cache.memory_usage()
    assert selected.peak_bytes >= usage.peak_bytes and selected.used_bytes < usage.used_bytes
    cached_model.release(0)
    assert cached_model.cache.memory_usage().used_bytes <= cached_model.cache.memory_usage().reserved_bytes


@pytest.mark.parametrize("cache", CACHES)
def test_recurrent_models_and_overlong_rows_are_refused(cache):
    recurrent = build(ModelConfig(vocab_size=VOCAB, kind="decoder", attention="linear", **SIZES), seed=1)
    with pytest.raises(UserError, match=f"cache '{cache}' stores .*has a recurrent state"):
        make_cache(Choice(cache), recurrent.cache_shape, 1, 9)
    shape = build_design(PLAIN).cache_shape._replace(needs_distances=False)
    small = make_cache(ROOMY_CHOICES[cache], shape, 1, 4)
    with pytest.raises(UserError, match="4"):
        small.prepare_step([0], torch.arange(5)[None])
