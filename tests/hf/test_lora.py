"""Adapters as PEFT writes them: the checkpoint with what they add, beside the reference implementation with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.hf.conftest import make
from torch import Tensor, nn

import polyhead as ph
from polyhead.cli import main

LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
SIDE = {"layers": 1, "attention_heads": 4, "ffn_dim": 48}  # of BART
# what PEFT 0.21 writes beside what a test says
SAID = {
    "alpha_pattern": {}, "arrow_config": None, "base_model_name_or_path": "", "bias": "none", "ensure_weight_tying": False,
    "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "layer_replication": None, "loftq_config": {},
    "lora_alpha": 8, "lora_bias": False, "lora_dropout": 0.05, "megatron_core": "megatron.core", "modules_to_save": None,
    "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4, "rank_pattern": {}, "revision": None,
    "target_modules": ["q_proj"], "target_parameters": None, "task_type": "CAUSAL_LM", "use_dora": False, "use_rslora": False,
}  # fmt: skip
IDS = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(1))


def write(directory: Path, base: Path, tensors: dict[str, Tensor], **said: Any) -> Path:
    directory.mkdir(exist_ok=True)
    save_file({f"base_model.model.{name}": x for name, x in tensors.items()}, directory / "adapter_model.safetensors")  # fmt: skip
    config = SAID | {"base_model_name_or_path": str(base)} | said
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def drawn(model: nn.Module, ranks: dict[str, int], turned: bool = False) -> dict[str, Tensor]:
    """A and B for the modules whose names end so, and A alone turned where the weight is."""
    bits, made = torch.Generator().manual_seed(2), {}
    for name, module in model.named_modules():
        for end, rank in ranks.items():
            if name.endswith(end):
                out, into = module.weight.shape[::-1] if turned else module.weight.shape
                made[f"{name}.lora_A.weight"] = torch.randn(rank, into, generator=bits) * 0.2
                made[f"{name}.lora_B.weight"] = torch.randn(out, rank, generator=bits) * 0.2
    assert made
    return made


@torch.no_grad()
def add(model: nn.Module, tensors: dict[str, Tensor], scales: dict[str, float], turned: bool = False) -> None:
    """The same done to the reference: W + scale B A."""
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removesuffix(".lora_A.weight")
            [scale] = {value for end, value in scales.items() if module.endswith(end)}
            change = scale * tensors[f"{module}.lora_B.weight"] @ a
            model.get_submodule(module).weight += change.T if turned else change


def same(directory: Path, model: nn.Module) -> None:
    ours = ph.load(directory).model
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), model(IDS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("root", "alphas", "scales"),
    [
        (False, {}, {"q_proj": 16 / 4, "o_proj": 16 / 2}),
        (True, {}, {"q_proj": 16 / 2, "o_proj": 16 / 2**0.5}),
        (False, {"layers.1.self_attn.q_proj": 3, "o_proj": 5}, {"0.self_attn.q_proj": 4, "1.self_attn.q_proj": 3 / 4, "o_proj": 5 / 2}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_added_to_a_llama(
    root: bool, alphas: dict[str, int], scales: dict[str, float], dtype: torch.dtype, tmp_path: Path
) -> None:
    """Ranks differ from module to module."""
    make(tmp_path / "base", "LlamaConfig", dtype=dtype, **LLAMA)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    tensors = drawn(model, {"q_proj": 4, "o_proj": 2})
    adapter = write(tmp_path / "a", tmp_path / "base", tensors, lora_alpha=16, use_rslora=root, alpha_pattern=alphas,
                    rank_pattern={"o_proj": 2})  # fmt: skip
    with pytest.raises(AssertionError):
        same(adapter, model)
    add(model, tensors, scales)
    same(adapter, model)


def test_weights_of_gpt2_are_stored_turned(tmp_path: Path) -> None:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    model = make(tmp_path / "base", "GPT2Config", **sizes)
    ranks = {"attn.c_attn": 4, "attn.c_proj": 4, "mlp.c_fc": 4}
    tensors = drawn(model, ranks, turned=True)
    biases = {name: 1 + p.detach() for name, p in model.named_parameters() if name.endswith("c_attn.bias")}
    adapter = write(
        tmp_path / "a", tmp_path / "base", tensors | biases, fan_in_fan_out=True, bias="lora_only"
    )
    add(model, tensors, dict.fromkeys(ranks, 2.0), turned=True)
    model.load_state_dict(biases, strict=False)
    same(adapter, model)
    # as OpenAI's own files have them: names without their beginning
    bare = {
        name.removeprefix("transformer."): x
        for name, x in load_file(tmp_path / "base/model.safetensors").items()
    }
    save_file(bare, tmp_path / "base/model.safetensors")
    same(adapter, model)


def test_embeddings_and_what_is_there_whole(tmp_path: Path) -> None:
    """An embedding has a change, and is saved beside it; the head is new."""
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=False, **LLAMA)
    bits = torch.Generator().manual_seed(3)
    a, b = torch.randn(4, 300, generator=bits) * 0.2, torch.randn(32, 4, generator=bits) * 0.2
    rows, head = (torch.randn(300, 32, generator=bits) for _ in "ab")
    name = "model.embed_tokens"
    tensors = {f"{name}.lora_embedding_A": a, f"{name}.lora_embedding_B": b, f"{name}.base_layer.weight": rows, "lm_head.weight": head}  # fmt: skip
    adapter = write(tmp_path / "a", tmp_path / "base", tensors, modules_to_save=["lm_head"])
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(rows + 2 * (b @ a).T)
        model.lm_head.weight.copy_(head)
    same(adapter, model)


@pytest.mark.parametrize("way", ["added", "whole", "head", "both", "alike"])
def test_a_head_that_is_tied_to_what_is_changed(way: str, tmp_path: Path) -> None:
    """PEFT changes one of them, and the other stays as it was; unless both are changed alike."""
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    bits = torch.Generator().manual_seed(3)
    a, b = torch.randn(4, 300, generator=bits) * 0.2, torch.randn(32, 4, generator=bits) * 0.2
    rows, more = (torch.randn(300, 32, generator=bits) for _ in "ab")
    old = model.lm_head.weight.detach().clone()
    name = "model.embed_tokens"
    added = {f"{name}.lora_embedding_A": a, f"{name}.lora_embedding_B": b, f"{name}.base_layer.weight": old}
    tensors, embedding, head = {
        "added": (added, old + 2 * (b @ a).T, old),
        "whole": ({f"{name}.weight": rows}, rows, old),
        "head": ({"lm_head.lora_A.weight": b.T.contiguous(), "lm_head.lora_B.weight": a.T.contiguous()}, old, old + 2 * a.T @ b.T),
        "both": ({f"{name}.weight": rows, "lm_head.weight": more}, rows, more),
        "alike": ({f"{name}.weight": rows, "lm_head.weight": rows.clone()}, rows, rows),
    }[way]  # fmt: skip
    adapter = write(tmp_path / "a", tmp_path / "base", tensors)
    model.model.embed_tokens.weight, model.lm_head.weight = nn.Parameter(embedding), nn.Parameter(head)
    same(adapter, model)
    assert ph.load(adapter).config.tie_embeddings == ("all" if way == "alike" else "none")
    assert main(["export", str(adapter), str(tmp_path / "hf"), "--to", "hf"]) == 0
    same(tmp_path / "hf", model)


def test_an_embedding_in_fp32_over_a_tied_checkpoint_in_bf16(tmp_path: Path) -> None:
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    model.bfloat16().save_pretrained(tmp_path / "base")
    model = type(model).from_pretrained(tmp_path / "base", dtype=torch.float32)
    old = model.lm_head.weight.detach().clone()
    rows = torch.randn(300, 32, generator=torch.Generator().manual_seed(3))
    adapter = write(tmp_path / "a", tmp_path / "base", {"model.embed_tokens.weight": rows})
    model.model.embed_tokens.weight, model.lm_head.weight = nn.Parameter(rows), nn.Parameter(old)
    same(adapter, model)


def test_a_tied_head_of_t5_becomes_its_own(tmp_path: Path) -> None:
    """What it reads is scaled as before."""
    sizes = {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    }
    model = make(tmp_path / "base", "T5Config", auto="AutoModelForSeq2SeqLM", **sizes)
    head = torch.randn(300, 32, generator=torch.Generator().manual_seed(3))
    adapter = write(tmp_path / "a", tmp_path / "base", {"lm_head.weight": head})
    model.lm_head.weight = nn.Parameter(head)
    with torch.no_grad():
        wanted = model(input_ids=IDS, decoder_input_ids=IDS).logits
        torch.testing.assert_close(ph.load(adapter).model(IDS, IDS), wanted, atol=1e-4, rtol=1e-4)
    write(adapter, tmp_path / "base", {"shared.weight": head})
    with pytest.raises(ValueError, match=r"changes one of \S+ and shared.weight by itself, and in the checkpoint they are one"):  # fmt: skip
        ph.load(adapter)


def test_a_tied_head_of_bart_becomes_its_own(tmp_path: Path) -> None:
    """Both sides keep the embedding that they share; one that is changed by itself is refused."""
    sizes = {f"{side}_{size}": n for side in ("encoder", "decoder") for size, n in SIDE.items()}
    model = make(tmp_path / "base", "BartConfig", auto="AutoModelForSeq2SeqLM", d_model=32, **sizes)
    head = torch.randn(300, 32, generator=torch.Generator().manual_seed(3))
    adapter = write(tmp_path / "a", tmp_path / "base", {"lm_head.weight": head})
    model.lm_head.weight = nn.Parameter(head)
    assert main(["export", str(adapter), str(tmp_path / "hf"), "--to", "hf"]) == 0
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        wanted = model(input_ids=IDS, decoder_input_ids=IDS).logits
        torch.testing.assert_close(ph.load(adapter).model(IDS, IDS), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(again(input_ids=IDS, decoder_input_ids=IDS).logits, wanted, atol=1e-5, rtol=1e-5)  # fmt: skip
    for name in ("model.shared.weight", "model.encoder.embed_tokens.weight"):
        write(adapter, tmp_path / "base", {name: head, "lm_head.weight": head + 1})
        with pytest.raises(ValueError, match=r"changes one of \S+ and model.shared.weight by itself"):
            ph.load(adapter)


def test_a_tied_head_of_bert_becomes_its_own(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    model = make(tmp_path / "base", "BertConfig", auto="AutoModelForMaskedLM", **sizes)
    head = torch.randn(300, 32, generator=torch.Generator().manual_seed(3))
    adapter = write(tmp_path / "a", tmp_path / "base", {"cls.predictions.decoder.weight": head})
    model.cls.predictions.decoder.weight = nn.Parameter(head)
    with torch.no_grad():
        torch.testing.assert_close(ph.load(adapter).model(IDS), model(IDS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_tokens_were_added(tied: bool, tmp_path: Path) -> None:
    """PEFT saves the embedding and the head then, and those of modules_to_save under three names."""
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=tied, **LLAMA)
    tensors = drawn(model, {"q_proj": 4})
    model.resize_token_embeddings(304)
    for module in ("model.embed_tokens", "lm_head"):
        rows = model.get_submodule(module).weight.detach()
        for name in ("weight", "modules_to_save.weight", "original_module.weight"):
            tensors[f"{module}.{name}"] = rows * (name != "original_module.weight")
    adapter = write(tmp_path / "a", tmp_path / "base", tensors)
    add(model, tensors, {"q_proj": 2.0})
    same(adapter, model)
    ours = ph.load(adapter)
    with torch.no_grad():
        new = torch.tensor([[300, 303, 5]])
        torch.testing.assert_close(ours.model(new), model(new).logits, atol=1e-5, rtol=1e-5)


def test_conv1d_is_turned_and_a_linear_map_beside_it_is_not(tmp_path: Path) -> None:
    """PEFT goes by the module; its config says what the last of them was."""
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "tie_word_embeddings": False}
    model = make(tmp_path / "base", "GPT2Config", **sizes)
    turned, plain = drawn(model, {"c_proj": 4}, turned=True), drawn(model, {"lm_head": 4})
    adapter = write(tmp_path / "a", tmp_path / "base", turned | plain, fan_in_fan_out=False)
    add(model, turned, {"c_proj": 2.0}, turned=True)
    add(model, plain, {"lm_head": 2.0})
    same(adapter, model)


def test_an_encoder_without_its_head(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    model = make(tmp_path / "base", "BertConfig", auto="AutoModel", pad_token_id=0, **sizes)
    tensors = drawn(model, {"query": 4, "value": 4})
    adapter = write(tmp_path / "a", tmp_path / "base", tensors, task_type="FEATURE_EXTRACTION")
    add(model, tensors, {"query": 2.0, "value": 2.0})
    ours = ph.load(adapter).model
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), model(IDS).last_hidden_state, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("base", ["AutoModelForMaskedLM", "AutoModel"])
@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_what_tells_classes_is_in_the_adapter(kind: str, base: str, tmp_path: Path) -> None:
    """The checkpoint fills masks, or is bare."""
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "pad_token_id": 0,
    }
    whole = make(
        tmp_path / "classes",
        f"{kind}Config",
        auto="AutoModelForSequenceClassification",
        num_labels=3,
        **sizes,
    )
    state = whole.state_dict()
    with_head = getattr(transformers, base).from_pretrained(tmp_path / "classes")
    if base == "AutoModelForMaskedLM" and kind == "Bert":  # as the one that it began as, with its pooler
        with_head = transformers.BertForPreTraining.from_pretrained(tmp_path / "classes")
    with_head.save_pretrained(tmp_path / "base")
    said = json.loads((tmp_path / "base/config.json").read_text())
    said = {key: value for key, value in said.items() if key not in ("id2label", "label2id")}
    (tmp_path / "base/config.json").write_text(json.dumps(said))
    shutil.copy(tmp_path / "classes/tokenizer.json", tmp_path / "base")
    low = drawn(whole, {"query": 4, "value": 4})
    head = {name: tensor for name, tensor in state.items() if name.startswith("classifier.")}
    adapter = write(tmp_path / "a", tmp_path / "base", low | head, task_type="SEQ_CLS")
    add(whole, low, {"query": 2.0, "value": 2.0})
    same(adapter, whole)
    assert ph.load(adapter).config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    # on one that tells classes, its names stay if they are as many
    names = {"0": "bad", "1": "so so", "2": "good"}
    for said, labels in (
        (names, tuple(names.values())),
        ({"0": "no", "1": "yes"}, ("LABEL_0", "LABEL_1", "LABEL_2")),
    ):
        shutil.copytree(tmp_path / "classes", tmp_path / "base", dirs_exist_ok=True)
        config = json.loads((tmp_path / "base/config.json").read_text()) | {
            "id2label": said,
            "label2id": None,
        }
        (tmp_path / "base/config.json").write_text(json.dumps(config))
        same(adapter, whole)
        assert ph.load(adapter).config.labels == labels


def test_it_is_imported_with_its_own_tokenizer_and_chat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    model = make(tmp_path / "base", "LlamaConfig", **LLAMA)
    tensors = drawn(model, {"q_proj": 4})
    adapter = write(tmp_path / "a", tmp_path / "base", tensors)
    assert ph.load(adapter).generation.chat is None
    template = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # fmt: skip
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (tmp_path / "base" / file).is_file():
            shutil.copy(tmp_path / "base" / file, adapter)
    (adapter / "chat_template.jinja").write_text(template)
    assert main(["import", str(adapter), str(tmp_path / "run")]) == 0
    run = ph.load(tmp_path / "run")
    assert run.generation.chat is not None and run.generation.chat.name == "chatml"
    add(model, tensors, {"q_proj": 2.0})
    same(tmp_path / "run", model)


def refused(adapter: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["generate", str(adapter), "the king"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"peft_type": "IA3"}, "adapter_config.json: peft_type is 'IA3', wanted 'LORA', all that is built"),
        ({"use_dora": True}, "adapter_config.json: use_dora is true, wanted false, all that is built"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', wanted one that leaves the checkpoint as it is"),
        ({"alpha_pattern": {".*q_proj": 3}}, "wanted numbers by the names of modules; patterns are not built"),
        ({"alpha_pattern": {"q_proj": "3"}}, "q_proj is '3', wanted a number"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication is [[0, 2], [1, 2]], wanted null: layers that are repeated are not built"),
        ({"target_parameters": ["experts.gate"]}, "target_parameters is ['experts.gate'], wanted null: LoRA of parameters that are no linear map's, such as those of experts, is not built"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path is null, wanted the checkpoint that it changes, a directory or owner/name"),
        ({"base_model_name_or_path": "/not/there"}, "is '/not/there', wanted a directory that is there, or owner/name on the hub"),
        ({"base_model_name_or_path": ""}, "base_model_name_or_path is '', wanted the checkpoint that it changes"),
        ({"revision": 3}, "revision is 3, wanted that of the checkpoint on the hub"),
        ({"lora_alpha": "many"}, "lora_alpha is 'many', wanted a number"),
        ({"lora_alpha": 10**400}, "wanted a number"),
    ],
)  # fmt: skip
def test_what_would_change_a_model_otherwise_is_refused(
    said: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make(tmp_path / "base", "LlamaConfig", **LLAMA)
    adapter = write(tmp_path / "a", tmp_path / "base", drawn(model, {"q_proj": 4}), **said)
    assert message in refused(adapter, capsys)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"model.layers.0.self_attn.q_proj.lora_A.weight": (4, 32)}, "lora_A and lora_B of model.layers.0.self_attn.q_proj do not fit together"),
        ({"model.norm.lora_A.weight": (0, 32), "model.norm.lora_B.weight": (32, 0)}, "lora_A and lora_B of model.norm do not fit together"),
        ({"score.lora_A.weight": (4, 32), "score.lora_B.weight": (300, 4)}, "changes model.score.weight, which the checkpoint does not hold by itself"),
        ({"model.norm.lora_A.weight": (4, 32), "model.norm.lora_B.weight": (32, 4)}, "changes model.norm.weight by [32, 32], and it is [32]"),
        ({"model.layers.0.self_attn.q_proj.lora_magnitude_vector": (32,)}, "and only lora_A and lora_B are built"),
        ({"score.weight": (2, 32), "model.norm.weight": (32,)}, "/a holds score.weight, for which the checkpoint has no place"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(
    tensors: dict[str, tuple[int, ...]], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    adapter = write(tmp_path / "a", tmp_path / "base", {name: torch.zeros(shape) for name, shape in tensors.items()})  # fmt: skip
    assert message in refused(adapter, capsys)


def test_what_it_changes_is_no_adapter_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = drawn(make(tmp_path / "base", "LlamaConfig", **LLAMA), {"q_proj": 4})
    for base in (write(tmp_path / "a", tmp_path / "base", tensors), tmp_path / "b"):
        said = refused(write(tmp_path / "b", base, tensors), capsys)
        assert "wanted a whole checkpoint; this one is an adapter itself" in said


def test_no_pickle_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make(tmp_path / "base", "LlamaConfig", **LLAMA)
    adapter = write(tmp_path / "a", tmp_path / "base", drawn(model, {"q_proj": 4}))
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    assert "only adapter_model.bin: a pickle can run code" in refused(adapter, capsys)


def test_a_whole_checkpoint_beside_an_adapter_is_read(tmp_path: Path) -> None:
    """As tools leave it that merge: the file of the adapter says nothing any more."""
    model = make(tmp_path / "base", "LlamaConfig", **LLAMA)
    write(tmp_path / "base", tmp_path / "base", drawn(model, {"q_proj": 4}))
    same(tmp_path / "base", model)


def test_training_begins_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make(tmp_path / "base", "LlamaConfig", **LLAMA)
    tensors = drawn(model, {"q_proj": 4})
    adapter = write(tmp_path / "a", tmp_path / "base", tensors)
    (tmp_path / "t.txt").write_text("the king of the sea\n" * 50)
    (tmp_path / "r.yaml").write_text(
        f"task: language-model\nstart: {adapter}\ndata: {{root: {tmp_path}, train: t.txt, valid_share: 0.2, max_len: 16}}\n"
        f"train: {{steps: 1, lr: 1.0e-12, max_tokens: 64, precision: fp32}}\nout: {tmp_path / 'run'}\n"
    )
    assert main(["train", str(tmp_path / "r.yaml")]) == 0
    add(model, tensors, {"q_proj": 2.0})
    same(tmp_path / "run", model)
