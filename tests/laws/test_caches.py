"""What holds for every cache of keys and values, with every decoder, head count and position.

Caches that lose nothing, and lossy ones with room for everything, give what there is without a cache; and
whatever a cache
keeps of a row, it keeps it in any company: rows that are copied, moved and dropped go their own ways.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.laws.conftest import HEADS, HYBRIDS, VOCAB, choices, say
from tests.laws.test_models import close
from torch import Tensor

from polyhead.cache.factory import make_cache
from polyhead.cache.low_rank import fit_low_rank
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE, POSITION
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead.generation.engine.interface import TokenOutput
from polyhead.generation.generate import generate
from polyhead.models import build
from polyhead.nn.cache import Cache

ROOM: dict[str, dict[str, Any]] = {
    "static": {"chunk": 3},
    "window": {"window": 40, "sink": 1},
    "quantized": {"bits": 8, "group": 4},
    "h2o": {"budget": 40, "recent": 3, "sink": 1},
    "subgen": {"budget": 40, "recent": 3},
    "low_rank": {"rank": 16},
}
"""Options that leave room for all tokens of a test."""

TIGHT: dict[str, dict[str, Any]] = {
    "window": {"window": 4, "sink": 1},
    "quantized": {"bits": 4, "group": 2},
    "h2o": {"budget": 5, "recent": 2, "sink": 1},
    "subgen": {"budget": 5, "recent": 2},
    "low_rank": {"rank": 2},
}
"""Options that do not."""

CACHES = [name for name in CACHE.names() if name != "state"]
ROUNDED = {"quantized": 0.05}
"""Caches that round what they keep even where there is room, and how far their logits may be off."""

SIZES = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 20, "max_len": 32, "dropout": 0.0}
DESIGNS = {
    f"{say(p)}-{heads}-{kind}": {"position": p, "n_kv_heads": HEADS[heads], "kind": kind}
    for i, (p, heads) in enumerate(itertools.product([p for p in choices(POSITION) if len(p) == 1], HEADS))
    for kind in [("decoder", "encoder-decoder")[i % 2]]
}
MIXED = {
    f"{say(turns)}-{kind}": {
        "position": {"name": "rope"},
        "n_kv_heads": 2,
        "kind": kind,
        "n_layers": 4,
        "layer_pattern": turns,
    }
    for turns in HYBRIDS
    for kind in ("decoder", "encoder-decoder")
}
DESIGNS |= MIXED
PLAIN = next(design for design in DESIGNS if design.startswith("none"))
PROMPTS = [[3, 4, 5, 6, 7, 8, 9], [10], [11, 12, 3]]


@functools.cache
def made(design: str, attention: tuple[tuple[str, Any], ...] = ()) -> Any:
    given = {**SIZES, **DESIGNS[design], "attention": {"name": "softmax", **dict(attention)}}
    model = build(ModelConfig(vocab_size=VOCAB, **given), seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.eval()


BIASES = ("alibi", "t5", "shaw", "disentangled")


def fits(cache: str, design: str) -> bool:
    own = DESIGNS[design]
    windows = any("window" in turn.get("attention", ()) for turn in own.get("layer_pattern", ()))
    return cache != "subgen" or not (windows or own["position"]["name"] in BIASES)


def ragged(rows: list[list[int]], first: list[int]) -> tuple[Tensor, Tensor]:
    """Tokens and positions (B, T) of rows that go on from their positions ``first``; padding on the right."""
    width = max([1, *map(len, rows)])
    tokens, pos = torch.full((len(rows), width), 1), torch.full((len(rows), width), -1)
    for i, (row, at) in enumerate(zip(rows, first, strict=True)):
        tokens[i, : len(row)], pos[i, : len(row)] = torch.tensor(row), torch.arange(at, at + len(row))
    return tokens, pos


class Row:
    """One sequence: how it was fed, its source, and a cache of its own where one is wanted beside the common
    one.
    """

    def __init__(self, source: list[int]) -> None:
        self.source, self.steps = source, list[list[int]]()
        self.alone: Fed | None = None

    @property
    def length(self) -> int:
        return sum(map(len, self.steps))

    def alone_in(self, model: Any, choice: Choice) -> Fed:
        """A cache of this row alone, which is fed what the row is fed and is copied with it."""
        if self.alone is None or self.length == len(self.steps[-1]):
            self.alone = Fed(model, choice, [self.source])
        return self.alone


class Fed:
    """A cache fed through a model, and beside it what each row was fed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Fed:
        made: Fed = copy.copy(self)
        made.cache, made.rows = copy.deepcopy(self.cache, memo), copy.deepcopy(self.rows, memo)
        return made

    def __init__(self, model: Any, choice: Choice, sources: list[list[int]]) -> None:
        self.model, self.rows = model, [Row(source) for source in sources]
        self.cache: Cache = make_cache(choice, model.cache_shape, len(sources), 32)

    def step(self, at: list[int], tokens: list[list[int]]) -> list[Tensor]:
        """Feed rows ``at``; the logits of each one's tokens."""
        fed, pos = ragged(tokens, [self.rows[i].length for i in at])
        self.cache.prepare_step(at, pos)
        memory = None
        if hasattr(self.model, "encode"):
            memory = self.model.encode(*ragged([self.rows[i].source for i in at], [0] * len(at)))
        logits = self.model.decode(fed, pos, self.cache, memory)
        for i, new in zip(at, tokens, strict=True):
            self.rows[i].steps += [new] if new else []
        return [x[: len(new)] for x, new in zip(logits, tokens, strict=True)]

    def select(self, at: list[int]) -> None:
        self.cache.select(at)
        self.rows = [self.copy(i) for i in at]

    def fork(self, src: int, dst: int) -> None:
        self.cache.fork(src, dst)
        self.rows[dst] = self.copy(src)

    def release(self, row: int) -> None:
        self.cache.release(row)
        self.rows[row].steps = []

    def copy(self, i: int) -> Row:
        return copy.deepcopy(self.rows[i])


