"""Adapters as PEFT writes them: the checkpoint with what they add, beside the reference implementation with
it.
"""

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
from tests.hf.lora_helpers import LLAMA, add, drawn, same, write

import polyhead as ph
from polyhead.cli import main

IDS = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("root", "alphas", "scales"),
    [
        (False, {}, {"q_proj": 16 / 4, "o_proj": 16 / 2}),
        (True, {}, {"q_proj": 16 / 2, "o_proj": 16 / 2**0.5}),
        (False, {"layers.1.self_attn.q_proj": 3, "o_proj": 5}, {"0.self_attn.q_proj": 4,
            "1.self_attn.q_proj": 3 / 4, "o_proj": 5 / 2}),
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
    adapter = write(tmp_path / "a", tmp_path / "base", tensors, lora_alpha=16, use_rslora=root,
        alpha_pattern=alphas,
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
    tensors = {f"{name}.lora_embedding_A": a, f"{name}.lora_embedding_B": b,
        f"{name}.base_layer.weight": rows, "lm_head.weight": head}  # fmt: skip
    adapter = write(tmp_path / "a", tmp_path / "base", tensors, modules_to_save=["lm_head"])
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(rows + 2 * (b @ a).T)
        model.lm_head.weight.copy_(head)
    same(adapter, model)


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


def test_it_is_imported_with_its_own_tokenizer_and_chat(tmp_path: Path,
    capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    model = make(tmp_path / "base", "LlamaConfig", **LLAMA)
    tensors = drawn(model, {"q_proj": 4})
    adapter = write(tmp_path / "a", tmp_path / "base", tensors)
    assert ph.load(adapter).generation.chat is None
    template = (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
        "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<|im_start|>assistant\n' }}{% endif %}"
    )  # fmt: skip
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (tmp_path / "base" / file).is_file():
            shutil.copy(tmp_path / "base" / file, adapter)
    (adapter / "chat_template.jinja").write_text(template)
    assert main(["import", str(adapter), str(tmp_path / "run")]) == 0
    run = ph.load(tmp_path / "run")
    assert run.generation.chat is not None and run.generation.chat.name == "jinja"
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
        ({"peft_type": "IA3"}, "adapter_config.json: peft_type is 'IA3', expected 'LORA', the only "
                               "supported value"),
        ({"use_dora": True}, "adapter_config.json: use_dora is true, expected false, the only supported "
                             "value"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', expected one that does not change "
                                         "the checkpoint"),
        ({"alpha_pattern": {".*q_proj": 3}}, "expected numbers by module name; patterns are not supported"),
        ({"alpha_pattern": {"q_proj": "3"}}, "q_proj is '3', expected a number"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication is [[0, 2], [1, 2]], expected null: "
            "repeated layers are not supported"),
        ({"target_parameters": ["experts.gate"]}, "target_parameters is ['experts.gate'], expected null: "
            "LoRA of parameters outside linear "
                "layers, such as experts, is not supported"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path is null, expected the base checkpoint, "
                                            "a directory or owner/name"),
        ({"base_model_name_or_path": "/not/there"}, "is '/not/there', expected an existing directory, or "
            "owner/name on the hub"),
        ({"base_model_name_or_path": ""}, "base_model_name_or_path is '', expected the base checkpoint"),
        ({"revision": 3}, "revision is 3, expected the revision of the checkpoint on the hub"),
        ({"lora_alpha": "many"}, "lora_alpha is 'many', expected a number"),
        ({"lora_alpha": 10**400}, "a number has 401 digits; the maximum is 300"),
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
        ({"model.layers.0.self_attn.q_proj.lora_A.weight": (4, 32)}, "lora_A and lora_B of "
            "model.layers.0.self_attn.q_proj do not match"),
        ({"model.norm.lora_A.weight": (0, 32), "model.norm.lora_B.weight": (32, 0)}, "lora_A and lora_B of "
            "model.norm do not match"),
        ({"score.lora_A.weight": (4, 32), "score.lora_B.weight": (300, 4)}, "changes model.score.weight, "
            "which the checkpoint does not have as a separate tensor"),
        ({"model.norm.lora_A.weight": (4, 32), "model.norm.lora_B.weight": (32, 4)}, "changes "
            "model.norm.weight by [32, 32], and it is [32]"),
        ({"model.layers.0.self_attn.q_proj.lora_magnitude_vector": (32,)}, "only lora_A and lora_B are "
            "supported"),
        ({"score.weight": (2, 32), "model.norm.weight": (32,)}, "/a has score.weight, which is not in the "
            "checkpoint"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(
    tensors: dict[str, tuple[int, ...]], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    adapter = write(tmp_path / "a", tmp_path / "base", {name: torch.zeros(shape) for name,
        shape in tensors.items()})  # fmt: skip
    assert message in refused(adapter, capsys)


def test_what_it_changes_is_no_adapter_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = drawn(make(tmp_path / "base", "LlamaConfig", **LLAMA), {"q_proj": 4})
    for base in (write(tmp_path / "a", tmp_path / "base", tensors), tmp_path / "b"):
        said = refused(write(tmp_path / "b", base, tensors), capsys)
        assert "expected a full checkpoint; this one is itself an adapter" in said


def test_no_pickle_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make(tmp_path / "base", "LlamaConfig", **LLAMA)
    adapter = write(tmp_path / "a", tmp_path / "base", drawn(model, {"q_proj": 4}))
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    assert "only adapter_model.bin: pickle files can run code" in refused(adapter, capsys)


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
        f"task: language-model\ninit_from: {adapter}\ndata: {{root: {tmp_path}, train: t.txt, "
        f"valid_fraction: 0.2, max_len: 16}}\ntrain: {{steps: 1, lr: 1.0e-12, max_tokens: 64, precision: "
        f"fp32}}\nout: {tmp_path / 'run'}\n"
    )
    assert main(["train", str(tmp_path / "r.yaml")]) == 0
    add(model, tensors, {"q_proj": 2.0})
    same(tmp_path / "run", model)
