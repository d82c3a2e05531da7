"""Going on from prompts, against the whole text computed anew at every step, and against Hugging Face's
GPT-2.
"""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from tests.generation.generate_helpers import DESIGNS, collect, make

from polyhead.core.errors import UserError
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.batching import pad_rows
from polyhead.generation.generate import generate

PAD, EOS, V = 0, 2, 23
NEVER = -1  # an end that no model says
COLD, WARM = Sampling(temperature=0.0), Sampling(temperature=1.3, top_k=9, repetition_penalty=1.2)
PROMPTS = [[5, 6, 7], [9], [4, 4, 8, 11, 3, 12, 20], [21, 5]]


@pytest.fixture(scope="module", params=DESIGNS)
def model(request):
    return make(request.param)


@torch.no_grad()
def slow(model, prompt, limit):
    """Greedy: the whole prefix is read anew for every token."""
    y = list(prompt)
    while len(y) < len(prompt) + limit and (len(y) == len(prompt) or y[-1] != EOS):
        y.append(int(model(torch.tensor([y]))[0, -1].argmax()))
    return y[len(prompt) :]


def test_greedy_is_argmax_over_the_whole_prefix_without_cache(model):
    """Ragged prompts together; they end by themselves, or at the limit."""
    for limit in (1, 4, 30):
        found, said = collect(model, PROMPTS, max_new_tokens=limit)
        assert found == [slow(model, prompt, limit) for prompt in PROMPTS]
        for row, tokens in enumerate(found):
            assert [token.is_last for token in said if token.row == row] == [False] * (len(tokens) - 1) + [
                True
            ]


def test_log_probabilities_are_those_of_the_model_whatever_is_drawn(model):
    found, said = collect(model, PROMPTS, sampling=WARM, seed=5)
    for row, (prompt, tokens) in enumerate(zip(PROMPTS, found, strict=True)):
        whole = [*prompt, *tokens]
        with torch.no_grad():
            log_p = model(torch.tensor([whole]))[0].log_softmax(-1)
        wanted = [float(log_p[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens)]
        assert [t.log_prob for t in said if t.row == row] == pytest.approx(wanted, abs=1e-4)


def test_a_sequence_draws_the_same_alone_in_any_batch_and_among_copies(model):
    """n = 3 of four prompts is twelve sequences with the numbers 0 to 11, however they are put together."""
    found, _ = collect(model, PROMPTS, sampling=WARM, n=3, seed=8)
    assert len({tuple(tokens) for tokens in found}) == 12
    for i, prompt in enumerate(PROMPTS):
        copies, _ = collect(model, [prompt] * 3, sampling=WARM, seed=8, row_offset=3 * i)
        assert copies == found[3 * i : 3 * i + 3]
        alone, said = collect(model, [prompt], sampling=WARM, seed=8, row_offset=3 * i + 1)
        assert alone == [found[3 * i + 1]]
        assert {token.row for token in said} == {3 * i + 1}
    other, _ = collect(model, PROMPTS, sampling=WARM, n=3, seed=9)
    assert other != found


def test_a_sequence_that_is_stopped_says_no_more_and_the_others_go_on_as_they_were(model):
    whole, _ = collect(model, PROMPTS, sampling=WARM, n=2, seed=1, max_new_tokens=9)
    steps = generate(model, PROMPTS, sampling=WARM, n=2, seed=1, max_new_tokens=9, eos_id=EOS)
    found = [[] for _ in whole]
    send = None
    while True:
        try:
            token = steps.send(send) if send else next(steps)
        except StopIteration:
            break
        found[token.row].append(token.id)
        send = {token.row} if token.row % 3 == 0 and len(found[token.row]) == 2 else None
    assert found == [tokens[:2] if row % 3 == 0 else tokens for row, tokens in enumerate(whole)]


@pytest.mark.parametrize("design", ["gpt-2", "lstm"])
def test_a_text_longer_than_the_model_goes_on_from_its_last_half(design):
    model, limit = make(design, max_len=8), 30
    prompts = [[5, 6, 7], [9], [4, 4, 8, 11, 3, 12, 20, 5]]
    options = {"max_new_tokens": limit, "max_len": 8, "eos_id": NEVER}
    found, _ = collect(model, prompts, **options)
    for prompt, tokens in zip(prompts, found, strict=True):
        y, since, wanted = list(prompt), 0, []
        while len(wanted) < limit:
            if len(y) - since > 8:
                since = len(y) - 4
            with torch.no_grad():
                wanted.append(int(model(torch.tensor([y[since:]]))[0, -1].argmax()))
            y.append(wanted[-1])
        assert tokens == wanted
    drawn, _ = collect(model, prompts, sampling=WARM, n=2, **options)
    for row, prompt in enumerate(prompts):
        alone, _ = collect(model, [prompt], sampling=WARM, row_offset=2 * row + 1, **options)
        assert alone == [drawn[2 * row + 1]]


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[5]], {"max_new_tokens": 0}, "max_new_tokens is 0 and n is 1; expected 1 or more of each"),
        ([[5]], {"n": 0}, "n is 0; expected 1 or more"),
        ([[5]], {"seed": -1}, "seed is -1, expected 0 or more"),
        ([[5], []], {}, "prompt 2 has no tokens; a language model requires at least one"),
        (
            [[5], [6] * 9],
            {"max_len": 8, "row_offset": 4},
            "prompt 6 has 9 tokens; the model's maximum is 8: pass only its end",
        ),
    ],
)
def test_impossible_wishes_are_refused(prompts, options, message):
    with pytest.raises(UserError, match=message):
        collect(make("llama"), prompts, **options)