def whole(model: Any, row: list[int], source: list[int]) -> Tensor:
    """The logits of one row without a cache: (T, V)."""
    tokens = torch.tensor([row])
    out: Tensor = model(torch.tensor([source]), tokens) if hasattr(model, "encode") else model(tokens)
    return out[0]


def found(model: Any, decoder: str, cache: Choice | None) -> tuple[list[Any], list[float]]:
    """What a decoder says, and with which scores."""
    source, pos = ragged(PROMPTS, [0] * 3)
    bos, prefix = (3, [[4, 5], [], [6]]) if hasattr(model, "encode") else (None, [[], [7, 8], [9]])
    rest: dict[str, Any] = {"bos_id": bos, "eos_id": 0, "max_new_tokens": [9, 12, 10], "cache": cache}
    if decoder == "sampling":
        drawn = generate(model, PROMPTS, sampling=Sampling(1.0), eos_id=0, max_new_tokens=9, n=2, cache=cache)
        told = list(drawn)
        return [(t.row, t.id) for t in told], [t.log_prob for t in told]
    if decoder == "greedy":
        hypotheses = greedy_search(model, source, pos, prefix=prefix, **rest)
    else:
        best = beam_search(model, source, pos, beam_size=3, n_best=3, **rest)
        hypotheses = [h for some in best for h in some]
    return [h.tokens for h in hypotheses], [h.score for h in hypotheses]


@functools.cache
def plainly(design: str, decoder: str) -> tuple[list[Any], list[float]]:
    return found(made(design), decoder, Choice("static"))


def test_every_cache_states_its_laws_and_every_lossy_one_has_a_tight_case() -> None:
    lossy = [name for name in CACHES if not CACHE.get(name).lossless]
    assert sorted(lossy) == sorted(TIGHT)
    assert all(isinstance(CACHE.get(name).rewinds, bool) for name in CACHES)


@pytest.mark.parametrize("decoder", ["greedy", "beams", "sampling"])
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("cache", [name for name in CACHES if name not in ROUNDED])
def test_with_room_every_decoder_says_what_it_says_with_the_static_cache(
    cache: str, design: str, decoder: str
) -> None:
    if not fits(cache, design) or (decoder == "sampling" and "encoder" in design):
        return
    tokens, scores = found(made(design), decoder, Choice(cache, **ROOM.get(cache, {})))
    assert tokens == plainly(design, decoder)[0]
    assert scores == pytest.approx(plainly(design, decoder)[1], abs=1e-4)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("cache", CACHES)
