"""Directories that are damaged or hostile are refused in one line that names what is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save, save_file
from tests.hf.conftest import make
from tokenizers.processors import TemplateProcessing

import polyhead as ph
import tokenizers
from polyhead import Choice
from polyhead.chat.detect_template import build_template
from polyhead.cli import main
from polyhead.core.errors import UserError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NORM = "transformer.ln_f.weight"


def edited(name: str, **values: Any) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        path = directory / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return spoil


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        found = load_file(directory / WEIGHTS)
        change(found)
        save_file(found, directory / WEIGHTS)

    return spoil


def sharded(**files: str) -> Callable[[Path], None]:
    """The weights in two files with an index; ``files`` are changes of the index: name=file."""

    def spoil(directory: Path) -> None:
        found = load_file(directory / WEIGHTS)
        (directory / WEIGHTS).unlink()
        names = sorted(found)
        parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
        for file, part in parts.items():
            save_file({name: found[name] for name in part}, directory / file)
        index = {name: file for file, part in parts.items() for name in part} | files
        (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))

    return spoil


def pickled(directory: Path) -> None:
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")


def linked(name: str) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        (directory / name).rename(directory.parent / "outside")
        (directory / name).symlink_to(directory.parent / "outside")

    return spoil


def cut(directory: Path) -> None:
    path = directory / WEIGHTS
    path.write_bytes(path.read_bytes()[:1000])


def huge_header(directory: Path) -> None:
    (directory / WEIGHTS).write_bytes((1 << 40).to_bytes(8, "little") + b"{}")


def several(found: dict[str, torch.Tensor]) -> None:
    del found[NORM]
    found["transformer.h.7.ln_1.weight"] = torch.zeros(3)
    found["transformer.wpe.weight"] = torch.zeros(31, 16)
    found["transformer.ln_f.bias"] = torch.zeros(16, dtype=torch.int8)


MISTAKES: list[tuple[Callable[[Path], Any], str]] = [
    (pickled, "{0} has no model.safetensors, only pytorch_model.bin: a pickle can run code when it is read"),
    (lambda d: (d / WEIGHTS).unlink(), "{0} has no model.safetensors and no model.safetensors.index.json"),
    (cut, "{0}/model.safetensors is damaged or cut short: "),
    (huge_header, "{0}/model.safetensors is damaged or cut short: "),
    (linked(WEIGHTS), "{0}/model.safetensors is a link out of the checkpoint"),
    (linked("tokenizer.json"), "{0}/tokenizer.json is a link out of the checkpoint"),
    (sharded(**{NORM: "../outside.safetensors"}), "{0}/" + INDEX + " names '../outside.safetensors', which is not a file"),
    (sharded(**{NORM: "/etc/passwd"}), "{0}/" + INDEX + " names '/etc/passwd', which is not a file"),
    (sharded(**{NORM: "model-3.safetensors"}), "{0}/model-3.safetensors is missing, though "),
    (sharded(more="model-1.safetensors"), "{0}/" + INDEX + " names 'more' in model-1.safetensors, which does not hold it"),
    (sharded(**{"transformer.h.0.attn.c_attn.bias": "model-2.safetensors"}),
     "{0}/model-1.safetensors holds 'transformer.h.0.attn.c_attn.bias', which the index does not say"),
    (tensors(several), "{0}: the weights do not fit config.json; missing: transformer.ln_f.weight; "
     "unused: transformer.h.7.ln_1.weight; of another shape: transformer.wpe.weight [31, 16], wanted [32, 16]; "
     "neither of F32, BF16, F16: transformer.ln_f.bias I8"),
    (tensors(lambda t: t.update({"lm_head.weight": torch.zeros(300, 16)})),
     "{0}: lm_head.weight is not transformer.wte.weight, and config.json says that they are one"),
    (edited("config.json", n_layer=3), "{0}: the weights do not fit config.json; missing: transformer.h.2."),
    (edited("config.json", n_layer=1 << 22), "{0}/config.json: n_layers: 4194304 is out of range: should be less than or equal to 10000"),
    (edited("config.json", n_layer=9000), "{0}/config.json speaks of 9000 layers, and the files hold 28 tensors"),
    (edited("config.json", n_embd=1 << 60), "{0}/config.json: n_embd is 1152921504606846976, wanted a whole number from 1"),
    (edited("config.json", n_embd="wide"), "{0}/config.json: n_embd is 'wide', wanted a whole number"),
    (edited("config.json", n_head=3), "{0}/config.json: d_model (16) must be divisible by n_heads (3)"),
    (edited("config.json", activation_function="gelu_old"), "{0}/config.json: activation_function is 'gelu_old', wanted one of"),
    (edited("config.json", add_cross_attention=True), "{0}/config.json: add_cross_attention is true, wanted false"),
    (edited("config.json", new_trick=1), "{0}/config.json: 'new_trick' not known for this family"),
    (edited("config.json", auto_map={"AutoModel": "evil.Evil"}), "{0}/config.json: auto_map names Python code"),
    (edited("config.json", quantization_config={"quant_method": "awq", "bits": 4}), "{0}/config.json: quantization_config says "
     "that the weights are quantized (by 'awq'), and only fp32, bf16 and fp16 are read; take the checkpoint that this one"),
    (edited("config.json", layer_norm_epsilon=float("nan")), "{0}/config.json: layer_norm_epsilon is nan, wanted a number"),
    (edited("config.json", model_type="gpt3"), "{0}/config.json: unknown model_type 'gpt3'; did you mean 'gptj'? Known: albert, "),
    (edited("config.json", vocab_size=299), "{0}: the weights do not fit config.json; of another shape: transformer.wte"),
    (edited("generation_config.json", eos_token_id=[900]), "{0}/generation_config.json: eos_token_id is 900, and the tokenizer"),
    (edited("generation_config.json", do_sample=True, top_p=7), "{0}/generation_config.json: top_p: 7 is out of range"),
    (edited("tokenizer_config.json", pad_token="<end>"), "tokenizer_config.json: pad_token is '<end>', which is not in the"),
    (lambda d: (d / "tokenizer.json").unlink(), "{0} has no tokenizer.json, nor vocab.json and merges.txt in its place"),
]  # fmt: skip


@pytest.mark.acceptance("F1", "F3", "F6", "F10")
@pytest.mark.parametrize(("spoil", "message"), MISTAKES)
def test_each_thing_that_is_wrong_is_named(spoil: Callable[[Path], Any], message: str, gpt2: Path) -> None:
    spoil(gpt2)
    with pytest.raises(UserError, match="^" + re.escape(message.replace("{0}", str(gpt2)))) as error:
        ph.load(gpt2)
    assert "\n" not in str(error.value)


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


def test_the_verb_says_it_in_one_line_too(
    gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pickled(gpt2)
    assert main(["import", str(gpt2), str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("polyhead: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.acceptance("F3", "F5")
def test_nothing_of_a_checkpoint_is_executed_or_fetched(gpt2: Path) -> None:
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
        "    if event in ('pickle.find_class', 'socket.connect', 'subprocess.Popen', 'os.system'): raise SystemExit(event)\n"
        "    if event == 'import' and 'evil' in args[0]: raise SystemExit(event)\n"
        "ph.build\nimport polyhead.run.run\n"
        "sys.addaudithook(audit)\n"
        f"print(len(ph.load({str(gpt2)!r}).generate(['a dog'], max_new_tokens=3)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize(
    "change",
    [
        sharded(),
        tensors(lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"].clone()})),
        tensors(
            lambda t: t.update({"transformer.h.0.attn.bias": torch.ones(1, 1, 32, 32, dtype=torch.uint8)})
        ),
        tensors(lambda t: [t.update({name.removeprefix("transformer."): t.pop(name)}) for name in list(t)]),
    ],
    ids=["in two files", "with its tied head", "with buffers of old files", "of the bare model"],
)
def test_other_forms_of_the_same_weights_are_the_same(change: Callable[[Path], Any], gpt2: Path) -> None:
    tokens, before = torch.randint(5, 300, (2, 9)), ph.load(gpt2).model
    change(gpt2)
    with torch.no_grad():
        assert torch.equal(ph.load(gpt2).model(tokens), before(tokens))


def test_roles_come_from_whichever_file_gives_them(gpt2: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = gpt2 / "tokenizer_config.json"
    config.write_text(json.dumps({"pad_token": "</s>"}))
    loaded = ph.load(gpt2)
    # ids of config.json; padding that ends is no role
    assert loaded.tokenizer.role_ids == {"bos_token": 1, "eos_token": 2}
    assert loaded.generate(["a dog", "two red dogs at sea"], max_new_tokens=4) == [
        loaded.generate([text], max_new_tokens=4)[0] for text in ("a dog", "two red dogs at sea")
    ]
    (gpt2 / "special_tokens_map.json").write_text(
        json.dumps({"pad_token": {"content": "<pad>"}, "unk_token": "<unk>"})
    )
    config.unlink()
    assert ph.load(gpt2).tokenizer.role_ids == {
        "bos_token": 1,
        "eos_token": 2,
        "pad_token": 0,
        "unk_token": 3,
    }
    edited("generation_config.json", eos_token_id=[4, 2])(gpt2)
    again = ph.load(gpt2)
    assert (again.tokenizer.eos_id, again.generation.ends) == (2, ("<mask>",))
    assert not caplog.messages


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    ("newer", "older"),
    [("<mask>", "<unk>"), ("<mask>", None), (None, "<unk>"), ("<mask>", {"content": "<unk>"})],
)
def test_where_files_disagree_about_a_role_it_is_as_the_reference_has_it(
    gpt2: Path, newer: Any, older: Any, listed: bool
) -> None:
    """The file of newer releases counts where it lists the added tokens."""
    tokens = {"added_tokens_decoder": {"3": {"content": "<unk>", "special": True}}} if listed else {}
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": newer, **tokens}
    (gpt2 / "tokenizer_config.json").write_text(json.dumps(said))
    (gpt2 / "special_tokens_map.json").write_text(json.dumps({"unk_token": older}))
    wanted = transformers.AutoTokenizer.from_pretrained(gpt2).unk_token_id
    assert wanted == ({"<mask>": 4, None: None}[newer] if listed else 3 if older else None)
    assert ph.load(gpt2).tokenizer.role_ids.get("unk_token") == wanted


def test_an_imported_run_without_roles_is_read_again(gpt2: Path, tmp_path: Path) -> None:
    (gpt2 / "tokenizer_config.json").write_text("{}")
    assert main(["import", str(gpt2), str(tmp_path / "run")]) == 0
    again = ph.load(tmp_path / "run")
    assert again.tokenizer.role_ids == {"bos_token": 1, "eos_token": 2}
    described = json.loads((tmp_path / "run/config.json").read_text())
    assert "pad_token_id" not in described
    assert (described["eos_token_id"], described["decoder_start_token_id"]) == (2, 1)


def ran(script: str, environment: dict[str, str], place: Path) -> subprocess.CompletedProcess[str]:
    """A process of its own, since huggingface_hub reads its settings once."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, cwd=place)


