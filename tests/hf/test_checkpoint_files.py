"""Tests of hf/checkpoint_files.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hf.load_helpers import INDEX, WEIGHTS, edited, pickled, tensors

import polyhead as ph
from polyhead.core.errors import UserError

NORM = "transformer.ln_f.weight"


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
    (pickled, "{0} has no model.safetensors, only pytorch_model.bin: pickle files can run code"),
    (lambda d: (d / WEIGHTS).unlink(), "{0} has no model.safetensors and no model.safetensors.index.json"),
    (cut, "{0}/model.safetensors is damaged or truncated: "),
    (huge_header, "{0}/model.safetensors is damaged or truncated: "),
    (linked(WEIGHTS), "{0}/model.safetensors is a link to a file outside the checkpoint"),
    (linked("tokenizer.json"), "{0}/tokenizer.json is a link to a file outside the checkpoint"),
    (sharded(**{NORM: "../outside.safetensors"}), "{0}/" + INDEX + " names '../outside.safetensors', which "
        "is not a file"),
    (sharded(**{NORM: "/etc/passwd"}), "{0}/" + INDEX + " names '/etc/passwd', which is not a file"),
    (sharded(**{NORM: "model-3.safetensors"}), "{0}/model-3.safetensors is missing, but "),
    (sharded(more="model-1.safetensors"), "{0}/" + INDEX + " names 'more' in model-1.safetensors, which "
        "does not have it"),
    (sharded(**{"transformer.h.0.attn.c_attn.bias": "model-2.safetensors"}),
     "{0}/model-1.safetensors holds 'transformer.h.0.attn.c_attn.bias', which is not in the index"),
    (tensors(several), "{0}: the weights do not match config.json; missing: transformer.ln_f.weight; unused: "
            "transformer.h.7.ln_1.weight; with another shape: transformer.wpe.weight [31, 16], expected "
            "[32, 16]; none of F32, BF16, F16: transformer.ln_f.bias I8"),
    (tensors(lambda t: t.update({"lm_head.weight": torch.zeros(300, 16)})),
     "{0}: lm_head.weight is not transformer.wte.weight, but according to config.json they are tied"),
    (edited("config.json", n_layer=3),
        "{0}: the weights do not match config.json; missing: transformer.h.2."),
    (edited("config.json", n_layer=1 << 22), "{0}/config.json: n_layers: 4194304 is out of range: should be "
                                             "less than or equal to 10000"),
    (edited("config.json", n_layer=9000), "{0}/config.json has 9000 layers, but the files have 28 tensors"),
    (edited("config.json", n_embd=1 << 60), "{0}/config.json: n_embd is 1152921504606846976, expected an "
                                            "integer from 1"),
    (edited("config.json", n_embd="wide"), "{0}/config.json: n_embd is 'wide', expected an integer"),
    (edited("config.json", n_head=3), "{0}/config.json: d_model (16) must be divisible by n_heads (3)"),
    (edited("config.json", activation_function="gelu_old"), "{0}/config.json: activation_function is "
        "'gelu_old', expected one of"),
    (edited("config.json", add_cross_attention=True), "{0}/config.json: add_cross_attention is true, "
        "expected false"),
    (edited("config.json", new_trick=1), "{0}/config.json: 'new_trick' unknown for this family"),
    (edited("config.json", auto_map={"AutoModel": "evil.Evil"}), "{0}/config.json: auto_map refers to "
        "Python code"),
    (edited("config.json", quantization_config={"quant_method": "awq", "bits": 4}), "{0}/config.json: "
        "according to quantization_config the "
     "weights are quantized (by 'awq'); only fp32, bf16 and fp16 are supported; use the original checkpoint"),
    (edited("config.json", layer_norm_epsilon=float("nan")), "{0}/config.json: layer_norm_epsilon is nan, "
        "expected a number"),
    (edited("config.json", model_type="gpt3"), "{0}/config.json: unknown model_type 'gpt3'; did you mean "
                                               "'gptj'? Known: albert, "),
    (edited("config.json", vocab_size=299), "{0}: the weights do not match config.json; with another shape: "
                                            "transformer.wte"),
    (edited("generation_config.json", eos_token_id=[900]), "{0}/generation_config.json: eos_token_id is "
        "900, but the tokenizer"),
    (edited("generation_config.json", do_sample=True, top_p=7), "{0}/generation_config.json: top_p: 7 is "
        "out of range"),
    (edited("tokenizer_config.json", bos_token="<end>"), "tokenizer_config.json: bos_token is '<end>', "
        "which is not in the"),
    (lambda d: (d / "tokenizer.json").unlink(), "{0} has neither tokenizer.json nor vocab.json and "
                                                "merges.txt"),
]  # fmt: skip


@pytest.mark.acceptance("F1", "F3", "F6", "F10")
@pytest.mark.parametrize(("spoil", "message"), MISTAKES)
def test_each_thing_that_is_wrong_is_named(spoil: Callable[[Path], Any], message: str, gpt2: Path) -> None:
    spoil(gpt2)
    with pytest.raises(UserError, match="^" + re.escape(message.replace("{0}", str(gpt2)))) as error:
        ph.load(gpt2)
    assert "\n" not in str(error.value)


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