@torch.no_grad()
def test_with_room_ragged_steps_give_what_there_is_without_a_cache(cache: str, design: str) -> None:
    if not fits(cache, design):
        return
    model, gen = made(design), torch.Generator().manual_seed(4)
    rows = [torch.randint(3, VOCAB, (n,), generator=gen).tolist() for n in (13, 4, 9)]
    fed = Fed(model, Choice(cache, **ROOM.get(cache, {})), [[5, 6], [7], [8, 9, 10]])
    got: list[list[Tensor]] = [[], [], []]
    for width in (3, 1, 2, 1, 1, 4, 1, 1, 1, 1):
        at = [i for i, row in enumerate(rows) if fed.rows[i].length < len(row)] or [0]
        new = [rows[i][fed.rows[i].length :][: max(1, width - i)] for i in at]
        for i, logits in zip(at, fed.step(at, new), strict=True):
            got[i].append(logits)
    for i, row in enumerate(rows):
        wanted = whole(model, row[: fed.rows[i].length], fed.rows[i].source)
        if cache in ROUNDED:
            assert 0 < (torch.cat(got[i]) - wanted).abs().max() < ROUNDED[cache] or i == 1
        else:
            close(torch.cat(got[i]), wanted)


def history(fed: Fed, check: Callable[[Row, Tensor], None]) -> None:
    """Rows that grow at their own pace, are forked, selected, released and begun anew."""
    gen = torch.Generator().manual_seed(6)

    def step(at: list[int], lengths: list[int]) -> None:
        new = [torch.randint(3, VOCAB, (n,), generator=gen).tolist() for n in lengths]
        for i, logits in zip(at, fed.step(at, new), strict=True):
            check(fed.rows[i], logits)

    step([0, 1, 2], [6, 1, 3])
    step([0, 1, 2], [1, 1, 1])
    fed.fork(0, 2)
    step([2, 0], [2, 1])
    fed.select([1, 2, 2, 0])
    step([0, 1, 2, 3], [1, 1, 1, 1])
    step([1], [5])
    fed.release(2)
    step([0, 1, 2, 3], [1, 0, 2, 1])
    step([3, 2], [1, 1])
    fed.select([3, 1])
    for _ in range(4):
        step([0, 1], [1, 1])
    fed.select([1])
    step([0], [3])


LONE = [d for d in DESIGNS if d in MIXED or d.split("-")[0] in ("rope", "shaw", "sinusoidal")]


@pytest.mark.parametrize("design", LONE)
@pytest.mark.parametrize("cache", CACHES)
@torch.no_grad()
def test_copied_moved_and_dropped_rows_give_what_they_give_alone(
    cache: str, design: str, tmp_path: Any
) -> None:
    """Too little room for all, so what a row has kept is its own, and cut as the row was cut."""
    if not fits(cache, design):
        return
    model, options = made(design), dict(TIGHT.get(cache, ROOM.get(cache, {})))
    if cache == "low_rank":
        options["projection"] = str(tmp_path / "bases.safetensors")
        text = torch.randint(3, VOCAB, (4, 20), generator=torch.Generator().manual_seed(1))
        source = (text[:, :5], None) if hasattr(model, "encode") else None
        fit_low_rank(model, text, 3, options["projection"], source=source)

    def alone(row: Row, logits: Tensor) -> None:
        if len(logits):
            close(logits, row.alone_in(model, Choice(cache, **options)).step([0], row.steps[-1:])[0])

    history(Fed(model, Choice(cache, **options), [[5, 6], [7], [8, 9, 10]]), alone)


TIGHT_CHOICES = [Choice(name, **TIGHT.get(name, ROOM.get(name, {}))) for name in CACHES]
TIGHT_CHOICES.append(Choice("subgen", **TIGHT["subgen"], values="sampled"))
READS_STEPS_IN_PART = ("window", "low_rank")
"""Caches that make another attention of it, within a step too: one with a window, or one of low rank."""


def continue_by_engine(
    model: Any, choice: Choice, prompt: list[int], chunk: int, n: int
) -> list[TokenOutput]:
    """n greedy tokens of an engine."""
    engine = Engine(model, max_len=60, cache=choice, prefill_chunk=chunk)
    state = SampledSequences(SamplingStrategy(Sampling(temperature=0.0), -1), prompt, n)
    return list(engine.submit(prompt, state))


