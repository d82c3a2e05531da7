"""Runs trained here as checkpoints: what a family can say is opened by the reference, what none can say is
named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hf.conftest import TEXTS, VOCABULARY
from tests.hf.save_helpers import LIKE_GPT2, config, saved
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.hf.save import pick_family
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import Tokenizer as Inner

LIKE_LLAMA = {
    "position": "rope",
    "norm": "rmsnorm",
    "feed_forward": "swiglu",
    "attention": {"name": "softmax", "bias": False},
}
MIXED = {"name": "moe", "expert": "swiglu", "n_experts": 3, "balance": False}
NOPE = {"layer_pattern": [{}, {"position": "none"}], "n_layers": 3}
LIKE_OLMO = LIKE_LLAMA | {
    "sandwich_norm": "after",
    "attention": {"name": "softmax", "bias": False, "qk_norm": "all_heads"},
}
BEHIND = {"name": "softmax", "bias": False, "qk_norm": True}
LIKE_EXAONE = LIKE_OLMO | {"attention": BEHIND}
LIKE_STABLELM = LIKE_LLAMA | {"norm": "layernorm", "position": {"name": "rope", "fraction": 0.5}}
LIKE_PHI = {
    "block": {"name": "parallel", "one_norm": True}, "position": {"name": "rope", "fraction": 0.5},
        "lm_head_bias": True,
    "attention": {"name": "softmax", "qk_norm": "layernorm", "qk_eps": 1e-5}, "tie_embeddings": "none",
}  # fmt: skip
LIKE_MPT = {
    "position": "alibi", "norm": {"name": "layernorm", "bias": False}, "feed_forward": {"name": "gelu",
        "bias": False},
    "attention": {"name": "softmax", "bias": False, "scale": 0.3},
}  # fmt: skip
LIKE_NANOCHAT = LIKE_LLAMA | {
    "norm": {"name": "rmsnorm", "weight": False}, "embedding_norm": True, "feed_forward": {"name": "relu2",
        "bias": False},
    "attention": {"name": "softmax", "bias": False, "qk_norm": "unweighted"},
}  # fmt: skip
LLAMA3 = {"name": "rope", "scaling": "llama3", "factor": 4.0, "original_len": 16, "theta": 100.0}
WINDOWED = {"name": "softmax", "bias": False, "window": 4, "softcap": 20.0}
LIKE_GEMMA = {
    "position": "rope", "norm": {"name": "rmsnorm", "zero_centered": True}, "sandwich_norm": True,
        "scale_embedding": True,
    "feed_forward": {"name": "geglu", "tanh": True}, "attention": {**WINDOWED, "window": None},
    "layer_pattern": [{"attention": WINDOWED}, {}], "logit_softcap": 30.0,
}  # fmt: skip
LOCAL = {"name": "softmax", "bias": False, "qk_norm": "zero_centered", "scale": 0.25}
LIKE_GEMMA3 = LIKE_GEMMA | {
    "attention": LOCAL, "logit_softcap": None, "n_layers": 3, "head_dim": 10, "n_kv_heads": 1,
    "position": {"name": "rope", "theta": 1e6, "scaling": "linear", "factor": 8.0},
    "layer_pattern": [{"attention": {**LOCAL, "window": 4}, "position": {"name": "rope", "theta": 500.0}},
        {}],
}  # fmt: skip
FITTING = [
    ("gpt2", {}),
    ("gpt2", {"feed_forward": "relu", "tie_embeddings": "none"}),
    ("gpt_bigcode", {"n_kv_heads": 1}),
    ("llama", LIKE_LLAMA),
    (
        "llama",
        LIKE_LLAMA | {"position": LLAMA3, "n_kv_heads": 1, "attention": {"name": "softmax", "bias": True}},
    ),
    ("mistral", LIKE_LLAMA | {"attention": {"name": "softmax", "bias": False, "window": 4}}),
    ("qwen2", LIKE_LLAMA | {"attention": {"name": "softmax", "bias": "qkv"}}),
    (
        "qwen3",
        LIKE_LLAMA | {"attention": {"name": "softmax", "bias": False, "qk_norm": True}, "head_dim": 10},
    ),
    ("mixtral", LIKE_LLAMA | {"feed_forward": MIXED}),
    ("granitemoe", LIKE_LLAMA | {"feed_forward": MIXED, "residual_scale": 0.5, "logits_scale": 3.0}),
    ("phi3", LIKE_LLAMA | {"position": {"name": "rope", "fraction": 0.5}, "n_kv_heads": 1}),
    (
        "gpt_neox",
        {"block": "parallel", "position": {"name": "rope", "fraction": 0.5}, "tie_embeddings": "none"},
    ),
    ("gpt_neox", {"position": "rope"}),
    ("opt", {"position": {"name": "learned", "offset": 2}, "norm_first": False, "feed_forward": "relu"}),
    ("bloom", {"position": "alibi", "embedding_norm": True}),
    ("seed_oss", LIKE_LLAMA | {"attention": {"name": "softmax", "bias": "o"}, "head_dim": 10}),
    (
        "helium",
        LIKE_LLAMA
        | {
            "position": {"name": "rope", "layout": "interleaved"},
            "attention": {"name": "softmax", "bias": "qkv"},
            "feed_forward": {"name": "swiglu", "bias": True},
        },
    ),
    ("mpt", LIKE_MPT),
    *(
        ("stablelm", LIKE_STABLELM | {"attention": {"name": "softmax", "bias": False, **normed}})
        for normed in ({}, {"qk_norm": "per_head", "qk_eps": 1e-5})
    ),
    ("phi", LIKE_PHI),
    (
        "cohere",
        LIKE_LLAMA
        | {
            "block": {"name": "parallel", "one_norm": True},
            "position": {"name": "rope", "layout": "interleaved"},
            "norm": {"name": "layernorm", "bias": False},
            "logits_scale": 4.0,
            "attention": {"name": "softmax", "bias": False, "qk_norm": "per_head", "qk_eps": 1e-5},
        },
    ),
    ("gemma2", LIKE_GEMMA),
    ("gemma3_text", LIKE_GEMMA3),
    ("gemma3_text", LIKE_GEMMA3 | {"layer_pattern": [], "tie_embeddings": "none", "logit_softcap": 5.0}),
    ("gemma3_text", LIKE_GEMMA3 | {"layer_pattern": [{"attention": {**LOCAL, "window": 4}}]}),
    ("gemma3_text", LIKE_GEMMA3 | {"attention": "softmax", "layer_pattern": [{"attention": LOCAL}]}),
    ("nanochat", LIKE_NANOCHAT),
    (
        "nanochat",
        LIKE_NANOCHAT | {"n_kv_heads": 1, "head_dim": 10, "tie_embeddings": "none", "logit_softcap": 5.0},
    ),
    ("smollm3", LIKE_LLAMA | NOPE),
    (
        "smollm3",
        LIKE_LLAMA
        | {
            "layer_pattern": [{"attention": LIKE_LLAMA["attention"], "position": "none"}],
            "attention": "softmax",
        },
    ),
    (
        "smollm3",
        LIKE_LLAMA
        | {
            "layer_pattern": [
                {"position": "rope"},
                {"attention": {"name": "softmax", "bias": False, "window": 4}},
            ]
        }
        | {"position": "none"},
    ),
    ("olmo2", LIKE_OLMO),
    ("olmo2", LIKE_OLMO | {"n_kv_heads": 1, "head_dim": 10, "position": LLAMA3, "tie_embeddings": "none"}),
    ("exaone4", LIKE_EXAONE),
    (
        "exaone4",
        LIKE_EXAONE | NOPE | {"layer_pattern": [{"attention": BEHIND | {"window": 4}}, {"position": "none"}]},
    ),
    ("exaone4", LIKE_EXAONE | {"layer_pattern": [{"position": "none"}], "n_kv_heads": 1, "head_dim": 10}),
    (
        "gemma2",
        LIKE_GEMMA
        | {
            "n_layers": 3,
            "layer_pattern": [{}, {"attention": WINDOWED}, {"attention": {**WINDOWED, "window": None}}],
        },
    ),
]


@pytest.mark.parametrize(("family", "changes"), FITTING)
def test_a_run_trained_here_is_opened_by_the_reference(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    ours, tokens = saved(tmp_path / "run", **changes), torch.randint(5, VOCABULARY, (2, 20))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "hf"]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert theirs.config.model_type == family
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    drawn = theirs.generation_config
    assert (drawn.do_sample, drawn.temperature, drawn.top_p, drawn.eos_token_id) == (True, 0.8, 0.9, 2)
    assert drawn.no_repeat_ngram_size == 4


@pytest.mark.parametrize(
    ("parts", "new"),
    [
        (LIKE_GEMMA3, ["rope_parameters", "layer_types"]),
        (LIKE_LLAMA | NOPE, ["rope_parameters", "layer_types"]),
    ],
    ids=["gemma3_text", "smollm3"],
)
def test_what_older_readers_know_says_the_same(parts: dict[str, Any], new: list[str], tmp_path: Path) -> None:
    """The keys of today are taken out again."""
    ours, tokens = saved(tmp_path / "run", **parts), torch.randint(5, VOCABULARY, (2, 20))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "hf"]) == 0
    path = tmp_path / "out/config.json"
    path.write_text(
        json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key not in new})
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("documents", ["line", "blank", "file"])
@pytest.mark.parametrize("rules", ["$A </s>", "<s> $A"])
def test_a_prompt_is_read_there_as_it_is_here(documents: str, rules: str, tmp_path: Path) -> None:
    """Whatever the rules were before the run was trained, those written are of what it has learned."""
    learned = {
        "data": {"train": "a.txt", "valid": "a.txt", "document_separator": documents},
        "train": {"steps": 1},
    }
    recipe = Recipe.model_validate({"task": "language-model", "generation": {"temperature": 0}, **learned})
    inner = Inner.from_str(train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY).tokenizer_json)
    special_tokens = [(token, inner.token_to_id(token)) for token in ("<s>", "</s>")]
    inner.post_processor = TemplateProcessing(single=rules, pair=f"{rules} $B", special_tokens=special_tokens)
    run = Run(build(config(), seed=1), Tokenizer(inner), recipe.generation, recipe)
    run.save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "hf"]) == 0
    say = pipeline("text-generation", str(tmp_path / "out"))
    for prompt in ("the king", "a dog barks"):
        found = say(prompt, max_new_tokens=12, return_full_text=False)[0]["generated_text"].rstrip("\ufffd")
        assert found == run.generate([prompt], max_new_tokens=12)[0]
        assert found == ph.load(tmp_path / "out").generate([prompt], max_new_tokens=12)[0]


BEHIND_NORMS = {"norm_first": False, "embedding_norm": True, "lm_head_bias": True, "feed_forward": "gelu"}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "char"])
def test_masks_are_filled_there_as_they_are_here(kind: str, tmp_path: Path) -> None:
    """What was hidden while it learned was a word with the blank before it, where its tokens hold that."""
    data = {"train": "a.txt", "valid": "a.txt"}
    recipe = Recipe.model_validate({"task": "masked-lm", "data": data, "train": {"steps": 1}})
    tokenizer = train_tokenizer(TEXTS * 5, Choice(kind), VOCABULARY)
    sizes = {**LIKE_GPT2, **BEHIND_NORMS, "kind": "encoder", "n_segments": 1}
    model = build(ModelConfig(vocab_size=tokenizer.vocab_size, **sizes), seed=1)
    Run(model, tokenizer, recipe.generation, recipe).save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    run, back = ph.load(tmp_path / "run"), ph.load(tmp_path / "out")
    fill = pipeline("fill-mask", str(tmp_path / "out"), top_k=12)
    for text in ("the <mask> of the sea", "a dog,<mask> barks"):
        found, again = (one.fill_mask([text])[0][0] for one in (run, back))
        wanted = [one["score"] for one in fill(text) if one["token"] not in tokenizer.special_ids]
        assert [one.probability for one in found] == pytest.approx(wanted[:5], rel=1e-4)
        assert found == again


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_hidden_spans_are_read_there_with_the_blank_before_them(kind: str, tmp_path: Path) -> None:
    data = {"train": "a.txt", "valid": "a.txt"}
    recipe = Recipe.model_validate({"task": "denoising", "data": data, "train": {"steps": 1}})
    tokenizer = train_tokenizer(TEXTS * 5, Choice(kind), VOCABULARY, sentinels=2)
    parts = BEHIND_NORMS | {"position": {"name": "learned", "offset": 2}}
    model = build(config(kind="encoder-decoder", **parts), seed=1)
    Run(model, tokenizer, recipe.generation, recipe).save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    before, after = tokenizer.encode(["the", " dog" if kind == "bpe" else "dog"])
    for name in ("<mask>", "<extra_id_1>"):
        wanted = [*before, tokenizer.token_to_id(name), *after, tokenizer.eos_id]
        assert theirs(f"the {name} dog")["input_ids"] == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": "alibi"}, "position is 'alibi', expected 'learned'"),
        (
            {"attention": {"name": "softmax", "softcap": 50.0}},
            "softcap of attention 'softmax' is 50.0, expected null",
        ),
        (
            {"attention": {"name": "softmax", "scale": 0.5}},
            "scale of attention 'softmax' is 0.5, expected null",
        ),
        ({"n_kv_heads": 1}, "n_kv_heads is 1, expected 3"),
        ({"norm_first": False}, "norm_first is false, expected true"),
        ({"scale_embedding": True}, "scale_embedding is true, expected false"),
        (
            {"block": "lstm", "position": "none"},
            "block is 'lstm', expected 'transformer'; position is 'none', expected 'learned'",
        ),
        (
            {"block": "rnn", "position": "none"},
            "block is 'rnn', expected 'transformer'; position is 'none', expected 'learned'",
        ),
        ({"kind": "encoder"}, "its model is MaskedLM, expected CausalLM"),
    ],
)
def test_what_stands_in_the_way_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        pick_family(config(**changes), "gpt2")
    assert str(error.value) == f"this model does not belong to that family: {message}"


def test_what_a_family_of_llama_cannot_say_is_named() -> None:
    ntk = LIKE_LLAMA | {"position": {"name": "rope", "scaling": "ntk", "factor": 2.0}}
    with pytest.raises(
        UserError,
        match="the nearest is 'llama': scaling of position 'rope' is 'ntk', expected 'none'; factor of",
    ):
        pick_family(config(**ntk))
    normed = {
        "norm": {"name": "rmsnorm", "eps": 1e-3},
        "attention": {"name": "softmax", "bias": False, "qk_norm": True},
    }
    with pytest.raises(UserError, match=r"family: qk_eps of attention 'softmax' is 1e-06, expected 0.001"):
        pick_family(config(**(LIKE_LLAMA | normed)), "qwen3")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("phi3", LIKE_LLAMA | {"position": LLAMA3}, "phi3: rope_scaling: rope_type is 'llama3', expected "
            "one of default, longrope"),
        ("gpt_neox", {"position": "rope", "n_kv_heads": 1}, "n_kv_heads is 1, expected 3"),
        ("opt", {}, "offset of position 'learned' is 0, expected 2"),
        ("opt", {"position": {"name": "learned", "offset": 2}, "norm": {"name": "layernorm", "eps": 1e-3}},
            "eps of norm"),
        ("bloom", {"position": "alibi", "embedding_norm": True, "d_ff": 95}, "d_ff is 95, expected 96"),
        ("mpt", LIKE_MPT | {"d_ff": 95}, "d_ff is 95, expected 96"),
        ("mpt", LIKE_MPT | {"n_kv_heads": 1}, "n_kv_heads is 1, expected 3"),
        ("bloom", {"position": "alibi"}, "embedding_norm is false, expected true"),
        ("gemma2", LIKE_GEMMA | {"norm": "rmsnorm"}, "zero_centered of norm 'rmsnorm' is false, expected "
            "true"),
        ("gemma2", LIKE_GEMMA | {"layer_pattern": [{"attention": WINDOWED}, {"attention": {**WINDOWED,
            "window": 7}}]},
         "window of attention 'softmax' is 7, expected 4"),
        ("gemma2", LIKE_GEMMA | {"layer_pattern": [{}, {"position": {"name": "rope", "theta": 100.0}}]},
         "theta of position 'rope' is 100.0, expected 10000.0"),
        ("gemma2", LIKE_GEMMA | {"d_model": 22, "head_dim": 8}, "gemma2: hidden_size (22) must be divisible "
            "by num_attention_heads"),
        ("gemma2", LIKE_GEMMA3, "qk_norm of attention 'softmax' is 'zero_centered', expected false"),
        ("gemma3_text", LIKE_GEMMA, "softcap of attention 'softmax' is 20.0, expected null"),
        ("gemma3_text", LIKE_GEMMA3 | {"norm": {"name": "rmsnorm", "zero_centered": True, "eps": 1e-3}},
         "qk_eps of attention 'softmax' is 1e-06, expected 0.001"),
        ("gemma3_text", LIKE_GEMMA3 | {"position": {"name": "rope", "scaling": "ntk", "factor": 2.0}},
         "scaling of position 'rope' is 'ntk', expected 'none'"),
        ("gemma3_text", LIKE_GEMMA3 | {"position": "alibi"}, "position is 'alibi', expected 'rope'"),
        ("smollm3", LIKE_LLAMA | NOPE | {"position": {"name": "rope", "fraction": 0.5}},
            "fraction of position 'rope' is 0.5"),
        ("smollm3", LIKE_LLAMA | {"layer_pattern": [{}, {"position": {"name": "rope", "theta": 5.0}}]},
         "theta of position 'rope' is 5.0, expected 10000.0"),
        ("smollm3", LIKE_LLAMA | {"layer_pattern": [{}, {"position": "alibi"}]}, "position is 'alibi', "
            "expected 'rope'"),
        ("olmo2", LIKE_LLAMA, "qk_norm of attention 'softmax' is false, expected 'all_heads'; sandwich_norm "
                              "is false, expected 'after'"),
        ("olmo2", LIKE_OLMO | {"sandwich_norm": True}, "sandwich_norm is true, expected 'after'"),
        ("olmo2", LIKE_OLMO | {"norm": {"name": "rmsnorm", "eps": 1e-5}}, "qk_eps of attention 'softmax' is "
            "1e-06, expected 1e-05"),
        ("llama", LIKE_LLAMA | {"position": "sinusoidal", "layer_pattern": [{"position": "rope"}]},
            "position is 'sinusoidal', expected 'rope'"),
        ("llama", LIKE_LLAMA | {"feed_forward": {"name": "swiglu", "beta": 1.702}},
            "beta of feed_forward 'swiglu' is 1.702, expected 1"),
        ("llama", LIKE_LLAMA | {"feed_forward": {"name": "swiglu", "beta": "learned"}},
            "beta of feed_forward 'swiglu' is 'learned', expected 1"),
        ("llama", LIKE_LLAMA | {"position": {"name": "rope", "fraction": 0.5}}, "fraction of position "
            "'rope' is 0.5, expected 1.0"),
    ],
)  # fmt: skip
def test_what_other_families_cannot_say_is_named(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        pick_family(config(**changes), family)
    assert message in str(error.value)


def test_the_nearest_family_is_named_where_none_fits() -> None:
    with pytest.raises(
        UserError,
        match="no published family has these components; the nearest is 'gpt2': softcap of attention",
    ):
        pick_family(config(attention={"name": "softmax", "softcap": 50.0}))


LIKE_T5 = {
    "kind": "encoder-decoder", "position": "t5", "norm": {"name": "rmsnorm", "eps": 1e-6},
        "logits_scale": True, "n_heads": 5, "head_dim": 4,
    "attention": {"name": "softmax", "scale": 1.0, "bias": False}, "feed_forward": {"name": "relu",
        "bias": False},
}  # fmt: skip
LIKE_MODERNBERT = {
    "kind": "encoder", "position": "rope", "norm": {"name": "layernorm", "bias": False},
        "embedding_norm": "first",
    "attention": {"name": "softmax", "bias": False}, "feed_forward": {"name": "geglu", "bias": False},
        "lm_head_bias": True,
}  # fmt: skip


@pytest.mark.parametrize(("family", "parts"), [("t5", LIKE_T5), ("modernbert", LIKE_MODERNBERT)])
def test_a_family_that_has_no_such_model_at_all_is_not_the_nearest(
    family: str, parts: dict[str, Any]
) -> None:
    assert pick_family(config(**parts)) == family
    with pytest.raises(UserError, match=f"the nearest is '{family}': n_kv_heads is 1, expected [35]$"):
        pick_family(config(**parts, n_kv_heads=1))
