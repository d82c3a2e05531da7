"""Models in CTranslate2 against the runs they were made from: logits, scores, vectors, greedy texts and
beams.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch
from tests.export.conftest import TEXTS, VOCABULARY, exported, made, padded
from torch import Tensor

import polyhead.export.ctranslate2 as writing
import tokenizers
from polyhead.cli import main
from polyhead.core.extras import install_command
from polyhead.run.run import Run

Make = Callable[..., tuple[Run, Path]]
LIKE = {
    "position": "rope",
    "norm": "rmsnorm",
    "norm_first": True,
    "feed_forward": "swiglu",
    "scale_embedding": False,
}
BARE = {"name": "softmax", "bias": False}
LANGUAGE: dict[str, dict[str, Any]] = {
    "gpt2": {"position": "learned", "norm_first": True, "feed_forward": {"name": "gelu", "tanh": True}},
    "vaswani": {"n_layers": 2, "tie_embeddings": "none", "lm_head_bias": True},
    "no positions": {"position": "none", "feed_forward": {"name": "conv1x1", "activation": "silu"}},
    "llama": LIKE | {"attention": BARE, "n_kv_heads": 2, "n_layers": 2},
    "multi-query": LIKE | {"n_kv_heads": 1, "feed_forward": "glu"},
    "qwen3": LIKE | {"attention": {"name": "softmax", "bias": "qkv", "qk_norm": True}, "head_dim": 10},
    "interleaved": LIKE | {"position": {"name": "rope", "layout": "interleaved", "theta": 100.0},
        "feed_forward": "reglu"},
    "part of rope": LIKE | {"position": {"name": "rope", "fraction": 0.5}, "head_dim": 8,
        "feed_forward": "tanh"},
    "linear": LIKE | {"position": {"name": "rope", "scaling": "linear", "factor": 4.0}},
    "ntk": LIKE | {"position": {"name": "rope", "scaling": "ntk", "factor": 4.0}},
    "bloom": {"position": "alibi", "norm_first": True, "embedding_norm": True, "n_heads": 6},
    "alibi": {"position": "alibi", "n_heads": 6, "n_kv_heads": 2},
    "shaw": {"position": {"name": "shaw", "clip": 2}, "n_layers": 2},
    "shaw without values": {"position": {"name": "shaw", "clip": 3, "values": False}},
    "t5": {"position": {"name": "t5", "buckets": 6, "max_distance": 8}, "n_kv_heads": 2},
    "factors": {"scale_embedding": 3.0, "logits_scale": 4.0, "position": "rope", "norm_first": True},
    "phi": {"block": {"name": "parallel", "one_norm": True}, "norm_first": True, "position": "rope",
        "feed_forward": "gelu",
            "lm_head_bias": True},
    "neox": {"block": "parallel", "norm_first": True, "position": "rope", "feed_forward": "gelu"},
    "gemma": LIKE | {"norm": {"name": "rmsnorm", "zero_centered": True}, "sandwich_norm": True,
        "logit_softcap": 3.0,
                     "feed_forward": {"name": "geglu", "tanh": True}, "scale_embedding": True},
    "gemma3": LIKE | {"norm": {"name": "rmsnorm", "zero_centered": True}, "sandwich_norm": True,
        "n_kv_heads": 1,
                      "attention": {"name": "softmax", "bias": False, "qk_norm": "zero_centered",
                          "scale": 0.2}},
    "qwen3's eps": LIKE | {"norm": {"name": "rmsnorm", "eps": 0.1}, "attention": {"name": "softmax",
        "qk_norm": True, "qk_eps": 0.1}},
    "weightless": LIKE | {"norm": {"name": "rmsnorm", "weight": False}, "attention": {"name": "softmax",
        "qk_norm": "unweighted"}},
    "shared": LIKE | {"share_layers": True, "n_layers": 3},
    "odd": {"attention": {"name": "softmax", "scale": 0.4, "tie": "kv"}, "logits_scale": True,
            "norm": {"name": "layernorm", "bias": False, "eps": 1e-2}},
}  # fmt: skip
TRANSLATORS: dict[str, dict[str, Any]] = {
    "vaswani": {"n_layers": 2, "n_decoder_layers": 1},
    "shared": {"share_layers": True, "n_layers": 2, "n_decoder_layers": 3},
    "grouped": {"n_kv_heads": 2, "norm_first": True, "norm": "rmsnorm", "feed_forward": "swiglu"},
    "t5": {"position": {"name": "t5", "buckets": 6, "max_distance": 8}, "norm": "rmsnorm", "norm_first": True,
           "attention": {"name": "softmax", "scale": 1.0, "bias": False}, "logits_scale": True,
               "n_layers": 2},
    "bart": {"position": {"name": "learned", "offset": 2}, "embedding_norm": True, "lm_head_bias": True},
    "rope": {"position": "rope", "n_kv_heads": 1, "tie_embeddings": "target"},
    "shaw": {"position": {"name": "shaw", "clip": 2}, "head_dim": 10},
    "other ways": {"cross_attention": {"name": "softmax", "scale": 0.2, "bias": False, "tie": "kv"},
                   "decoder_attention": {"name": "softmax", "bias": "qkv"}, "tie_embeddings": "none"},
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {"position": "learned", "n_segments": 2, "embedding_norm": True, "feed_forward": "gelu"},
    "classifier": {"labels": ("a", "b"), "n_segments": 2},
    "pooled": {"lm_head": False, "pooling": {"name": "first", "activation": "gelu"}, "position": "rope"},
    "shared": {"share_layers": True, "n_layers": 3},
    "mean": {
        "lm_head": False,
        "pooling": {"name": "mean", "activation": "tanh"},
        "position": "t5",
        "n_kv_heads": 2,
    },
    "sandwich": {"norm_first": True, "sandwich_norm": True, "position": "shaw"},
}


def close(found: Any, wanted: Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(np.array(found)), wanted, rtol=1e-4, atol=1e-5)


def names(out: Path, file: str = "vocabulary.json") -> list[str]:
    found: list[str] = json.loads((out / file).read_text())
    return found


@pytest.mark.parametrize("name", LANGUAGE)
@torch.no_grad()
def test_a_language_model_says_what_the_run_says(name: str, make: Make) -> None:
    run, out = make("--to", "ctranslate2", **{"kind": "decoder"} | LANGUAGE[name])
    generator, tokens = ctranslate2.Generator(str(out)), padded()[0]
    rows = [tokens[0].tolist(), tokens[1, :4].tolist()]
    found = np.array(generator.forward_batch(rows))
    close(found[0], run.model(tokens[:1])[0])
    close(found[1, :4], run.model(tokens[1:2, :4])[0])
    # token by token, over prompts of several lengths
    prompts = run.tokenizer.encode(TEXTS)
    words = [[names(out)[i] for i in prompt] for prompt in prompts]
    said = generator.generate_batch(words, max_length=12, include_prompt_in_result=False)
    wanted = run.hypotheses(TEXTS, beam_size=1, max_new_tokens=12)
    assert [result.sequences_ids[0] for result in said] == [best.tokens for (best,) in wanted]
    assert sum(len(best.tokens) for (best,) in wanted) > 20


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translator_says_what_the_run_says(name: str, make: Make) -> None:
    run, out = make("--to", "ctranslate2", **TRANSLATORS[name])
    translator = ctranslate2.Translator(str(out))
    there = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    sources, targets = [there.encode(text).tokens for text in TEXTS], [*TEXTS[1:], TEXTS[0]]
    words = [there.encode(text, add_special_tokens=False).tokens for text in targets]
    scored = translator.score_batch(sources, words)
    for ours, theirs in zip(run.score(TEXTS, targets), scored, strict=True):
        assert sum(theirs.log_probs) == pytest.approx(ours.log_prob, rel=1e-5)
    limit = {"max_length_ratio": 0, "max_length_extra": 12}
    for beam in (1, 3):
        # both look at every length, so nothing is left to the rule of stopping
        found = translator.translate_batch(
            sources,
            beam_size=beam,
            num_hypotheses=beam,
            return_scores=True,
            max_decoding_length=12,
            length_penalty=1.0,
        )
        wanted = run.hypotheses(TEXTS, beam_size=beam, n_best=beam, length_penalty=1.0, **limit)
        for theirs, ours in zip(found, wanted, strict=True):
            said = [[there.token_to_id(word) for word in words] for words in theirs.hypotheses]
            assert said == [hypothesis.tokens for hypothesis in ours]
            # its log-probabilities of searches are rounded more than those of score_batch, by 1e-4
            assert theirs.scores == pytest.approx([hypothesis.score for hypothesis in ours], rel=5e-4)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_an_encoder_gives_the_vectors_of_the_run(name: str, make: Make) -> None:
    run, out = make("--to", "ctranslate2", **{"kind": "encoder"} | ENCODERS[name])
    encoder, tokens = ctranslate2.Encoder(str(out)), padded()[0]
    lengths, segments = [7, 4], tokens % 2 if run.config.n_segments else None
    rows = [tokens[i, :n].tolist() for i, n in enumerate(lengths)]
    kinds = None if segments is None else [segments[i, :n].tolist() for i, n in enumerate(lengths)]
    found = encoder.forward_batch(rows, token_type_ids=kinds)
    for i, n in enumerate(lengths):
        alone = run.model.encoder(
            tokens[i : i + 1, :n], None, None if segments is None else segments[i : i + 1, :n]
        )
        close(np.array(found.last_hidden_state)[i, :n], alone[0])
        if name in ("classifier", "pooled"):
            close(np.array(found.pooler_output)[i], run.model.pooler(alone)[0])
        else:
            assert found.pooler_output is None


def test_names_and_roles_of_tokens_are_those_of_the_run(make: Make) -> None:
    run, out = make("--to", "ctranslate2", **LIKE, kind="decoder")
    assert names(out) == run.tokenizer.ids_to_tokens(range(VOCABULARY))
    config = json.loads((out / "config.json").read_text())
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert config["layer_norm_epsilon"] == 1e-6
    run, out = make("--to", "ctranslate2")
    assert names(out, "shared_vocabulary.json") == run.tokenizer.ids_to_tokens(range(VOCABULARY))
    config = json.loads((out / "config.json").read_text())
    assert (
        config["decoder_start_token"]
        == run.tokenizer.ids_to_tokens([run.tokenizer.seq2seq_template.decoder_start_id])[0]
    )
    assert (out / "tokenizer_config.json").is_file()


def test_rows_without_a_token_have_a_name_all_the_same(tmp_path: Path) -> None:
    run = made(kind="decoder", **LIKE)
    wide = made(kind="decoder", **LIKE)
    wide.model = type(run.model)(run.config.model_copy(update={"vocab_size": VOCABULARY + 3})).eval()
    out = exported(wide, tmp_path, "--to", "ctranslate2")
    assert names(out)[VOCABULARY:] == ["<beyond 290>", "<beyond 291>", "<beyond 292>"]
    found = ctranslate2.Generator(str(out)).forward_batch([[7, 8]])
    with torch.no_grad():
        close(found, wide.model(torch.tensor([[7, 8]])))


@pytest.mark.parametrize(
    ("dtype", "off"), [("fp16", 0.003), ("bf16", 0.02), ("int8", 0.04), ("int8_float32", 0.04)]
)
@torch.no_grad()
def test_rounded_weights_say_nearly_the_same(dtype: str, off: float, make: Make) -> None:
    sizes = {"d_model": 64, "d_ff": 128}
    run, out = make("--to", "ctranslate2", "--dtype", dtype, **LIKE | sizes, kind="decoder")
    whole = make("--to", "ctranslate2", **LIKE | sizes, kind="decoder")[1]
    bytes_of = [(place / "model.bin").stat().st_size for place in (out, whole)]
    assert bytes_of[0] < (0.3 if "int8" in dtype else 0.55) * bytes_of[1]
    tokens, kept = padded()[0], {name: x.clone() for name, x in run.model.state_dict().items()}
    found = torch.from_numpy(np.array(ctranslate2.Generator(str(out)).forward_batch(tokens.tolist())))
    wanted = run.model(tokens)
    assert 1e-6 < (found - wanted).square().mean().sqrt() / wanted.std() < off
    assert all(torch.equal(kept[name], x) for name, x in run.model.state_dict().items())


def test_writing_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    run = made(kind="decoder", **LIKE)
    kept = {name: x.clone() for name, x in run.model.state_dict().items()}
    writing.write_ct2(run.model, run.tokenizer, tmp_path, "int8")
    assert all(torch.equal(kept[name], x) for name, x in run.model.state_dict().items())


def test_a_mistake_of_dtype_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(**LIKE).save(tmp_path / "run")
    assert (
        main(
            ["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "ctranslate2", "--dtype", "int9"]
        )
        == 2
    )
    assert "unknown dtype 'int9'; did you mean 'int8'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_the_extra_the_way_to_get_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(**LIKE).save(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, "polyhead.export.ctranslate2")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "ctranslate2"]) == 2
    assert f"this needs ctranslate2: {install_command('export')}" in capsys.readouterr().err