def test_no_prompts_are_no_tokens_and_not_a_number_is_an_error():
    model = make("llama")
    assert collect(model, [])[1] == []
    with torch.no_grad():
        model.head.weight[3, 0] = math.nan
    with pytest.raises(UserError, match="output is NaN"):
        collect(model, [[5]])


@pytest.fixture(scope="module")
def gpt2():
    """Hugging Face's GPT-2 with the weights of ours."""
    transformers = pytest.importorskip("transformers")
    model = make("gpt-2")
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=64, n_embd=32, n_layer=2, n_head=4, n_inner=40, activation_function="gelu",
        tie_word_embeddings=False, bos_token_id=EOS, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    ours = model.state_dict()
    names = {"wte": "embedding.token", "wpe": "embedding.position", "ln_f": "stack.final_norm"}
    layers = {"ln_1": "attn_residual.norm", "ln_2": "ffn_residual.norm", "attn.c_proj": "attn.o_proj",
              "mlp.c_fc": "ffn.up_proj", "mlp.c_proj": "ffn.down_proj"}  # fmt: skip
    for i in range(2):
        names |= {f"h.{i}.{a}": f"stack.layers.{i}.{b}" for a, b in layers.items()}
    with torch.no_grad():
        theirs.lm_head.weight.copy_(ours["head.weight"])
        for name, p in theirs.transformer.named_parameters():
            of, _, kind = name.rpartition(".")
            if of.endswith("c_attn"):
                own = f"stack.layers.{of.split('.')[1]}.attn."
                new = torch.cat([ours[f"{own}{part}_proj.{kind}"] for part in "qkv"])
            else:
                new = ours[f"{names[of]}.{kind}"]
            p.copy_(new.T if kind == "weight" and ".c_" in name else new)
    return SimpleNamespace(ours=model, theirs=theirs)


