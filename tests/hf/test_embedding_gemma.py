"""EmbeddingGemma, the encoder of Gemma 3, against the reference: its vectors of tokens and of texts, its
files again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.hf.conftest import TEXTS, VOCABULARY, make
from tests.hf.test_sentence_transformers import wanted, with_dense, with_steps
from torch import Tensor

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model
from polyhead.hf.save import pick_family
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as Rules

WINDOW, WHOLE = "sliding_attention", "full_attention"
SIZES: dict[str, Any] = {
    "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 6, "max_position_embeddings": 64, "sliding_window": 8,
    "use_bidirectional_attention": True,
}  # fmt: skip
SHAPES = {
    "as published": SIZES,
    "odd": {**SIZES, "hidden_size": 36, "head_dim": 10, "num_hidden_layers": 3, "sliding_window": 5,
        "query_pre_attn_scalar": 20,
            "layer_types": [WINDOW, WHOLE, WINDOW], "attention_bias": True, "tie_word_embeddings": False,
            "rope_parameters": {WINDOW: {"rope_type": "default", "rope_theta": 50.0},
                                WHOLE: {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0}}},
    "heads alike": {**SIZES, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4,
        "head_dim": 6,
                    "num_hidden_layers": 4, "sliding_window": 3, "hidden_activation": "silu",
                    "layer_types": [WHOLE, WINDOW, WINDOW, WHOLE]},
    "no window": {**SIZES, "num_hidden_layers": 2, "layer_types": [WHOLE] * 2},
}  # fmt: skip
EACH = pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES.keys())
PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}


def small(directory: Path, sizes: dict[str, Any], **more: Any) -> Any:
    return make(directory, "Gemma3TextConfig", auto="AutoModel", **sizes, **more)


def hidden(model: Any, tokens: Tensor, **given: Any) -> Tensor:
    found: Tensor = model(tokens, **given).last_hidden_state
    return found


@EACH
def test_vectors_of_tokens_are_those_of_the_reference(sizes: dict[str, Any], tmp_path: Path) -> None:
    theirs, tokens = small(tmp_path, sizes), torch.randint(5, VOCABULARY, (3, 30))
    ours = load_model(tmp_path)
    with torch.no_grad():
        vectors = ours(tokens)
        torch.testing.assert_close(vectors, hidden(theirs, tokens), rtol=1e-5, atol=1e-5)
        tokens[:, -1] = 4
        assert not torch.allclose(ours(tokens)[:, 0], vectors[:, 0], atol=1e-4)  # the first sees the last


@pytest.mark.parametrize("size", range(2, 12))
def test_a_window_ends_at_the_token_where_it_ends_there(size: int, tmp_path: Path) -> None:
    """One layer, so that what a token sees is what its vector hangs on."""
    sizes = {**SIZES, "num_hidden_layers": 1, "layer_types": [WINDOW], "sliding_window": size}
    theirs, tokens = small(tmp_path, sizes), torch.randint(5, 200, (1, 20))
    ours, other = load_model(tmp_path), tokens.clone()
    other[0, 10] += 50
    with torch.no_grad():
        seen = [(model(other)[0] != model(tokens)[0]).any(1) for model in (ours, lambda x: hidden(theirs, x))]
    assert seen[0].tolist() == seen[1].tolist() == [abs(i - 10) <= size // 2 for i in range(20)]


@pytest.mark.parametrize("side", ["left", "right"])
@EACH
def test_padding_on_either_side_does_not_matter(sizes: dict[str, Any], side: str, tmp_path: Path) -> None:
    theirs, lengths = small(tmp_path, sizes), torch.tensor([24, 13, 1])
    ours, place = load_model(tmp_path), torch.arange(24)
    real = place >= 24 - lengths[:, None] if side == "left" else place < lengths[:, None]
    tokens, pos = torch.randint(5, VOCABULARY, (3, 24)), real.long().cumsum(1) - 1
    with torch.no_grad():
        found = ours(tokens, pos.masked_fill(~real, -1))
        vectors = hidden(theirs, tokens, attention_mask=real.long(), position_ids=pos.clamp(min=0))
        torch.testing.assert_close(found[real], vectors[real], rtol=1e-5, atol=1e-5)
        alone = [ours(tokens[row][real[row]][None])[0] for row in range(3)]
        torch.testing.assert_close(found[real], torch.cat(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@EACH
def test_what_is_imported_and_exported_is_the_same_again(
    sizes: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    small(tmp_path / "a", sizes, dtype=dtype)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    as_it_came = ["--dtype", "fp32" if dtype == torch.float32 else "bf16"]
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), *as_it_came]) == 0
    before, after = (load_file(tmp_path / place / "model.safetensors") for place in "ab")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert (tensor.dtype, tensor.shape) == (after[key].dtype, after[key].shape)
        assert torch.equal(tensor.view(torch.uint8), after[key].view(torch.uint8)), key
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "a")
    again, info = transformers.AutoModel.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    assert type(again) is type(theirs)
    said = [json.loads((tmp_path / place / "config.json").read_text()) for place in "ab"]
    for key in ("architectures", "use_bidirectional_attention", "layer_types"):
        assert said[0][key] == said[1][key], key
    assert again.config.sliding_window == theirs.config.sliding_window or WINDOW not in said[0]["layer_types"]
    with torch.no_grad():
        tokens = torch.randint(5, VOCABULARY, (2, 30))
        assert torch.equal(hidden(again, tokens), hidden(theirs, tokens))


def added(directory: Path, token: str, special: bool) -> None:
    """One more token than the model has rows, as tokenizers of Gemma 3 have one for pictures."""
    inner = Rules.from_file(str(directory / "tokenizer.json"))
    assert inner.get_vocab_size() == VOCABULARY
    inner.add_tokens([AddedToken(token, special=special, normalized=False)])
    inner.save(str(directory / "tokenizer.json"))


DENSE = [(48, 192, False, "linear.Identity"), (192, 48, False, "linear.Identity")]


def folder(directory: Path) -> tuple[Any, list[torch.nn.Linear]]:
    """A small one with all the files of sentence-transformers that EmbeddingGemma has."""
    model = small(directory, SIZES)
    tokenizer = Tokenizer.load(directory)
    tokenizer.with_template([tokenizer.bos_id], [tokenizer.eos_id]).save(directory)
    added(directory, "<image_soft_token>", special=True)
    old = (
        "cls_token",
        "mean_tokens",
        "max_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    )
    said = {f"pooling_mode_{name}": name == "mean_tokens" for name in old}
    with_steps(
        directory,
        {"word_embedding_dimension": 48, **said, "include_prompt": True},
        "Dense",
        "Dense",
        "Normalize",
    )
    files = {
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer", "prompts": PROMPTS, "default_prompt_name": None,
            "similarity_fn_name": "cosine",
            "__version__": {"sentence_transformers": "5.1.0", "transformers": "4.57.0", "pytorch": "2.8.0"},
        },
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
    }  # fmt: skip
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return model, with_dense(directory, DENSE)


@pytest.mark.parametrize("prompt", ["", "query", "document"])
def test_vectors_of_texts_are_made_as_the_folder_says(
    prompt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, made = folder(tmp_path / "a")
    with torch.no_grad():
        vectors = wanted(model, tmp_path / "a", "mean", False, PROMPTS.get(prompt, ""))
        vectors = made[1](made[0](vectors))
        vectors = vectors / vectors.norm(dim=1, keepdim=True)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    assert capsys.readouterr().out.endswith("b: a checkpoint of the family 'gemma3_text'\n")
    for place in ("a", "run", "b"):
        for fast in (False, True):
            found = ph.load(tmp_path / place, fast=fast).embed(TEXTS, embed_prompt=prompt)
            torch.testing.assert_close(found, vectors, rtol=1e-5, atol=1e-5)
    for file in ("model.safetensors", "2_Dense/model.safetensors", "3_Dense/model.safetensors"):
        before, after = (load_file(tmp_path / place / file) for place in "ab")
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)
    for file in ("modules.json", "2_Dense/config.json", "3_Dense/config.json"):
        assert json.loads((tmp_path / "a" / file).read_text()) == json.loads(
            (tmp_path / "b" / file).read_text()
        )
    assert (
        ph.load(tmp_path / "a").embed(["a <image_soft_token>"]).isfinite().all()
    )  # only text, of known tokens
    ours, theirs = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / place)(TEXTS)["input_ids"] for place in "ba"
    )
    assert ours == theirs


@pytest.mark.parametrize("change", ["a word", "a role", "around texts"])
def test_a_token_that_the_model_does_not_know_is_refused_if_it_can_be_met(
    change: str, tmp_path: Path
) -> None:
    small(tmp_path, SIZES)
    added(tmp_path, "<more>", special=change != "a word")
    if change == "a role":
        path = tmp_path / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token": "<more>"}))
    elif change == "around texts":
        tokenizer = Tokenizer.load(tmp_path)
        tokenizer.with_template([tokenizer.bos_id], [VOCABULARY]).save(tmp_path)
    with pytest.raises(UserError, match="the tokenizer has 301 tokens, but the model only 300"):
        ph.load(tmp_path)


def test_embed_takes_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, made = folder(tmp_path)
    with torch.no_grad():
        vector = made[1](made[0](wanted(model, tmp_path, "mean", False, PROMPTS["query"])))[0]
    assert main(["embed", str(tmp_path), TEXTS[0], "--prompt", "query"]) == 0
    printed = [float(value) for value in capsys.readouterr().out.split("\t")]
    assert printed == pytest.approx((vector / vector.norm()).tolist(), abs=1e-4)
    assert main(["generate", str(tmp_path), "the king"]) == 2
    assert capsys.readouterr().err.endswith("an encoder without a head: use embed or attend\n")


def test_an_encoder_with_these_parts_is_one_of_the_family(tmp_path: Path) -> None:
    local = {"name": "softmax", "bias": False, "qk_norm": "zero_centered"}
    config = ModelConfig.model_validate({
        "kind": "encoder", "lm_head": False, "vocab_size": VOCABULARY, "d_model": 24, "n_heads": 3,
        "n_layers": 3, "max_len": 32,
        "position": {"name": "rope", "theta": 1e6}, "norm": {"name": "rmsnorm", "zero_centered": True},
            "norm_first": True,
        "sandwich_norm": True, "feed_forward": {"name": "geglu", "tanh": True}, "attention": local,
        "layer_pattern": [{"attention": {**local, "window": 4}, "position": {"name": "rope", "theta": 500.0}},
            {}],
    })  # fmt: skip
    assert pick_family(config) == "gemma3_text"
    model, tokens = build(config, seed=1).eval(), torch.randint(5, VOCABULARY, (2, 20))
    run = Run(model, train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY), GenerationConfig())
    run.save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), hidden(theirs, tokens), rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="its model is MaskedLM, expected CausalLM or SentenceEncoder"):
        pick_family(config.model_copy(update={"lm_head": True}), "gemma3_text")


def test_one_that_says_what_follows_and_sees_it_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "Gemma3TextConfig", **SIZES)
    with pytest.raises(
        UserError, match=r"architectures is \['Gemma3ForCausalLM'\], expected \['Gemma3TextModel'\], the only"
    ):
        ph.load(tmp_path)
