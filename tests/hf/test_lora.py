import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.hf.conftest import edit_json, make
from tests.hf.load_helpers import REFUSALS
from tests.hf.lora_helpers import IDS, LLAMA, assert_logits_equal, merge_lora, random_lora, write_adapter
from torch import nn

import polyhead as ph
from polyhead.cli import main

GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
ALPHAS = {"layers.1.self_attn.q_proj": 3, "o_proj": 5}
ALPHA_SCALES = {"0.self_attn.q_proj": 4, "1.self_attn.q_proj": 3 / 4, "o_proj": 5 / 2}


@pytest.mark.parametrize(
    ("use_rslora", "alphas", "scales"),
    [
        (False, {}, {"q_proj": 16 / 4, "o_proj": 16 / 2}),
        (True, {}, {"q_proj": 16 / 2, "o_proj": 16 / 2**0.5}),
        (False, ALPHAS, ALPHA_SCALES),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_of_low_rank_changes(use_rslora, alphas, scales, dtype, tmp_path):
    """alpha / r, or alpha / sqrt(r); ranks and alphas differ between modules."""
    base = tmp_path / "base"
    make(base, "LlamaConfig", dtype=dtype, **LLAMA)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tensors = random_lora(model, {"q_proj": 4, "o_proj": 2})
    options = {"use_rslora": use_rslora, "alpha_pattern": alphas, "rank_pattern": {"o_proj": 2}}
    adapter = write_adapter(tmp_path / "adapter", base, tensors, lora_alpha=16, **options)
    with pytest.raises(AssertionError):
        assert_logits_equal(adapter, model)
    merge_lora(model, tensors, scales)
    assert_logits_equal(adapter, model)


def test_transposed_weights_and_biases_of_gpt2(tmp_path):
    base = tmp_path / "base"
    model, ranks = make(base, "GPT2Config", **GPT2), {"attn.c_attn": 4, "attn.c_proj": 4, "mlp.c_fc": 4}
    tensors = random_lora(model, ranks, is_transposed=True)
    biases = {name: 1 + p.detach() for name, p in model.named_parameters() if name.endswith("c_attn.bias")}
    options = {"fan_in_fan_out": True, "bias": "lora_only"}
    adapter = write_adapter(tmp_path / "adapter", base, tensors | biases, **options)
    merge_lora(model, tensors, dict.fromkeys(ranks, 2.0), is_transposed=True)
    model.load_state_dict(biases, strict=False)
    assert_logits_equal(adapter, model)
    # OpenAI's own files have names without the prefix
    weights = load_file(base / "model.safetensors")
    weights = {name.removeprefix("transformer."): x for name, x in weights.items()}
    save_file(weights, base / "model.safetensors")
    assert_logits_equal(adapter, model)


def test_embedding_lora_and_saved_modules(tmp_path):
    """An embedding has a change and is saved with it; the head is new."""
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=False, **LLAMA)
    shapes, generator = ((4, 300), (32, 4), (300, 32), (300, 32)), torch.Generator().manual_seed(3)
    a, b, rows, head = (torch.randn(*shape, generator=generator) for shape in shapes)
    name = "model.embed_tokens"
    tensors = {f"{name}.lora_embedding_A": a * 0.2, f"{name}.lora_embedding_B": b * 0.2}
    tensors |= {f"{name}.base_layer.weight": rows, "lm_head.weight": head}
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", tensors, modules_to_save=["lm_head"])
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(rows + 2 * (b * 0.2 @ (a * 0.2)).T)
        model.lm_head.weight.copy_(head)
    assert_logits_equal(adapter, model)


def test_conv1d_is_transposed_linear_is_not(tmp_path):
    """PEFT goes by the type of each module; its config has the value for the last of them."""
    model = make(tmp_path / "base", "GPT2Config", **GPT2, tie_word_embeddings=False)
    conv1d = random_lora(model, {"c_proj": 4}, is_transposed=True)
    linear = random_lora(model, {"lm_head": 4})
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", conv1d | linear, fan_in_fan_out=False)
    merge_lora(model, conv1d, {"c_proj": 2.0}, is_transposed=True)
    merge_lora(model, linear, {"lm_head": 2.0})
    assert_logits_equal(adapter, model)


def test_adapter_of_bare_encoder(tmp_path):
    model = make(tmp_path / "base", "BertConfig", auto="AutoModel", pad_token_id=0, **BERT)
    tensors, options = random_lora(model, {"query": 4, "value": 4}), {"task_type": "FEATURE_EXTRACTION"}
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", tensors, **options)
    merge_lora(model, tensors, {"query": 2.0, "value": 2.0})
    with torch.no_grad():
        vectors, expected = ph.load(adapter).model(IDS), model(IDS).last_hidden_state
        torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("auto", ["AutoModelForMaskedLM", "AutoModel"])
@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_classification_head_in_adapter(family, auto, tmp_path):
    """The base fills masks or is bare; a base with as many labels keeps their names."""
    base, classifier = tmp_path / "base", tmp_path / "classifier"
    options = {"auto": "AutoModelForSequenceClassification", "num_labels": 3, "pad_token_id": 0}
    model = make(classifier, f"{family}Config", **options, **BERT)
    base_class = getattr(transformers, auto)
    if (auto, family) == ("AutoModelForMaskedLM", "Bert"):  # with the pooler that it was trained with
        base_class = transformers.BertForPreTraining
    base_class.from_pretrained(classifier).save_pretrained(base)
    edit_json(base / "config.json", ("id2label", "label2id"))
    shutil.copy(classifier / "tokenizer.json", base)
    lora = random_lora(model, {"query": 4, "value": 4})
    head = {name: x for name, x in model.state_dict().items() if name.startswith("classifier.")}
    adapter = write_adapter(tmp_path / "adapter", base, lora | head, task_type="SEQ_CLS")
    merge_lora(model, lora, {"query": 2.0, "value": 2.0})
    assert_logits_equal(adapter, model)
    default = ("LABEL_0", "LABEL_1", "LABEL_2")
    assert ph.load(adapter).config.labels == default
    names = {"0": "bad", "1": "so so", "2": "good"}
    for id2label, labels in ((names, tuple(names.values())), ({"0": "no", "1": "yes"}, default)):
        shutil.copytree(classifier, base, dirs_exist_ok=True)
        edit_json(base / "config.json", id2label=id2label, label2id=None)
        assert_logits_equal(adapter, model)
        assert ph.load(adapter).config.labels == labels


@pytest.fixture
def llama(tmp_path):
    return make(tmp_path / "base", "LlamaConfig", **LLAMA)


def write_lora(model, directory, **keys):
    tensors = random_lora(model, {"q_proj": 4})
    return write_adapter(directory / "adapter", directory / "base", tensors, **keys), tensors


CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_tokenizer_and_chat_template_of_adapter(llama, tmp_path):
    adapter, tensors = write_lora(llama, tmp_path)
    assert ph.load(adapter).generation.chat is None
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "base" / file, adapter)
    (adapter / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    assert main(["import", str(adapter), str(tmp_path / "run")]) == 0
    chat = ph.load(tmp_path / "run").generation.chat
    assert chat is not None and chat.name == "jinja"
    merge_lora(llama, tensors, {"q_proj": 2.0})
    assert_logits_equal(tmp_path / "run", llama)


def load_error(adapter, capsys):
    capsys.readouterr()
    assert main(["generate", str(adapter), "the king"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.whole
@pytest.mark.parametrize(("keys", "message"), REFUSALS["adapters"])
def test_unsupported_adapter_config_is_refused(keys, message, llama, tmp_path, capsys):
    adapter, _ = write_lora(llama, tmp_path, **keys)
    assert message in load_error(adapter, capsys)


@pytest.mark.parametrize(("shapes", "message"), REFUSALS["adapter tensors"])
def test_mismatched_tensors_are_refused(shapes, message, tmp_path, capsys):
    make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    assert message in load_error(write_adapter(tmp_path / "adapter", tmp_path / "base", tensors), capsys)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.bool], ids=str)
def test_adapter_tensors_of_other_dtypes_are_refused(dtype, llama, tmp_path, capsys):
    adapter, tensors = write_lora(llama, tmp_path)
    write_adapter(adapter, tmp_path / "base", {name: x.to(dtype) for name, x in tensors.items()})
    assert "expected one of F32, BF16, F16" in load_error(adapter, capsys)


def test_adapters_as_base_and_pickles_are_refused(llama, tmp_path, capsys):
    adapter, tensors = write_lora(llama, tmp_path)
    for base in (adapter, tmp_path / "second"):
        second = write_adapter(tmp_path / "second", base, tensors)
        assert "expected a full checkpoint; this one is itself an adapter" in load_error(second, capsys)
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    assert "only adapter_model.bin: pickle files can run code" in load_error(adapter, capsys)
    # tools that merge leave the file of the adapter, which then has no effect
    write_adapter(tmp_path / "base", tmp_path / "base", tensors)
    assert_logits_equal(tmp_path / "base", llama)


def test_training_starts_from_adapter(llama, tmp_path):
    adapter, tensors = write_lora(llama, tmp_path)
    (tmp_path / "t.txt").write_text("the king of the sea\n" * 50)
    (tmp_path / "r.yaml").write_text(
        f"task: language-model\ninit_from: {adapter}\n"
        f"data: {{root: {tmp_path}, train: t.txt, valid_fraction: 0.2, max_len: 16}}\n"
        f"train: {{steps: 1, lr: 1.0e-12, max_tokens: 64, precision: fp32}}\nout: {tmp_path / 'run'}\n"
    )
    assert main(["train", str(tmp_path / "r.yaml")]) == 0
    merge_lora(llama, tensors, {"q_proj": 2.0})
    assert_logits_equal(tmp_path / "run", llama)


SIDE = {"layers": 1, "attention_heads": 4, "ffn_dim": 48}  # of BART


def random_matrix(*shape, seed=3, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def assert_close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("target", ["low-rank", "embedding", "head", "both", "both equal"])
def test_adapter_unties_embedding_and_head(target, tmp_path):
    """PEFT changes one of them, and the other stays as it was; unless both get the same values."""
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    a, b = random_matrix(4, 300, scale=0.2), random_matrix(32, 4, seed=4, scale=0.2)
    rows, head_rows = random_matrix(300, 32, seed=5), random_matrix(300, 32, seed=6)
    old, name = model.lm_head.weight.detach().clone(), "model.embed_tokens"
    low_rank = {f"{name}.lora_embedding_A": a, f"{name}.lora_embedding_B": b}
    low_rank |= {f"{name}.base_layer.weight": old}
    head_lora = {"lm_head.lora_A.weight": b.T.contiguous(), "lm_head.lora_B.weight": a.T.contiguous()}
    tensors, embedding, head = {
        "low-rank": (low_rank, old + 2 * (b @ a).T, old),
        "embedding": ({f"{name}.weight": rows}, rows, old),
        "head": (head_lora, old, old + 2 * a.T @ b.T),
        "both": ({f"{name}.weight": rows, "lm_head.weight": head_rows}, rows, head_rows),
        "both equal": ({f"{name}.weight": rows, "lm_head.weight": rows.clone()}, rows, rows),
    }[target]
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    model.model.embed_tokens.weight, model.lm_head.weight = nn.Parameter(embedding), nn.Parameter(head)
    assert_logits_equal(adapter, model)
    assert ph.load(adapter).config.tie_embeddings == ("all" if target == "both equal" else "none")
    assert main(["export", str(adapter), str(tmp_path / "exported"), "--to", "hf"]) == 0
    assert_logits_equal(tmp_path / "exported", model)


def test_fp32_embedding_over_tied_bf16_checkpoint(tmp_path):
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    model.bfloat16().save_pretrained(tmp_path / "base")
    model = type(model).from_pretrained(tmp_path / "base", dtype=torch.float32)
    old, rows = model.lm_head.weight.detach().clone(), random_matrix(300, 32)
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", {"model.embed_tokens.weight": rows})
    model.model.embed_tokens.weight, model.lm_head.weight = nn.Parameter(rows), nn.Parameter(old)
    assert_logits_equal(adapter, model)


def test_untied_head_of_t5_keeps_scale(tmp_path):
    base, sizes = tmp_path / "base", {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    model = make(base, "T5Config", auto="AutoModelForSeq2SeqLM", decoder_start_token_id=0, **sizes)
    head = random_matrix(300, 32)
    adapter = write_adapter(tmp_path / "adapter", base, {"lm_head.weight": head})
    model.lm_head.weight = nn.Parameter(head)
    with torch.no_grad():
        expected = model(input_ids=IDS, decoder_input_ids=IDS).logits
        assert_close(ph.load(adapter).model(IDS, IDS), expected, tolerance=1e-4)
    write_adapter(adapter, base, {"shared.weight": head})
    message = r"changes only one of \S+ and shared.weight, which are tied in the checkpoint"
    with pytest.raises(ValueError, match=message):
        ph.load(adapter)


def test_untied_head_of_bart(tmp_path):
    """Both sides keep the embedding that they share; an adapter of one side alone is refused."""
    base = tmp_path / "base"
    sizes = {f"{side}_{size}": n for side in ("encoder", "decoder") for size, n in SIDE.items()}
    model = make(base, "BartConfig", auto="AutoModelForSeq2SeqLM", d_model=32, **sizes)
    head = random_matrix(300, 32)
    adapter = write_adapter(tmp_path / "adapter", base, {"lm_head.weight": head})
    model.lm_head.weight = nn.Parameter(head)
    assert main(["export", str(adapter), str(tmp_path / "exported"), "--to", "hf"]) == 0
    exported_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported").eval()
    with torch.no_grad():
        expected = model(input_ids=IDS, decoder_input_ids=IDS).logits
        assert_close(ph.load(adapter).model(IDS, IDS), expected)
        assert_close(exported_model(input_ids=IDS, decoder_input_ids=IDS).logits, expected)
    for name in ("model.shared.weight", "model.encoder.embed_tokens.weight"):
        write_adapter(adapter, base, {name: head, "lm_head.weight": head + 1})
        with pytest.raises(ValueError, match=r"changes only one of \S+ and model.shared.weight"):
            ph.load(adapter)


def test_untied_head_of_bert(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    model = make(tmp_path / "base", "BertConfig", auto="AutoModelForMaskedLM", **sizes)
    head = random_matrix(300, 32)
    tensors = {"cls.predictions.decoder.weight": head}
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    model.cls.predictions.decoder.weight = nn.Parameter(head)
    assert_logits_equal(adapter, model)


@pytest.mark.parametrize("tie", [True, False])
def test_adapter_with_new_tokens(tie, tmp_path):
    """PEFT saves embedding and head then, and those of modules_to_save under three names."""
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=tie, **LLAMA)
    tensors = random_lora(model, {"q_proj": 4})
    model.resize_token_embeddings(304)
    for module in ("model.embed_tokens", "lm_head"):
        rows = model.get_submodule(module).weight.detach()
        for name in ("weight", "modules_to_save.weight", "original_module.weight"):
            tensors[f"{module}.{name}"] = rows * (name != "original_module.weight")
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    merge_lora(model, tensors, {"q_proj": 2.0})
    assert_logits_equal(adapter, model)
    ids = torch.tensor([[300, 303, 5]])
    with torch.no_grad():
        assert_close(ph.load(adapter).model(ids), model(ids).logits)
