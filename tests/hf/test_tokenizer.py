import json

import pytest
import transformers
from tests.hf.conftest import edit_json, make
from tests.hf.families.causal_cases import LLAMA
from tokenizers.processors import TemplateProcessing

import polyhead as ph
import tokenizers

PROMPTS = ["a dog", "two red dogs at sea"]


def generate(directory):
    return ph.load(directory).generate(PROMPTS, max_new_tokens=4)


def test_roles_come_from_any_file(gpt2, caplog):
    config = gpt2 / "tokenizer_config.json"
    config.write_text(json.dumps({"pad_token": "</s>"}))
    run = ph.load(gpt2)
    # the ids of config.json; the end as padding is no role
    assert run.tokenizer.role_ids == {"bos_token": 1, "eos_token": 2}
    one_by_one = [run.generate([text], max_new_tokens=4)[0] for text in PROMPTS]
    assert run.generate(PROMPTS, max_new_tokens=4) == one_by_one
    roles = {"pad_token": {"content": "<pad>"}, "unk_token": "<unk>"}
    (gpt2 / "special_tokens_map.json").write_text(json.dumps(roles))
    config.unlink()
    expected = {"bos_token": 1, "eos_token": 2, "pad_token": 0, "unk_token": 3}
    assert ph.load(gpt2).tokenizer.role_ids == expected
    edit_json(gpt2 / "generation_config.json", eos_token_id=[4, 2])
    run = ph.load(gpt2)
    assert (run.tokenizer.eos_id, run.generation.stop_tokens) == (2, ("<mask>",)) and not caplog.messages


@pytest.mark.parametrize("pad", [-1, 300])
def test_padding_id_without_token_is_ignored(gpt2, pad):
    """-1, or one past the rows, stands in config.json of checkpoints that never pad."""
    expected = generate(gpt2)
    for file in ("config.json", "generation_config.json"):
        edit_json(gpt2 / file, pad_token_id=pad)
    (gpt2 / "tokenizer_config.json").write_text("{}")
    assert "pad_token" not in ph.load(gpt2).tokenizer.role_ids and generate(gpt2) == expected
    edit_json(gpt2 / "tokenizer_config.json", pad_token="[PAD]")  # which is not in the vocabulary
    assert "pad_token" not in ph.load(gpt2).tokenizer.role_ids


@pytest.mark.parametrize("role", ["pad_token", "eos_token", "bos_token", None])
@pytest.mark.parametrize("special", [True, False])
def test_added_token_past_rows_is_text(gpt2, special, role):
    """Reference: the checkpoint before the token was added, whose roles come from config.json."""
    edit_json(gpt2 / "config.json", eos_token_id=5000)  # unused: generation_config.json names another
    expected, inner = generate(gpt2), tokenizers.Tokenizer.from_file(str(gpt2 / "tokenizer.json"))
    roles = ph.load(gpt2).tokenizer.role_ids
    token = tokenizers.AddedToken("[NEW]", special=special)
    assert (inner.add_special_tokens if special else inner.add_tokens)([token]) == 1
    inner.save(str(gpt2 / "tokenizer.json"))
    edit_json(gpt2 / "tokenizer_config.json", **({role: "[NEW]"} if role else {}))
    edit_json(gpt2 / "generation_config.json", eos_token_id=[2, 5000, -1, 2**40])
    run = ph.load(gpt2)
    assert run.tokenizer.vocab_size == 300
    assert run.tokenizer.role_ids == {
        name: i for name, i in roles.items() if name != role or role == "eos_token"
    }
    assert generate(gpt2) == expected
    assert run.generate(["[NEW]"], max_new_tokens=2), "it is text"


@pytest.mark.parametrize("has_list", [True, False])
@pytest.mark.parametrize(
    ("newer", "older"),
    [("<mask>", "<unk>"), ("<mask>", None), (None, "<unk>"), ("<mask>", {"content": "<unk>"})],
)
def test_contradicting_roles_as_in_reference(gpt2, newer, older, has_list):
    """The file of newer releases counts where it lists the added tokens."""
    tokens = {"added_tokens_decoder": {"3": {"content": "<unk>", "special": True}}} if has_list else {}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": newer, **tokens}
    (gpt2 / "tokenizer_config.json").write_text(json.dumps(config))
    (gpt2 / "special_tokens_map.json").write_text(json.dumps({"unk_token": older}))
    expected = transformers.AutoTokenizer.from_pretrained(gpt2).unk_token_id
    assert expected == ({"<mask>": 4, None: None}[newer] if has_list else 3 if older else None)
    assert ph.load(gpt2).tokenizer.role_ids.get("unk_token") == expected


def test_template_of_tokenizer_precedes_prompts(tmp_path):
    reference = make(tmp_path, "LlamaConfig", **LLAMA)
    inner = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    inner.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    inner.save(str(tmp_path / "tokenizer.json"))
    run, prompt = ph.load(tmp_path), "two red dogs"
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path)(prompt, return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == [1, *run.tokenizer.encode([prompt])[0]]
    output = reference.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    expected = run.tokenizer.decode([output[0].tolist()])[0].rstrip("\ufffd")
    assert prompt + run.generate([prompt], max_new_tokens=8)[0] == expected
