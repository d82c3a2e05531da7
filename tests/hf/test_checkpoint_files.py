import json
import os
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hf.conftest import edit_json, edit_weights
from tests.hf.load_helpers import INDEX, WEIGHTS, rename_as_pickle

import polyhead as ph
from polyhead.core.errors import UserError

NORM = "transformer.ln_f.weight"


def split_weights(**files):
    """The weights in two files with an index; ``files`` are changes of the index: name=file."""

    def damage(directory):
        tensors = load_file(directory / WEIGHTS)
        (directory / WEIGHTS).unlink()
        names = sorted(tensors)
        parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
        for file, part in parts.items():
            save_file({name: tensors[name] for name in part}, directory / file)
        index = {name: file for file, part in parts.items() for name in part} | files
        (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))

    return damage


def link_outside(name):
    def damage(directory):
        (directory / name).rename(directory.parent / "outside")
        (directory / name).symlink_to(directory.parent / "outside")

    return damage


def damage_tensors(tensors):
    del tensors[NORM]
    tensors["transformer.h.7.ln_1.weight"] = torch.zeros(3)
    tensors["transformer.wpe.weight"] = torch.zeros(31, 16)
    tensors["transformer.ln_f.bias"] = torch.zeros(16, dtype=torch.int8)


def edit(name, **values):
    return lambda directory: edit_json(directory / name, **values)


def add_tensor(name, make_tensor):

    def add(tensors):
        tensors[name] = make_tensor(tensors["transformer.wte.weight"])

    return lambda directory: edit_weights(directory, add)


NO_TOKENIZER = "{0} has neither tokenizer.json nor vocab.json and merges.txt"
DAMAGED_WEIGHTS = "{0}/model.safetensors is damaged or truncated: "
OUTSIDE = "leads to a file outside the checkpoint"
BIAS = "transformer.h.0.attn.c_attn.bias"
MISMATCH = (
    "{0}: the weights do not match config.json; missing: transformer.ln_f.weight; unused: "
    "transformer.h.7.ln_1.weight; with another shape: transformer.wpe.weight [31, 16], expected [32, 16]; "
    "none of F32, BF16, F16: transformer.ln_f.bias I8"
)
UNTIED_HEAD = "{0}: lm_head.weight is not transformer.wte.weight, but according to config.json they are tied"
GENERATION, TOKENIZER = "generation_config.json", "tokenizer_config.json"


@pytest.mark.whole
@pytest.mark.acceptance("F1", "F3", "F6", "F10")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rename_as_pickle, "{0} has no model.safetensors, only pytorch_model.bin: pickle files can run code"),
        (lambda d: (d / WEIGHTS).unlink(), "{0} has no model.safetensors and no " + INDEX),
        (lambda d: os.truncate(d / WEIGHTS, 1000), DAMAGED_WEIGHTS),
        (lambda d: (d / WEIGHTS).write_bytes((1 << 40).to_bytes(8, "little") + b"{}"), DAMAGED_WEIGHTS),
        (link_outside(WEIGHTS), "{0}/model.safetensors " + OUTSIDE),
        (link_outside("tokenizer.json"), "{0}/tokenizer.json " + OUTSIDE),
        (split_weights(**{NORM: "../x.safetensors"}), "{0}/" + INDEX + " names '../x.safetensors', which is"),
        (
            split_weights(**{NORM: "/etc/passwd"}),
            "{0}/" + INDEX + " names '/etc/passwd', which is not a file",
        ),
        (split_weights(**{NORM: "model-3.safetensors"}), "{0}/model-3.safetensors is missing, but "),
        (
            split_weights(more="model-1.safetensors"),
            "{0}/" + INDEX + " names 'more' in model-1.safetensors, which does not have it",
        ),
        (
            split_weights(**{BIAS: "model-2.safetensors"}),
            "{0}/model-1.safetensors holds '" + BIAS + "', which is not in the index",
        ),
        (lambda d: edit_weights(d, damage_tensors), MISMATCH),
        (add_tensor("lm_head.weight", lambda wte: torch.zeros(300, 16)), UNTIED_HEAD),
        (edit(GENERATION, eos_token_id=[900]), "{0}/" + GENERATION + ": eos_token_id is 900, but the"),
        (edit(GENERATION, do_sample=True, top_p=7), "{0}/" + GENERATION + ": top_p: 7 is out of range"),
        (edit(TOKENIZER, bos_token="<end>"), TOKENIZER + ": bos_token is '<end>', which is not in the"),
        (lambda d: (d / "tokenizer.json").unlink(), NO_TOKENIZER),
    ],
)
def test_damaged_checkpoint_is_refused(damage, message, gpt2):
    damage(gpt2)
    with pytest.raises(UserError, match="^" + re.escape(message.replace("{0}", str(gpt2)))) as error:
        ph.load(gpt2)
    assert "\n" not in str(error.value)


def remove_prefix(tensors):
    for name in list(tensors):
        tensors[name.removeprefix("transformer.")] = tensors.pop(name)


@pytest.mark.parametrize(
    "change",
    [
        split_weights(),
        add_tensor("lm_head.weight", torch.clone),
        add_tensor("transformer.h.0.attn.bias", lambda wte: torch.ones(1, 1, 32, 32, dtype=torch.uint8)),
        lambda directory: edit_weights(directory, remove_prefix),
    ],
    ids=["two files", "copy of tied head", "buffers of older files", "bare model"],
)
def test_other_forms_of_same_weights(change, gpt2):
    tokens, expected = torch.randint(5, 300, (2, 9)), ph.load(gpt2).model
    change(gpt2)
    with torch.no_grad():
        assert torch.equal(ph.load(gpt2).model(tokens), expected(tokens))