@pytest.mark.parametrize("chunk", [1000, 7, 4])
@pytest.mark.parametrize("choice", TIGHT_CHOICES, ids=str)
@torch.inference_mode()
def test_an_engine_gives_what_a_cache_gives_that_is_fed_the_same_chunks(choice: Choice, chunk: int) -> None:
    """And the first token of a prompt that fits one chunk is that of the model without a cache."""
    model = made(next(d for d in DESIGNS if d.startswith("rope") and not d.endswith("encoder-decoder")))
    gen = torch.Generator().manual_seed(8)
    for length in (1, 2, 3, 7, 8, 9, 21):
        if choice.name == "low_rank" and min(length, chunk) < 2:
            continue  # its first step has too few tokens for two directions
        prompt = torch.randint(3, VOCAB, (length,), generator=gen).tolist()
        by_hand, fed, unread = [], Fed(model, choice, [[]]), prompt
        for _ in range(5):
            while unread:
                (logits,) = fed.step([0], [unread[:chunk]])
                unread = unread[chunk:]
            by_hand.append(logits[-1].log_softmax(-1))
            unread = [int(logits[-1].argmax())]
        outputs = continue_by_engine(model, choice, prompt, chunk, 5)
        assert [token.id for token in outputs] == [int(x.argmax()) for x in by_hand]
        assert [token.log_prob for token in outputs] == pytest.approx(
            [float(x.max()) for x in by_hand], abs=1e-5
        )
        if length <= chunk and choice.name not in READS_STEPS_IN_PART:
            full = whole(model, prompt, [])[-1].log_softmax(-1)
            assert outputs[0].id == int(full.argmax())
            assert outputs[0].log_prob == pytest.approx(float(full.max()), abs=1e-5)


@pytest.mark.acceptance("C6")
@pytest.mark.parametrize("widths", [[1], [3, 1], [11, 2, 1]], ids=str)
@pytest.mark.parametrize(
    "design", [name for name, own in DESIGNS.items() if {} in own.get("layer_pattern", [{}])]
)
@torch.no_grad()
def test_a_window_gives_what_attention_with_that_window_gives_without_a_cache(
    design: str, widths: list[int]
) -> None:
    """28 tokens, four times a window of 7 with its sink, however they are cut; of any attention, and of that
    with the
    window itself."""
    narrow = made(design, (("sink", 2), ("window", 5)))
    rows = torch.randint(3, VOCAB, (2, 28), generator=torch.Generator().manual_seed(7)).tolist()
    for model in (narrow, made(design)):
        fed, got = Fed(model, Choice("window", window=5, sink=2), [[5, 6], [7]]), [[], []]
        for width in itertools.cycle(widths):
            at = [i for i in range(2) if fed.rows[i].length < 28]
            if not at:
                break
            new = [rows[i][fed.rows[i].length :][: max(1, width - i)] for i in at]
            for i, logits in zip(at, fed.step(at, new), strict=True):
                got[i].append(logits)
        for i, row in enumerate(rows):
            close(torch.cat(got[i]), whole(narrow, row, fed.rows[i].source))


@pytest.mark.parametrize("cache", CACHES)
@torch.no_grad()
def test_attention_written_out_reads_every_cache_too(cache: str) -> None:
    """Kernel attention counts the tokens of a slot and shows its weights in its own way."""
    model = made(PLAIN, (("name", "kernel"), ("sim", "elu")))
    fed, rows = (
        Fed(model, Choice(cache, **ROOM.get(cache, {})), [[5, 6], [7]]),
        [[3, 4, 3, 5, 3, 4], [6, 6, 7, 8, 6, 6]],
    )
    got = [fed.step([0, 1], [row[at] for row in rows]) for at in (slice(0, 3), slice(3, 4), slice(4, 6))]
    for i, row in enumerate(rows):
        off = (torch.cat([logits[i] for logits in got]) - whole(model, row, fed.rows[i].source)).abs().max()
        assert off < ROUNDED.get(cache, 1e-5)