def test_a_name_on_the_hub_is_found_in_the_cache_and_told_where_it_is_not(tmp_path: Path) -> None:
    """A cache as huggingface_hub keeps it: links from a snapshot to blobs."""
    repository = tmp_path / "hub/models--owner--small"
    make(tmp_path / "files", "GPT2Config", n_embd=16, n_layer=1, n_head=2, n_positions=32)
    snapshot = repository / "snapshots/abc"
    for place in (snapshot, repository / "blobs", repository / "refs"):
        place.mkdir(parents=True)
    (repository / "refs/main").write_text("abc")
    for path in (tmp_path / "files").iterdir():
        path.rename(repository / "blobs" / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    script = (
        "import polyhead as ph, polyhead.core.errors\n"
        "print(ph.load('owner/small').config.n_layers)\n"
        "try: ph.load('owner/large')\n"
        "except polyhead.core.errors.UserError as error: print(error)"
    )
    done = ran(script, environment, tmp_path)
    assert done.stdout.splitlines() == [
        "1",
        "no directory 'owner/large' here, and from the hub it cannot be had: HF_HUB_OFFLINE is set, and it is not in the "
        "cache, or not all of it",
    ], done.stderr
    with pytest.raises(UserError, match="no run directory"):
        ph.load(tmp_path / "owner/small")


LLAMA = {
    "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    make(tmp_path / "qwen", "Qwen2Config", **LLAMA)
    return tmp_path / "qwen"


def rope(**options: Any) -> Callable[[Path], None]:
    return edited("config.json", rope_parameters={"rope_theta": 100.0, **options})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (rope(rope_type="dynamic", factor=2.0), "config.json: rope_parameters: rope_type is 'dynamic', wanted one of default"),
        (rope(rope_type="linear"), "config.json: rope_parameters: factor is missing"),
        (rope(rope_type="yarn", factor=2.0, beta_fast=16), "config.json: rope_parameters: beta_fast is 16, wanted 32"),
        (rope(rope_type="yarn", factor=2.0, attention_factor=2.0), "config.json: rope_parameters: attention_factor is 2.0, "),
        (rope(rope_type="default", longer=2.0), "config.json: rope_parameters: 'longer' not known for this family"),
        (edited("config.json", rope_parameters=[1]), "config.json: rope_parameters is [1], wanted an object of keys"),
        (edited("config.json", layer_types=["full_attention", "sliding_attention"]), "config.json: layer_types is "),
        (edited("config.json", layer_types=["full_attention"]), "config.json: layer_types is "),
        (edited("config.json", layer_types=None, max_window_layers="x"), "config.json: max_window_layers is "),
        (edited("config.json", model_type="llama", layer_types=None, sliding_window=None, use_sliding_window=None,
                max_window_layers=None), ": the weights do not fit config.json; unused: model.layers.0.self_attn.k_proj.bias"),
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
GEMMA3 = ("Gemma3TextConfig", {**LLAMA, "head_dim": 8, "sliding_window": 4})
SMOLLM = ("SmolLM3Config", {**LLAMA, "num_hidden_layers": 4})
OLMO = ("Olmo2Config", {**LLAMA, "rms_norm_eps": 1e-6, "num_key_value_heads": 4})
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
LOCAL_2, GLOBAL_9 = (
    {"rope_type": "default", "rope_theta": 2e4},
    {"rope_type": "linear", "rope_theta": 9e5, "factor": 8.0},
)
SCALED = ("Gemma3TextConfig", {**LLAMA, "head_dim": 8, "sliding_window": 4, "num_hidden_layers": 3,
          "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
          "rope_parameters": {"sliding_attention": LOCAL_2, "full_attention": GLOBAL_9}})  # fmt: skip


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (PHI, {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
               "original_max_position_embeddings": 64},
         "short of rope is [1.0], wanted 4 numbers above 0: one for each pair of features"),
        (PHI, {"rope_parameters": None, "rope_scaling": {"type": "su"}}, "rope_scaling: short_factor is missing"),
        (PHI, {"rope_parameters": None, "rope_scaling": {"type": "longrope", "short_factor": "x"}}, "'x', wanted a list of numbers"),
        (PHI, {"rope_parameters": None, "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4,
                                                         "factor": 5.0}, "original_max_position_embeddings": 64},
         "rope_scaling: factor is 5.0, wanted 1.0, all that is built"),
        (PHI, {"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, "rope_scaling: type is 'yarn', wanted one of default"),
        (PHI, {"rope_parameters": {"partial_rotary_factor": 0.4}}, "fraction 0.4 of head_dim 8 is 3 features"),
        (NEOX, {"attention_bias": False}, ": the weights do not fit config.json; unused: gpt_neox.layers.0.attention.dense.bias"),
        (OPT, {"_remove_final_layer_norm": True}, "_remove_final_layer_norm is true, wanted false, all that is built"),
        (OPT, {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is false, wanted true"),
        (BLOOM, {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm is true, wanted"),
        (BLOOM, {"n_inner": 100}, "n_inner is 100, wanted 128, all that is built"),
        (("Qwen2Config", LLAMA), {"use_mrope": True}, "use_mrope is true, wanted false, all that is built"),
        (("LlamaConfig", LLAMA), {"rope_interleaved": True}, "rope_interleaved is true, wanted false, all that is built"),
        (GEMMA, {"layer_types": ["full_attention"]}, "layer_types is ['full_attention'], wanted sliding_attention or full_"),
        (GEMMA, {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types is ["),
        (GEMMA, {"use_bidirectional_attention": True}, "use_bidirectional_attention is true, wanted false"),
        (GEMMA3, {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar is -1, wanted a number above 0"),
        (GEMMA3, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, wanted null; the reference does not bound"),
        (GEMMA3, {"use_bidirectional_attention": True}, "architectures is ['Gemma3ForCausalLM'], wanted ['Gemma3TextModel']"),
        (GEMMA3, {"use_bidirectional_attention": "both"}, "use_bidirectional_attention is 'both', wanted true or false"),
        (GEMMA3, {"layer_types": ["full_attention"]}, "layer_types is ['full_attention'], wanted sliding_attention or full_"),
        (GEMMA3, {"layer_types": None, "num_hidden_layers": 20_000}, "layer_types is null, wanted sliding_attention or full_"),
        (GEMMA3, {"sliding_window": None}, "sliding_window is missing"),
        (GEMMA3, {"sliding_window_pattern": 0}, "sliding_window_pattern is 0, wanted a whole number from 1"),
        (GEMMA3, {"rope_parameters": {"rope_type": "default"}}, "rope_parameters: 'rope_type' not known for this family"),
        (GEMMA3, {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
         "rope_parameters: full_attention: rope_type is 'dynamic', wanted one of default"),
        (GEMMA3, {"rope_parameters": {"sliding_attention": {"rope_tipe": "linear"}}},
         "rope_parameters: sliding_attention: 'rope_tipe' not known"),
        (GEMMA3, {"rope_parameters": None, "rope_scaling": {"type": "longrope", "factor": 8.0}},
         "rope_scaling: type is 'longrope', wanted one of default, linear"),
        (GEMMA3, {"hidden_size": 34}, "hidden_size (34) must be divisible by num_attention_heads (4)"),
        (GEMMA3, {"model_type": "gemma3", "text_config": {}}, "This Gemma 3 sees pictures; those of text alone ('gemma3_text'), such"),
        (SMOLLM, {"no_rope_layers": [1, 1, 1]}, "no_rope_layers is [1, 1, 1], wanted a 1 or 0 for each of 4 layers"),
        (SMOLLM, {"no_rope_layers": [1, 1, 1, 2]}, "no_rope_layers is [1, 1, 1, 2], wanted a list of ones and zeros"),
        (SMOLLM, {"no_rope_layers": "1110"}, "no_rope_layers is '1110', wanted a list of ones and zeros"),
        (SMOLLM, {"no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval is 0, wanted a whole number"),
        (SMOLLM, {"layer_types": ["sliding_attention"] * 4, "sliding_window": 4}, "layer_types is ['sliding_attention', "),
        (SMOLLM, {"layer_types": ["sliding_attention"] * 4, "use_sliding_window": True}, "wanted layers that see all, without"),
        *((MPT, {"attn_config": {key: value}}, f"attn_config: {key} is {shown}, wanted {wanted}") for key, value, shown, wanted in (
            ("clip_qkv", 6.0, "6.0", "null, all that is built"), ("qk_ln", True, "true", "false"), ("alibi", False, "false", "true"),
            ("alibi_bias_max", 16, "16", "8"), ("prefix_lm", True, "true", "false"), ("softmax_scale", "x", "'x'", "a number"),
            ("attn_type", "multiquery_attention", "'multiquery_attention'", "'multihead_attention'"))),
        (MPT, {"attn_config": {"qk_gn": True}}, "attn_config: 'qk_gn' not known for this family"),
        (MPT, {"logit_scale": "inv_sqrt_d_model"}, "logit_scale is 'inv_sqrt_d_model', wanted null, all that is built"),
        (MPT, {"no_bias": False}, "no_bias is false, wanted true, all that is built"),
        (MPT, {"expansion_ratio": 2}, "expansion_ratio is 2, wanted 4, all that is built"),
        (MPT, {"norm_type": "rmsnorm"}, "norm_type is 'rmsnorm', wanted one of low_precision_layernorm, layernorm"),
        (BIGCODE, {"add_cross_attention": True}, "add_cross_attention is true, wanted false, all that is built"),
        (BIGCODE, {"multi_query": 1}, "multi_query is 1, wanted true or false"),
        (BIGCODE, {"multi_query": False}, "transformer.h.0.attn.c_attn.weight [32, 16], wanted [48, 16]"),
        (BIGCODE, {"activation_function": "swiglu"}, "activation_function is 'swiglu', wanted one of"),
        (NANO, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16}},
         "rope_type is 'yarn', wanted one of default, linear, llama3"),
        (NANO, {"mlp_bias": True}, "missing: model.layers.0.mlp.fc1.bias"),
        (FALCON, {"alibi": True}, "alibi is true, wanted false, all that is built"),
        *((NEO, {"attention_layers": layers}, f"attention_layers is {layers}, wanted local or global for each of 2 layers")
          for layers in (["local"], ["local", "near"])),
        *((NEO, {"attention_layers": None, "attention_types": types}, "wanted local or global for each of 2 layers")
          for types in ([[["global"], 1]], [[["global"], 10**12]], [[[], 10**12]], [[["near"], 2]], [[["local"], "2"]], [[1, 2]],
                        [["local", "global"]], "local", 3)),
        (COMMAND, {"use_qk_norm": True}, "missing: model.layers.0.self_attn.k_norm.weight"),
        (("Cohere2Config", LLAMA), {"use_qk_norm": True}, "'use_qk_norm' not known for this family"),
        (("HeliumConfig", {**LLAMA, "head_dim": 8}), {"head_dim": 16}, "head_dim is 16, wanted hidden_size / num_attention_heads, all"),
        (("SeedOssConfig", {**LLAMA, "head_dim": 8}), {"attention_out_bias": True}, "missing: model.layers.0.self_attn.o_proj.bias"),
        (STABLE, {"qk_layernorm": True}, "missing: model.layers.0.self_attn.k_layernorm.norms.0.weight"),
        (OLD_PHI, {"qk_layernorm": True}, "missing: model.layers.0.self_attn.k_layernorm.bias"),
        (COMMAND, {"logit_scale": 0}, "logit_scale is 0, wanted a number above 0"),
        (OLMO, {"clip_qkv": 8.0}, "'clip_qkv' not known for this family"),
        (GEMMA, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0, wanted a number above 0"),
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
        (PHI, ["rope_parameters"], {"rope_theta": 10000.0, "rope_scaling": None, "embd_pdrop": 0.0, "attention_bias": False,
                                    "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}),
        (NEOX, ["rope_parameters"], {"rotary_pct": 0.25, "rotary_emb_base": 10000, "hidden_dropout_prob": 0}),
        (NEOX, ["rope_parameters", "layer_norm_eps", "use_parallel_residual"], {}),
        (BLOOM, ["hidden_size", "n_head", "n_layer"], {"n_embed": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
                                                       "seq_length": 2048, "attention_softmax_in_fp32": True}),
        (GEMMA, ["layer_types", "rope_parameters"], {"hidden_act": "gelu", "rope_theta": 10000.0, "cache_implementation": "hybrid",
                                                      "sliding_window_size": 9}),
        (SCALED, ["layer_types", "rope_parameters"], {"rope_theta": 9e5, "rope_local_base_freq": 2e4, "sliding_window_pattern": 2,
                                                      "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        (SCALED, ["rope_parameters"], {"rope_theta": 9e5, "rope_local_base_freq": 2e4, "cache_implementation": "hybrid",
                                       "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "_sliding_window_pattern": 6}),
        (SMOLLM, ["layer_types", "rope_parameters", "no_rope_layers", "tie_word_embeddings"],
         {"rope_theta": 2e6, "no_rope_layer_interval": 4, "max_window_layers": 28, "pretraining_tp": 2}),
        (SMOLLM, ["layer_types", "rope_parameters"], {"no_rope_layers": [1, 1, 1, 0, 1, 1]}),
        (OLMO, ["rope_parameters"], {"rope_theta": 10000, "rope_scaling": None, "initializer_range": 0.02}),
        (("GPT2Config", GPT2), [], {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "n_ctx": 32,
                                    "output_past": True}),  # DistilGPT2
        (("Qwen2Config", LLAMA), ["layer_types", "rope_parameters"], {"use_mrope": False, "rope_theta": 10000.0}),  # Qwen2.5
        (("LlamaConfig", LLAMA), [], {"max_sequence_length": 64, "is_llama_config": True, "rope_interleaved": False,
                                      "transformers.js_config": {"dtype": "q4"}}),  # Llama 1, SmolLM
    ],
)  # fmt: skip
def test_older_files_of_a_family_say_the_same(
    model: tuple[str, dict[str, Any]], new: list[str], old: dict[str, Any], tmp_path: Path
) -> None:
    """The keys of today are taken out, those of the files that were published stand in; the reference reads both."""
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


MIXTRAL = (
    "MixtralConfig",
    {**LLAMA, "num_local_experts": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
)
QWEN_MOE = (
    "Qwen3MoeConfig",
    {**LLAMA, "head_dim": 8, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
)
STRETCHED = {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (MIXTRAL, {"rope_parameters": None}),
        (QWEN_MOE, {"head_dim": None}),
        (GEMMA3, {"rope_parameters": None, "layer_types": None}),
        (SCALED, {"rope_parameters": {"full_attention": GLOBAL_9}}),
        (
            SCALED,
            {
                "rope_parameters": {"sliding_attention": {"rope_type": "default"}},
                "rope_local_base_freq": 77.0,
            },
        ),
        (SCALED, {"rope_scaling": STRETCHED}),
        (
            SMOLLM,
            {
                "rope_parameters": None,
                "no_rope_layers": None,
                "layer_types": None,
                "no_rope_layer_interval": None,
                "pad_token_id": 0,
            },
        ),
        (
            SMOLLM,
            {
                "no_rope_layers": None,
                "layer_types": None,
                "use_sliding_window": True,
                "sliding_window": 3,
                "pad_token_id": 0,
            },
        ),
        (OLMO, {"num_key_value_heads": None, "rope_parameters": None, "pad_token_id": 0}),
        (("LlamaConfig", LLAMA), {"rope_scaling": STRETCHED}),
        (("LlamaConfig", LLAMA), {"rope_scaling": {}, "rope_parameters": STRETCHED}),
    ],
)
def test_what_a_config_leaves_unsaid_or_says_twice_is_as_there(
    model: tuple[str, dict[str, Any]], changes: dict[str, Any], tmp_path: Path
) -> None:
    make(tmp_path, model[0], **model[1])
    path, tokens = tmp_path / "config.json", torch.randint(5, 300, (2, 9))
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    with torch.no_grad():
        wanted = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()(tokens).logits
        torch.testing.assert_close(ph.load(tmp_path).model(tokens), wanted, rtol=1e-5, atol=1e-5)


def test_a_window_that_is_null_is_none_and_one_not_given_is_theirs(tmp_path: Path) -> None:
    make(tmp_path, "MistralConfig", **LLAMA, sliding_window=None)
    assert ph.load(tmp_path).config.attention.options["window"] is None
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config.pop("sliding_window", None)
    path.write_text(json.dumps(config))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).sliding_window
    assert ph.load(tmp_path).config.attention.options["window"] == theirs == 4096


def test_what_the_tokenizer_puts_before_a_text_is_read(tmp_path: Path) -> None:
    theirs = make(tmp_path, "LlamaConfig", **LLAMA)
    inner = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    inner.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    inner.save(str(tmp_path / "tokenizer.json"))
    run, prompt = ph.load(tmp_path), "two red dogs"
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path)(prompt, return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == [1, *run.tokenizer.encode([prompt])[0]]
    out = theirs.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert prompt + run.generate([prompt], max_new_tokens=8)[0] == run.tokenizer.decode([out[0].tolist()])[
        0
    ].rstrip("\ufffd")


LAYER = "base_model.model.transformer.h.0.attn.c_proj"
LOW = {"lora_A": (1, 16), "lora_B": (16, 1)}


def test_all_that_is_read_is_fetched_from_the_hub(tmp_path: Path) -> None:
    """A hub of this machine, which has one checkpoint, an adapter of it, one behind a gate, and one whose files break off."""
    make(tmp_path / "files", "GPT2Config", n_embd=16, n_layer=1, n_head=2, n_positions=32)
    (tmp_path / "files/chat_template.jinja").write_text(build_template(Choice("plain")))
    changes = {f"{LAYER}.{half}.weight": torch.ones(shape) for half, shape in LOW.items()}
    files = {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}
    adapter = {
        "adapter_config.json": json.dumps(
            {"peft_type": "LORA", "base_model_name_or_path": "owner/small"}
        ).encode(),
        "adapter_model.safetensors": save(changes),
    }
    refused = {"none": (404, "RepoNotFound"), "gated": (403, "GatedRepo")}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0].removeprefix("/api/models")
            place, name = (*path.split("/", 3)[2:], "", "")[:2]
            status, code = refused.get(place, (200, ""))
            held = adapter if place == "adapter" else files
            listed = [{"type": "file", "path": file, "size": len(held[file]), "oid": file} for file in held]
            said = listed if name.startswith("tree") else {"id": f"owner/{place}", "sha": "a" * 40}
            content = held.get(name.rpartition("/")[2], json.dumps(said).encode()) * (status == 200)
            self.send_response(status)
            headers = {"ETag": name.rpartition("/")[2], "X-Repo-Commit": "a" * 40, "X-Error-Code": code}
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[: len(content) // 2] if place == "broken" else content)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
    }
    script = (
        "import polyhead as ph, polyhead.core.errors\n"
        "print(ph.load('owner/small').generation.chat.name)\n"
        "pair = [ph.load(f'owner/{name}').model.stack.layers[0].attn.o_proj.weight for name in ('small', 'adapter')]\n"
        "print((pair[1] - pair[0]).unique().tolist())\n"
        "for name in ('none', 'gated', 'broken'):\n"
        "    try: ph.load(f'owner/{name}')\n"
        "    except polyhead.core.errors.UserError as error: print(str(error).partition('cannot be had: ')[2])"
    )
    environment.pop("HF_HUB_OFFLINE", None)
    done = ran(script, environment, tmp_path)
    server.shutdown()
    server.server_close()
    chat, added, none, gated, broken = done.stdout.splitlines()
    assert chat == "plain", done.stderr
    assert json.loads(added) == pytest.approx(
        [8.0] * len(json.loads(added)), abs=1e-5
    )  # alpha is 8, the rank 1
    assert none.startswith("it has none of that name")
    assert gated.startswith("ask for access on its page")
    assert "closed connection" in broken