def test_logits_and_greedy_equal_gpt_2(gpt2):
    tokens = torch.randint(3, V, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(gpt2.ours(tokens), gpt2.theirs(tokens).logits, rtol=0, atol=1e-4)
    end = collect(gpt2.ours, PROMPTS, eos_id=NEVER)[0][0][5]  # a word that comes in the middle
    found, _ = collect(gpt2.ours, PROMPTS, max_new_tokens=25, eos_id=end)
    for prompt, tokens in zip(PROMPTS, found, strict=True):
        given = torch.tensor([prompt])
        wanted = gpt2.theirs.generate(given, max_new_tokens=25, do_sample=False, eos_token_id=end)[
            0, len(prompt) :
        ]
        assert tokens == wanted.tolist()
    assert len(found[0]) <= 6


def test_beam_search_of_prompts_equals_gpt_2(gpt2):
    found = beams(gpt2.ours, PROMPTS, limit=10, beam_size=4, n_best=4)
    for prompt, hypotheses in zip(PROMPTS, found, strict=True):
        wanted = gpt2.theirs.generate(
            torch.tensor([prompt]), max_new_tokens=10, num_beams=4, num_return_sequences=4, do_sample=False,
            output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        words = [[w for w in s[len(prompt) :].tolist() if w not in (PAD, EOS)] for s in wanted.sequences]
        assert [h.tokens for h in hypotheses] == words


def beams(model, prompts, limit, **options):
    tokens, pos = pad_rows(prompts, PAD, torch.device("cpu"))
    return beam_search(model, tokens, pos, eos_id=EOS, max_new_tokens=[limit] * len(prompts), **options)


ONCE = {"cold": {"temperature": 0.0}, "warm": {"temperature": 1.3, "top_k": 9}, "plain": {}}


@pytest.mark.parametrize("way", [*ONCE, 1, 3])
def test_where_every_token_would_come_again_the_text_ends(model, way):
    """The end, which is in the prompt, comes where nothing else may; drawn or found by so many beams."""
    prompts, words = [[EOS, 5, 6], [9]], [w for w in range(V) if w != EOS]
    if isinstance(way, int):
        found = [
            [*best.tokens, EOS]
            for best, *_ in beams(model, prompts, 40, beam_size=way, n_best=way, no_repeat_ngram_size=1)
        ]
    else:
        found, said = collect(
            model, prompts, sampling=Sampling(**ONCE[way], no_repeat_ngram_size=1), max_new_tokens=40
        )
        assert [token.is_last for token in said].count(True) == 2
    assert sorted(found[0]) == sorted({*words, EOS} - {5, 6})
    assert all(tokens[-1] == EOS and len(set(tokens)) == len(tokens) for tokens in found)


def test_a_beam_that_holds_everything_finds_the_best_of_all_continuations(model):
    """Ragged prompts: every output of at most three tokens, scored by the whole model."""
    prompts = PROMPTS[:3]
    words = [w for w in range(V) if w != EOS]
    found = beams(
        model, prompts, limit=3, beam_size=V**2, n_best=8, early_stopping="never", length_penalty=0.6
    )
    for prompt, hypotheses in zip(prompts, found, strict=True):
        outputs = [[*y, EOS] for n in (0, 1, 2) for y in itertools.product(words, repeat=n)]
        outputs += [list(y) for y in itertools.product(words, repeat=3)]
        scored = {}
        for length in (1, 2, 3):
            same = [y for y in outputs if len(y) == length]
            with torch.no_grad():
                log_p = model(torch.tensor([[*prompt, *y[:-1]] for y in same])).log_softmax(-1)
            of = (
                log_p[:, len(prompt) - 1 :].gather(2, torch.tensor(same)[..., None])[..., 0].sum(1)
                / length**0.6
            )
            scored |= {
                tuple(w for w in y if w != EOS): float(score) for y, score in zip(same, of, strict=True)
            }
        best = sorted(scored, key=lambda y: -scored[y])[:8]
        assert [tuple(h.tokens) for h in hypotheses] == best
        assert [h.score for h in hypotheses] == pytest.approx([scored[y] for y in best], abs=1e-4)