@pytest.mark.parametrize("cache", CACHES)
def test_rows_move_outside_the_mode_that_steps_ran_in_and_in_half_precision(cache: str) -> None:
    model = copy.deepcopy(made(PLAIN)).bfloat16()
    said = []
    for choice in (Choice("static"), Choice(cache, **ROOM.get(cache, {}))):
        fed, logits = Fed(model, choice, [[5, 6], [5, 6], [7]]), []
        for move, *given in (("fork", 0, 1), ("release", 2), ("select", [2, 1, 0]), ("fork", 2, 0)):
            with torch.inference_mode():
                logits += [x.float() for x in fed.step([0, 1, 2], [[3, 4, 5], [6, 7], [8]])]
                logits += [x.float() for x in fed.step([0, 1, 2], [[9], [10], [11]])]
            getattr(fed, move)(*given)
        said.append(torch.cat(logits))
    assert (said[0] - said[1]).abs().max() < 0.02 * said[0].abs().max() + ROUNDED.get(cache, 0)


@pytest.mark.parametrize("cache", [name for name in CACHES if CACHE.get(name).rewinds])
@torch.no_grad()
def test_a_cache_that_rewinds_forgets_what_is_written_over(cache: str) -> None:
    model = made(next(d for d in DESIGNS if d.startswith("rope") and not d.endswith("encoder-decoder")))
    fed = Fed(model, Choice(cache, **ROOM.get(cache, {})), [[5, 6], [7]])
    fed.step([0, 1], [[3, 4, 5, 6, 7], [8, 9]])
    fed.rows[0].steps = [[3, 4]]
    got = fed.step([0, 1], [[11, 12], [13]])
    close(got[0], whole(model, [3, 4, 11, 12], [5, 6])[2:])
    close(got[1], whole(model, [8, 9, 13], [7])[2:])
    got = fed.step([0, 1], [[14], [15]])
    close(got[0], whole(model, [3, 4, 11, 12, 14], [5, 6])[4:])
    close(got[1], whole(model, [8, 9, 13, 15], [7])[3:])


@pytest.mark.parametrize("design", [PLAIN, next(iter(MIXED))])
@pytest.mark.parametrize("cache", CACHES)
@torch.no_grad()
def test_memory_is_told_truthfully(cache: str, design: str) -> None:
    """What is held is all of it, a peak does not sink, used is what rows need, and more
    tokens need no less.
    """
    model = made(design)
    fed = Fed(model, Choice(cache, **TIGHT.get(cache, ROOM.get(cache, {}))), [[5, 6], [7], [8]])
    # no token twice in a row: keys that are alike up to rounding would be one cluster on this machine and two
    # on that
    at, before, fresh = [0, 1, 2], 0, [iter(range(3, VOCAB)) for _ in range(3)]
    assert fed.cache.memory_usage().used_bytes <= fed.cache.memory_usage().reserved_bytes == fed.cache.nbytes
    for lengths in ([6, 2, 3], [1, 1, 1], [1, 1, 1], [4, 4, 4], [1, 1, 1]):
        fed.step(at, [list(itertools.islice(tokens, n)) for tokens, n in zip(fresh, lengths, strict=True)])
        told = fed.cache.memory_usage()
        assert told.reserved_bytes == fed.cache.nbytes
        assert before <= told.used_bytes <= told.reserved_bytes <= told.peak_bytes
        assert told.wasted_bytes == told.reserved_bytes - told.used_bytes
        before = told.used_bytes
    fed.select([0])
    assert fed.cache.memory_usage().peak_bytes >= told.peak_bytes
    assert fed.cache.memory_usage().used_bytes < told.used_bytes
    fed.release(0)
    assert fed.cache.memory_usage().used_bytes <= fed.cache.memory_usage().reserved_bytes


@pytest.mark.parametrize("cache", CACHES)
def test_a_model_of_states_and_a_text_too_long_are_refused(cache: str) -> None:
    stateful = build(ModelConfig(vocab_size=VOCAB, kind="decoder", attention="linear", **SIZES), seed=1)
    with pytest.raises(UserError, match=f"cache '{cache}' stores .*has a recurrent state"):
        make_cache(Choice(cache), stateful.cache_shape, 1, 9)
    shape = made(next(iter(DESIGNS))).cache_shape._replace(needs_distances=False)
    small = make_cache(Choice(cache, **ROOM.get(cache, {})), shape, 1, 4)
    with pytest.raises(UserError, match="4"):
        small.prepare_step([0], torch.arange(5)[None])
