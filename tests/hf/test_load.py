import sys
from pathlib import Path

import pytest
import torch
import transformers
from tests.hf.conftest import edit_json, edit_weights, make
from tests.hf.families.causal_cases import LLAMA
from tests.hf.load_helpers import GEMMA2, OLMO, SCALED_GEMMA3, SMOLLM
from tests.hf.tables import make_case, read_table

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model

ROWS = read_table(Path(__file__).parent / "refused_configs.txt", json_column=1)


@pytest.mark.whole
@pytest.mark.acceptance("F1", "F3", "F6", "F10")
@pytest.mark.parametrize(("case", "changes", "message"), ROWS)
def test_unsupported_config_is_refused(case, changes, message, tmp_path):
    make_case(tmp_path, case)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UserError) as error:
        load_model(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("architectures", [["GPT2ForSequenceClassification"], None])
def test_unused_tensors_with_other_architecture(architectures, gpt2):
    """The message names the model that was built and the one that config.json names."""
    edit_json(gpt2 / "config.json", architectures=architectures)
    edit_weights(gpt2, lambda tensors: tensors.update({"score.weight": torch.zeros(2, 16)}))
    name = (architectures or ["no architectures"])[0]
    message = f"score.weight. It was read as GPT2LMHeadModel; config.json names {name}"
    with pytest.raises(UserError) as error:
        ph.load(gpt2)
    assert str(error.value).endswith(message)


FORBIDDEN_EVENTS = {"pickle.find_class", "socket.connect", "os.system"}


@pytest.mark.acceptance("F3", "F5")
def test_loading_runs_no_code_of_checkpoint(gpt2):
    """Only the chat template runs, in a sandbox of its own."""
    values = {"chat_template": "{{ 1/0 }}", "tokenizer_class": "Evil", "icon": "http://127.0.0.1:9/x"}
    edit_json(gpt2 / "tokenizer_config.json", **values)
    (gpt2 / "modeling_evil.py").write_text("raise SystemExit('executed')")
    (gpt2 / "evil.pkl").write_bytes(b"cos\nsystem\n(S'echo executed'\ntR.")
    events = []
    is_active = True

    def audit(event, args):
        # a hook stays until the process ends
        if not is_active:
            return
        if (
            event in FORBIDDEN_EVENTS
            or (event == "import" and "evil" in args[0])
            or (event == "subprocess.Popen" and args[1][1:] != ["-m", "polyhead.chat.sandbox.worker"])
        ):
            events.append((event, args))

    sys.addaudithook(audit)
    try:
        text = ph.load(gpt2).generate(["a dog"], max_new_tokens=3)
    finally:
        is_active = False
    assert len(text) == 1 and not events


def test_attention_layers_of_gpt_neo_precede_attention_types(tmp_path):
    make_case(tmp_path, "gpt_neo-0")
    edit_json(tmp_path / "config.json", attention_layers=["local", "local"])
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        logits = ph.load(tmp_path).model(tokens)
        torch.testing.assert_close(logits, reference(tokens).logits, rtol=0, atol=1e-4)


PHI = ("Phi3Config", LLAMA)
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
NEOX = ("GPTNeoXConfig", SIZES | {"intermediate_size": 20})
BLOOM = ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4})
GPT2 = ("GPT2Config", {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32})
LINEAR = {"rope_type": "linear", "factor": 8.0}
OLDER_LINEAR = {"type": "linear", "factor": 8.0}
TWO_THETAS = {"rope_theta": 9e5, "rope_local_base_freq": 2e4, "rope_scaling": LINEAR}
OLDER_BLOOM = {"n_embed": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "seq_length": 2048}
OLDER_SMOLLM = {"rope_theta": 2e6, "no_rope_layer_interval": 4, "max_window_layers": 28, "pretraining_tp": 2}
OLDER_GEMMA = {"hidden_act": "gelu", "rope_theta": 10000.0, "cache_implementation": "hybrid"}
OLDER_PHI = {"rope_theta": 10000.0, "rope_scaling": None, "embd_pdrop": 0.0, "attention_bias": False}
DISTIL_GPT2 = {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "n_ctx": 32}
LLAMA_1 = {"max_sequence_length": 64, "is_llama_config": True, "rope_interleaved": False}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("model", "newer", "older"),
    [
        (PHI, ["rope_parameters"], OLDER_PHI | {"auto_map": {"AutoModelForCausalLM": "phi3.Phi3"}}),
        (NEOX, ["rope_parameters"], {"rotary_pct": 0.25, "rotary_emb_base": 10000, "hidden_dropout_prob": 0}),
        (NEOX, ["rope_parameters", "layer_norm_eps", "use_parallel_residual"], {}),
        (BLOOM, ["hidden_size", "n_head", "n_layer"], OLDER_BLOOM | {"attention_softmax_in_fp32": True}),
        (GEMMA2, ["layer_types", "rope_parameters"], OLDER_GEMMA | {"sliding_window_size": 9}),
        (SCALED_GEMMA3, ["layer_types", "rope_parameters"], TWO_THETAS | {"sliding_window_pattern": 2}),
        (SCALED_GEMMA3, ["rope_parameters"], TWO_THETAS | {"_sliding_window_pattern": 6}),
        (SMOLLM, ["layer_types", "rope_parameters", "no_rope_layers", "tie_word_embeddings"], OLDER_SMOLLM),
        (SMOLLM, ["layer_types", "rope_parameters"], {"no_rope_layers": [1, 1, 1, 0, 1, 1]}),
        (OLMO, ["rope_parameters"], {"rope_theta": 10000, "rope_scaling": None, "initializer_range": 0.02}),
        (GPT2, [], DISTIL_GPT2 | {"output_past": True}),
        (("Qwen2Config", LLAMA), ["layer_types", "rope_parameters"], {"use_mrope": False, "rope_theta": 1e4}),
        (("LlamaConfig", LLAMA), [], LLAMA_1 | {"transformers.js_config": {"dtype": "q4"}}),
        (
            ("LlamaConfig", LLAMA | {"rope_parameters": {**LINEAR, "rope_theta": 500.0}}),
            ["rope_parameters", "dtype"],
            {
                "rope_theta": 500.0,
                "rope_scaling": {"type": "linear", "factor": 8.0},
                "torch_dtype": "float32",
            },
        ),
    ],
)
def test_older_keys_have_same_meaning(model, newer, older, tmp_path):
    """Keys of published files in place of those of today; the reference reads both."""
    reference, tokens = make(tmp_path, model[0], **model[1]), torch.randint(5, 300, (2, 9))
    expected, path = ph.load(tmp_path).config, tmp_path / "config.json"
    edit_json(path, tuple(newer), **older)
    run = ph.load(tmp_path)
    assert run.config == expected
    other_model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False).eval()
    with torch.no_grad():
        for other in (reference, other_model):
            torch.testing.assert_close(run.model(tokens), other(tokens).logits, rtol=1e-5, atol=1e-5)
