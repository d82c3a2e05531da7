import json
from pathlib import Path

import pytest
import torch
import transformers
from tests.hf.conftest import TEXTS, VOCABULARY, edit_json, export_run, make, random_run
from tests.hf.families.laws import assert_same_tensors, open_reference, padding_mask, round_trip
from tests.hf.load_helpers import load_model
from tests.hf.save_helpers import BASES, model_config
from tests.hf.sentence_helpers import (
    read_json,
    reference_vectors,
    set_template,
    write_dense,
    write_json,
    write_modules,
)

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.hf.save import pick_family
from tokenizers import AddedToken
from tokenizers import Tokenizer as Inner

SLIDING = "sliding_attention"
CASES = json.loads((Path(__file__).parent / "embedding_gemma.json").read_text())
SIZES = CASES["published"]


over_cases = pytest.mark.parametrize("sizes", CASES.values(), ids=CASES.keys())
PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}


def make_gemma(directory, sizes, **options):
    return make(directory, "Gemma3TextConfig", auto="AutoModel", **sizes, **options)


def reference_states(model, tokens, **inputs):
    return model(tokens, **inputs).last_hidden_state


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@over_cases
def test_token_vectors_equal_reference_also_with_padding(sizes, tmp_path):
    reference, tokens = make_gemma(tmp_path, sizes), torch.randint(5, VOCABULARY, (3, 30))
    model, lengths = load_model(tmp_path), torch.tensor([30, 13, 1])
    with torch.no_grad():
        complete = model(tokens)
        assert_close(complete, reference_states(reference, tokens))
        for side in ("left", "right"):
            mask, pos = padding_mask(side, lengths, 30)
            inputs = {"attention_mask": mask.long(), "position_ids": pos.clamp(min=0)}
            vectors = model(tokens, pos.masked_fill(~mask, -1))[mask]
            assert_close(vectors, reference_states(reference, tokens, **inputs)[mask])
            assert_close(vectors, torch.cat([model(tokens[row][mask[row]][None])[0] for row in range(3)]))
        tokens[:, -1] = 4
        # the first token attends to the last one
        assert not torch.allclose(model(tokens)[:, 0], complete[:, 0], atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@over_cases
def test_export_keeps_every_tensor(sizes, dtype, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    make_gemma(checkpoint, sizes, dtype=dtype)
    _, exported_dir = round_trip(checkpoint, "--dtype", "fp32" if dtype == torch.float32 else "bf16")
    assert_same_tensors(checkpoint, exported_dir)
    reference, exported_model = (open_reference("AutoModel", path) for path in (checkpoint, exported_dir))
    assert type(exported_model) is type(reference)
    config, exported_config = (read_json(path / "config.json") for path in (checkpoint, exported_dir))
    for key in ("architectures", "use_bidirectional_attention", "layer_types"):
        assert config[key] == exported_config[key], key
    if SLIDING in config["layer_types"]:
        assert exported_model.config.sliding_window == reference.config.sliding_window
    tokens = torch.randint(5, VOCABULARY, (2, 30))
    with torch.no_grad():
        assert torch.equal(reference_states(exported_model, tokens), reference_states(reference, tokens))


def add_token(directory, token, special):
    """One more token than the model has rows, as tokenizers of Gemma 3 have one for images."""
    inner = Inner.from_file(str(directory / "tokenizer.json"))
    assert inner.get_vocab_size() == VOCABULARY
    inner.add_tokens([AddedToken(token, special=special, normalized=False)])
    inner.save(str(directory / "tokenizer.json"))


DENSE = [(48, 192, False, "linear.Identity"), (192, 48, False, "linear.Identity")]
VERSIONS = {"sentence_transformers": "5.1.0", "transformers": "4.57.0", "pytorch": "2.8.0"}
POOLING_MODES = ("cls", "mean", "max", "mean_sqrt_len", "weightedmean")


def make_published(directory):
    model = make_gemma(directory, SIZES)
    set_template(directory, [1], [2])
    add_token(directory, "<image_soft_token>", special=True)
    pooling = {f"pooling_mode_{mode}_tokens": mode == "mean" for mode in POOLING_MODES[1:]}
    pooling |= {"pooling_mode_cls_token": False, "pooling_mode_lasttoken": False, "include_prompt": True}
    write_modules(directory, {"word_embedding_dimension": 48, **pooling}, "Dense", "Dense", "Normalize")
    prompts = {"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    prompts |= {"model_type": "SentenceTransformer", "__version__": VERSIONS}
    write_json(directory / "config_sentence_transformers.json", prompts)
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})
    return model, write_dense(directory, DENSE)


@torch.no_grad()
def published_vectors(model, layers, directory, prompt):
    vectors = reference_vectors(model, directory, "mean", False, PROMPTS.get(prompt, ""))
    vectors = layers[1](layers[0](vectors))
    return vectors / vectors.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(
    "prompt", ["query", *(pytest.param(name, marks=pytest.mark.slow) for name in ("", "document"))]
)
def test_text_vectors_equal_reference(prompt, tmp_path, capsys):
    checkpoint = tmp_path / "checkpoint"
    expected = published_vectors(*make_published(checkpoint), checkpoint, prompt)
    run_dir, exported_dir = round_trip(checkpoint)
    assert capsys.readouterr().out.endswith(": a checkpoint of the family 'gemma3_text'\n")
    for directory in (checkpoint, run_dir, exported_dir):
        for fast in (False, True):
            assert_close(ph.load(directory, fast=fast).embed(TEXTS, embed_prompt=prompt), expected)
    assert main(["embed", str(checkpoint), TEXTS[0], "--prompt", prompt]) == 0
    vector = [float(value) for value in capsys.readouterr().out.split("\t")]
    assert vector == pytest.approx(expected[0].tolist(), abs=1e-4)
    for name in ("", "2_Dense", "3_Dense"):
        assert_same_tensors(checkpoint / name, exported_dir / name)
    for file in ("modules.json", "2_Dense/config.json", "3_Dense/config.json"):
        assert read_json(checkpoint / file) == read_json(exported_dir / file)
    # the token for images is only text
    assert ph.load(checkpoint).embed(["a <image_soft_token>"]).isfinite().all()
    ids = [
        transformers.AutoTokenizer.from_pretrained(path)(TEXTS)["input_ids"]
        for path in (checkpoint, exported_dir)
    ]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("use", ["role", "template"])
def test_reachable_token_without_row_is_refused(use, tmp_path):
    make_gemma(tmp_path, SIZES)
    add_token(tmp_path, "<more>", special=True)
    if use == "role":
        edit_json(tmp_path / "tokenizer_config.json", mask_token="<more>")
    elif use == "template":
        set_template(tmp_path, [1], [VOCABULARY])
    with pytest.raises(UserError, match="the tokenizer has 301 tokens, but the model only 300"):
        ph.load(tmp_path)


def test_own_encoder_is_exported_as_gemma(tmp_path):
    config = model_config(**BASES["gemma_encoder"])
    assert pick_family(config) == "gemma3_text"
    run, tokens = random_run(config), torch.randint(5, VOCABULARY, (2, 20))
    reference = transformers.AutoModel.from_pretrained(export_run(run, tmp_path)).eval()
    with torch.no_grad():
        assert_close(run.model.eval()(tokens), reference_states(reference, tokens))
    with pytest.raises(UserError, match="its model is MaskedLM, expected CausalLM or SentenceEncoder"):
        pick_family(config.model_copy(update={"lm_head": True}), "gemma3_text")
    make(tmp_path / "causal", "Gemma3TextConfig", **SIZES)
    message = r"architectures is \['Gemma3ForCausalLM'\], expected \['Gemma3TextModel'\], the only"
    with pytest.raises(UserError, match=message):
        ph.load(tmp_path / "causal")
