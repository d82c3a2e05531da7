"""Directories that are damaged or hostile are refused in one line that names what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hf.conftest import make
from tests.hf.load_helpers import GEMMA3, LLAMA, OLMO, SCALED, SMOLLM, edited, tensors

import polyhead as ph
from polyhead.core.errors import UserError


@pytest.mark.parametrize("names", [["GPT2ForSequenceClassification"], None])
def test_what_a_model_was_read_as_is_told_where_its_file_names_another(
    names: list[str] | None, gpt2: Path
) -> None:
    edited("config.json", architectures=names)(gpt2)
    tensors(lambda t: t.update({"score.weight": torch.zeros(2, 16)}))(gpt2)
    said = (names or ["no architectures"])[0]
    with pytest.raises(UserError) as error:
        ph.load(gpt2)
    assert str(error.value).endswith(
        f"score.weight. It was read as GPT2LMHeadModel; config.json names {said}"
    )


@pytest.mark.acceptance("F3", "F5")
def test_nothing_of_a_checkpoint_is_executed_or_fetched(gpt2: Path) -> None:
    """But its chat template, in a sandbox."""
    edited(
        "tokenizer_config.json",
        chat_template="{{ 1/0 }}",
        tokenizer_class="Evil",
        icon="http://127.0.0.1:9/x",
    )(gpt2)
    (gpt2 / "modeling_evil.py").write_text("raise SystemExit('executed')")
    (gpt2 / "evil.pkl").write_bytes(b"cos\nsystem\n(S'echo executed'\ntR.")
    script = (
        "import sys, polyhead as ph\n"
        "def audit(event, args):\n"
        "    worker = ['-m', 'polyhead.chat.sandbox.worker']\n"
        "    sandbox = event == 'subprocess.Popen' and args[1][1:] == worker\n"
        "    events = 'pickle.find_class', 'socket.connect', 'subprocess.Popen', 'os.system'\n"
        "    if event in events and not sandbox: raise "
        "SystemExit(event)\n    if event == 'import' and 'evil' in args[0]: raise "
        "SystemExit(event)\nph.build\nimport "
        f"polyhead.run.run\nsys.addaudithook(audit)\nprint(len(ph.load({str(gpt2)!r}).generate(['a dog'], "
        "max_new_tokens=3)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    make(tmp_path / "qwen", "Qwen2Config", **LLAMA)
    return tmp_path / "qwen"


def rope(**options: Any) -> Callable[[Path], None]:
    return edited("config.json", rope_parameters={"rope_theta": 100.0, **options})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (rope(rope_type="dynamic", factor=2.0), "config.json: rope_parameters: rope_type is 'dynamic', "
                                                "expected one of default"),
        (rope(rope_type="linear"), "config.json: rope_parameters: factor is missing"),
        (rope(rope_type="yarn", factor=2.0, beta_fast=16), "config.json: rope_parameters: beta_fast is 16, "
            "expected 32"),
        (rope(rope_type="yarn", factor=2.0, attention_factor=2.0), "config.json: rope_parameters: "
            "attention_factor is 2.0, "),
        (rope(rope_type="default", longer=2.0), "config.json: rope_parameters: 'longer' unknown for this "
                                                "family"),
        (edited("config.json", rope_parameters=[1]), "config.json: rope_parameters is [1], expected an "
            "object"),
        (edited("config.json", layer_types=["full_attention", "sliding_attention"]), "config.json: "
            "layer_types is "),
        (edited("config.json", layer_types=["full_attention"]), "config.json: layer_types is "),
        (edited("config.json", layer_types=None, max_window_layers="x"),
            "config.json: max_window_layers is "),
        (edited("config.json", model_type="llama", layer_types=None, sliding_window=None,
            use_sliding_window=None,
                max_window_layers=None), ": the weights do not match config.json; unused: "
                        "model.layers.0.self_attn.k_proj.bias"),
        (edited("config.json", num_key_value_heads=3), "config.json: n_kv_heads (3) must divide n_heads (4)"),
    ],
)  # fmt: skip
def test_what_is_not_built_is_refused(spoil: Callable[[Path], Any], message: str, qwen: Path) -> None:
    spoil(qwen)
    with pytest.raises(UserError, match="^" + re.escape(str(qwen)) + "/?" + re.escape(message)) as error:
        ph.load(qwen)
    assert "\n" not in str(error.value)


GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
PHI = ("Phi3Config", {**LLAMA})
NEOX = (
    "GPTNeoXConfig",
    {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20},
)
OPT = ("OPTConfig", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 20})
BLOOM = ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4})
GEMMA = ("Gemma2Config", {**LLAMA, "head_dim": 8, "sliding_window": 4})
BIGCODE = ("GPTBigCodeConfig", GPT2)
MPT = ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64})
NANO = ("NanoChatConfig", LLAMA)
NEO = (
    "GPTNeoConfig",
    {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
)
COMMAND = ("CohereConfig", LLAMA)
STABLE, OLD_PHI = ("StableLmConfig", LLAMA), ("PhiConfig", LLAMA)
FALCON = ("FalconConfig", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4})


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (PHI, {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
               "original_max_position_embeddings": 64},
         "short of rope is [1.0], expected 4 numbers above 0, one for each pair of features"),
        (PHI, {"rope_parameters": None, "rope_scaling": {"type": "su"}}, "rope_scaling: short_factor is "
            "missing"),
        (PHI, {"rope_parameters": None, "rope_scaling": {"type": "longrope", "short_factor": "x"}},
            "'x', expected a list of numbers"),
        (PHI, {"rope_parameters": None, "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4,
            "long_factor": [1.0] * 4,
                                                         "factor": 5.0},
                                                         "original_max_position_embeddings": 64},
         "rope_scaling: factor is 5.0, expected 1.0, the only supported value"),
        (PHI, {"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, "rope_scaling: type is 'yarn', "
            "expected one of default"),
        (PHI, {"rope_parameters": {"partial_rotary_factor": 0.4}},
            "fraction 0.4 of head_dim 8 is 3 features"),
        (NEOX, {"attention_bias": False}, ": the weights do not match config.json; unused: "
                                          "gpt_neox.layers.0.attention.dense.bias"),
        (OPT, {"_remove_final_layer_norm": True}, "_remove_final_layer_norm is true, expected false, the "
            "only supported value"),
        (OPT, {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is false, expected "
            "true"),
        (BLOOM, {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernor"
            "m is true, expected"),
        (BLOOM, {"n_inner": 100}, "n_inner is 100, expected 128, the only supported value"),
        (("Qwen2Config", LLAMA), {"use_mrope": True}, "use_mrope is true, expected false, the only "
            "supported value"),
        (("LlamaConfig", LLAMA), {"rope_interleaved": True}, "rope_interleaved is true, expected false, the "
            "only supported value"),
        (GEMMA, {"layer_types": ["full_attention"]}, "layer_types is ['full_attention'], expected "
            "sliding_attention or full_"),
        (GEMMA, {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types is ["),
        (GEMMA, {"use_bidirectional_attention": True}, "use_bidirectional_attention is true, expected false"),
        (GEMMA3, {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar is -1, expected a number above 0"),
        (GEMMA3, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, expected null; the "
            "reference implementation ignores"),
        (GEMMA3, {"use_bidirectional_attention": True}, "architectures is ['Gemma3ForCausalLM'], expected "
            "['Gemma3TextModel']"),
        (GEMMA3, {"use_bidirectional_attention": "both"}, "use_bidirectional_attention is 'both', expected "
            "true or false"),
        (GEMMA3, {"layer_types": ["full_attention"]}, "layer_types is ['full_attention'], expected "
            "sliding_attention or full_"),
        (GEMMA3, {"layer_types": None, "num_hidden_layers": 20_000}, "layer_types is null, expected "
            "sliding_attention or full_"),
        (GEMMA3, {"sliding_window": None}, "sliding_window is missing"),
        (GEMMA3, {"sliding_window_pattern": 0}, "sliding_window_pattern is 0, expected an integer from 1"),
        (GEMMA3, {"rope_parameters": {"rope_type": "default"}}, "rope_parameters: 'rope_type' unknown for "
            "this family"),
        (GEMMA3, {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
         "rope_parameters: full_attention: rope_type is 'dynamic', expected one of default"),
        (GEMMA3, {"rope_parameters": {"sliding_attention": {"rope_tipe": "linear"}}},
         "rope_parameters: sliding_attention: 'rope_tipe' unknown"),
        (GEMMA3, {"rope_parameters": None, "rope_scaling": {"type": "longrope", "factor": 8.0}},
         "rope_scaling: type is 'longrope', expected one of default, linear"),
        (GEMMA3, {"hidden_size": 34}, "hidden_size (34) must be divisible by num_attention_heads (4)"),
        (GEMMA3, {"model_type": "gemma3", "text_config": {}}, "This Gemma 3 is multimodal; text-only models "
            "('gemma3_text'), such"),
        (SMOLLM, {"no_rope_layers": [1, 1, 1]}, "no_rope_layers is [1, 1, 1], expected a 1 or 0 for each of "
                                                "4 layers"),
        (SMOLLM, {"no_rope_layers": [1, 1, 1, 2]}, "no_rope_layers is [1, 1, 1, 2], expected a list of 0 "
            "and 1"),
        (SMOLLM, {"no_rope_layers": "1110"}, "no_rope_layers is '1110', expected a list of 0 and 1"),
        (SMOLLM, {"no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval is 0, "
            "expected an integer"),
        (SMOLLM, {"layer_types": ["sliding_attention"] * 4, "sliding_window": 4}, "layer_types is "
            "['sliding_attention', "),
        (SMOLLM, {"layer_types": ["sliding_attention"] * 4, "use_sliding_window": True},
            "expected layers with full attention, without"),
        *((MPT, {"attn_config": {key: value}}, f"attn_config: {key} is {shown}, expected {wanted}") for key,
            value, shown, wanted in (
            ("clip_qkv", 6.0, "6.0", "null, the only supported value"), ("qk_ln", True, "true", "false"),
                ("alibi", False, "false", "true"),
            ("alibi_bias_max", 16, "16", "8"), ("prefix_lm", True, "true", "false"), ("softmax_scale", "x",
                "'x'", "a number"),
            ("attn_type", "multiquery_attention", "'multiquery_attention'", "'multihead_attention'"))),
        (MPT, {"attn_config": {"qk_gn": True}}, "attn_config: 'qk_gn' unknown for this family"),
        (MPT, {"logit_scale": "inv_sqrt_d_model"}, "logit_scale is 'inv_sqrt_d_model', expected null, the "
            "only supported value"),
        (MPT, {"no_bias": False}, "no_bias is false, expected true, the only supported value"),
        (MPT, {"expansion_ratio": 2}, "expansion_ratio is 2, expected 4, the only supported value"),
        (MPT, {"norm_type": "rmsnorm"}, "norm_type is 'rmsnorm', expected one of low_precision_layernorm, "
                                        "layernorm"),
        (BIGCODE, {"add_cross_attention": True}, "add_cross_attention is true, expected false, the only "
                                                 "supported value"),
        (BIGCODE, {"multi_query": 1}, "multi_query is 1, expected true or false"),
        (BIGCODE, {"multi_query": False}, "transformer.h.0.attn.c_attn.weight [32, 16], expected [48, 16]"),
        (BIGCODE, {"activation_function": "swiglu"}, "activation_function is 'swiglu', expected one of"),
        (NANO, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
            "original_max_position_embeddings": 16}},
         "rope_type is 'yarn', expected one of default, linear, llama3"),
        (NANO, {"mlp_bias": True}, "missing: model.layers.0.mlp.fc1.bias"),
        (FALCON, {"alibi": True}, "alibi is true, expected false, the only supported value"),
        *((NEO, {"attention_layers": layers}, f"attention_layers is {layers}, expected local or global for "
                                              "each of 2 layers")
          for layers in (["local"], ["local", "near"])),
        *((NEO, {"attention_layers": None, "attention_types": types}, "expected local or global for each of "
            "2 layers")
          for types in ([[["global"], 1]], [[["global"], 10**12]], [[[], 10**12]], [[["near"], 2]],
              [[["local"], "2"]], [[1, 2]],
                        [["local", "global"]], "local", 3)),
        (COMMAND, {"use_qk_norm": True}, "missing: model.layers.0.self_attn.k_norm.weight"),
        (("Cohere2Config", LLAMA), {"use_qk_norm": True}, "'use_qk_norm' unknown for this family"),
        (("HeliumConfig", {**LLAMA, "head_dim": 8}), {"head_dim": 16}, "head_dim is 16, expected "
            "hidden_size / num_attention_heads, the only"),
        (("SeedOssConfig", {**LLAMA, "head_dim": 8}), {"attention_out_bias": True}, "missing: "
            "model.layers.0.self_attn.o_proj.bias"),
        (STABLE, {"qk_layernorm": True}, "missing: model.layers.0.self_attn.k_layernorm.norms.0.weight"),
        (OLD_PHI, {"qk_layernorm": True}, "missing: model.layers.0.self_attn.k_layernorm.bias"),
        (COMMAND, {"logit_scale": 0}, "logit_scale is 0, expected a number above 0"),
        (OLMO, {"clip_qkv": 8.0}, "'clip_qkv' unknown for this family"),
        (GEMMA, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0, expected a number above 0"),
    ],
)  # fmt: skip
def test_what_a_family_has_and_is_not_built_is_refused(
    model: tuple[str, dict[str, Any]], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make(tmp_path, model[0], **model[1])
    edited("config.json", **changes)(tmp_path)
    with pytest.raises(UserError) as error:
        ph.load(tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_layers_of_gpt_neo_are_those_of_its_list_where_a_file_has_pairs_too(tmp_path: Path) -> None:
    name, sizes = NEO
    make(tmp_path, name, **sizes, window_size=3)
    edited("config.json", attention_layers=["local", "local"])(tmp_path)
    theirs, tokens = transformers.AutoModelForCausalLM.from_pretrained(tmp_path), torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            ph.load(tmp_path).model(tokens), theirs.eval()(tokens).logits, rtol=0, atol=1e-4
        )


@pytest.mark.parametrize(
    ("model", "new", "old"),
    [
        (PHI, ["rope_parameters"], {"rope_theta": 10000.0, "rope_scaling": None, "embd_pdrop": 0.0,
            "attention_bias": False,
                                    "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}),
        (NEOX, ["rope_parameters"], {"rotary_pct": 0.25, "rotary_emb_base": 10000, "hidden_dropout_prob": 0}),
        (NEOX, ["rope_parameters", "layer_norm_eps", "use_parallel_residual"], {}),
        (BLOOM, ["hidden_size", "n_head", "n_layer"], {"n_embed": 32, "num_attention_heads": 4,
            "num_hidden_layers": 2,
                                                       "seq_length": 2048,
                                                       "attention_softmax_in_fp32": True}),
        (GEMMA, ["layer_types", "rope_parameters"], {"hidden_act": "gelu", "rope_theta": 10000.0,
            "cache_implementation": "hybrid",
                                                      "sliding_window_size": 9}),
        (SCALED, ["layer_types", "rope_parameters"], {"rope_theta": 9e5, "rope_local_base_freq": 2e4,
            "sliding_window_pattern": 2,
                                                      "rope_scaling": {"rope_type": "linear",
                                                          "factor": 8.0}}),
        (SCALED, ["rope_parameters"], {"rope_theta": 9e5, "rope_local_base_freq": 2e4,
            "cache_implementation": "hybrid",
                                       "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                                           "_sliding_window_pattern": 6}),
        (SMOLLM, ["layer_types", "rope_parameters", "no_rope_layers", "tie_word_embeddings"],
         {"rope_theta": 2e6, "no_rope_layer_interval": 4, "max_window_layers": 28, "pretraining_tp": 2}),
        (SMOLLM, ["layer_types", "rope_parameters"], {"no_rope_layers": [1, 1, 1, 0, 1, 1]}),
        (OLMO, ["rope_parameters"], {"rope_theta": 10000, "rope_scaling": None, "initializer_range": 0.02}),
        (("GPT2Config", GPT2), [], {"_num_labels": 1, "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0}, "n_ctx": 32,
                                    "output_past": True}),  # DistilGPT2
        (("Qwen2Config", LLAMA), ["layer_types", "rope_parameters"], {"use_mrope": False,
            "rope_theta": 10000.0}),  # Qwen2.5
        (("LlamaConfig", LLAMA), [], {"max_sequence_length": 64, "is_llama_config": True,
            "rope_interleaved": False,
                                      "transformers.js_config": {"dtype": "q4"}}),  # Llama 1, SmolLM
    ],
)  # fmt: skip
def test_older_files_of_a_family_say_the_same(
    model: tuple[str, dict[str, Any]], new: list[str], old: dict[str, Any], tmp_path: Path
) -> None:
    """The keys of today are taken out, those of the files that were published stand in; the reference reads
    both.
    """
    theirs, tokens = make(tmp_path, model[0], **model[1]), torch.randint(5, 300, (2, 9))
    before, path = ph.load(tmp_path).config, tmp_path / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key not in new}
    path.write_text(json.dumps(config | old))
    run = ph.load(tmp_path)
    assert run.config == before
    with torch.no_grad():
        torch.testing.assert_close(run.model(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False)
        torch.testing.assert_close(run.model(tokens), again.eval()(tokens).logits, rtol=1e-5, atol=1e-5)


def test_configs_of_older_writers_say_the_same(tmp_path: Path) -> None:
    parameters = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    make(tmp_path, "LlamaConfig", **LLAMA, rope_parameters=parameters)
    path, tokens = tmp_path / "config.json", torch.randint(5, 300, (2, 9))
    config, before = json.loads(path.read_text()), ph.load(tmp_path).config
    del config["rope_parameters"], config["dtype"]
    old = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}, "torch_dtype": "float32"}
    path.write_text(json.dumps(config | old))
    assert ph.load(tmp_path).config == before
    with torch.no_grad():
        wanted = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()(tokens).logits
        torch.testing.assert_close(ph.load(tmp_path).model(tokens), wanted, rtol=1e-5, atol=1e-5)
