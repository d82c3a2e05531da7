import pytest
import torch
from tests.hf.conftest import edit_json, export_run, random_run
from tests.hf.load_helpers import REFUSALS
from tests.hf.save_helpers import BASES, config
from transformers import AutoModelForCausalLM, AutoTokenizer

import polyhead as ph
from polyhead import Choice
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.export.gguf import write_gguf
from polyhead.tokenizers.tokenizer import Tokenizer

FILE = "generation_config.json"


def language_model(parts=None, **settings):
    return random_run(config(**(parts or {})), GenerationConfig(**settings))


def warnings(checkpoint, *settings):
    return [f"{checkpoint / FILE}: {one}, and generation is autoregressive without it" for one in settings]


def test_sampling_settings_are_read(gpt2):
    edit_json(gpt2 / FILE, do_sample=True, temperature=0.7, top_p=0.9)
    generation = ph.load(gpt2).generation
    # 50 is the default of the reference
    assert (generation.temperature, generation.top_p, generation.top_k) == (0.7, 0.9, 50)
    edit_json(gpt2 / FILE, do_sample=False)
    generation = ph.load(gpt2).generation
    assert (generation.temperature, generation.top_p) == (0, 1)
    message = r"generation_config.json: (sequence_bias is .*, expected lists|.*not a token id)"
    for value in (3, "a", [3], [[5, 1.0]], [[[5], "a"]], [[[5]]], {"5": 1}, [[["a"], 1.0]]):
        edit_json(gpt2 / FILE, sequence_bias=value)
        with pytest.raises(UserError, match=message):
            ph.load(gpt2)


@pytest.mark.parametrize(("neutral", "keys", "fields", "messages"), REFUSALS["generation"])
def test_unsupported_settings_warn(neutral, keys, fields, messages, gpt2, caplog):
    edit_json(gpt2 / FILE, **neutral)
    assert ph.load(gpt2).generation.max_new_tokens == neutral.get("max_new_tokens", 200)
    assert not caplog.messages
    edit_json(gpt2 / FILE, **keys)
    generation = ph.load(gpt2).generation
    assert fields.items() <= generation.model_dump().items()
    assert caplog.messages == warnings(gpt2, *messages)


@pytest.mark.parametrize("penalty", [1.0, 1.8])
def test_logit_biases_and_penalties_as_in_reference(penalty, tmp_path):
    """Two tokens are favoured that would not be generated, and one is forbidden; the penalty is of logits
    with their biases.
    """
    plain = language_model(temperature=0)
    [text] = plain.generate(["the king"], max_new_tokens=20)
    forbidden = plain.tokenizer.encode([text])[0][0]
    biases = {forbidden: -100, 70: 3.2, 90: 3.1}
    run = language_model(temperature=0, repetition_penalty=penalty, logit_bias=biases, max_new_tokens=20)
    exported_dir = export_run(run, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(exported_dir).eval()
    ids = run.tokenizer.encode(["the king"])[0]
    tokens = reference.generate(torch.tensor([ids]), pad_token_id=0)[0, len(ids) :].tolist()
    assert forbidden not in tokens and {70, 90} & {*tokens}
    expected, exported_model = run.tokenizer.decode([tokens])[0], ph.load(exported_dir)
    assert run.generate(["the king"])[0] == exported_model.generate(["the king"])[0] == expected != text
    assert exported_model.generation.logit_bias == run.generation.logit_bias


def test_exported_tokenizer_pads_and_truncates(tmp_path):
    run = language_model()
    roles = {role: token for role, token in run.tokenizer._roles.items() if role != "pad_token"}
    run.tokenizer = Tokenizer(run.tokenizer._inner, roles)
    exported_dir = export_run(run, tmp_path)
    tokenizer, max_len = AutoTokenizer.from_pretrained(exported_dir), run.config.max_len
    assert tokenizer.model_max_length == max_len
    inputs = tokenizer(["the king", "the king " * 200], padding=True, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape == (2, max_len)
    assert int(inputs["input_ids"][0, -1]) == run.tokenizer.eos_id
    reference = AutoModelForCausalLM.from_pretrained(exported_dir)
    assert reference(**inputs).logits.isfinite().all()
    assert reference.get_input_embeddings().padding_idx is None  # else the end had no gradient
    assert "pad_token" not in ph.load(exported_dir).tokenizer.role_ids


def test_settings_unknown_to_other_formats_warn(tmp_path, caplog):
    grammar = Choice("choice", choices=["yes", "no"])
    settings = {"frequency_penalty": 0.5, "grammar": grammar, "logit_bias": {5: 2.0}}
    fields = "does not support generation.frequency_penalty, generation.grammar"
    export_run(language_model(**settings), tmp_path)
    assert caplog.messages == [f"generation_config.json {fields}; there sampling ignores it"]
    caplog.clear()
    write_gguf(language_model(BASES["llama"], **settings), tmp_path)
    assert caplog.messages == [f"model.gguf {fields}, generation.logit_bias; there sampling ignores it"]
