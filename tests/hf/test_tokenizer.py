"""Tests of hf/tokenizer.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.hf.conftest import make
from tests.hf.load_helpers import LLAMA, edited
from tokenizers.processors import TemplateProcessing

import polyhead as ph
import tokenizers


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
    assert (again.tokenizer.eos_id, again.generation.stop_tokens) == (2, ("<mask>",))
    assert not caplog.messages


@pytest.mark.parametrize("pad", [-1, 300])
def test_a_padding_id_without_a_token_is_none(gpt2: Path, pad: int) -> None:
    """-1, or one past the rows, stands in config.json of checkpoints that never pad."""
    wanted = ph.load(gpt2).generate(["a dog", "two red dogs at sea"], max_new_tokens=4)
    edited("config.json", pad_token_id=pad)(gpt2)
    edited("generation_config.json", pad_token_id=pad)(gpt2)
    (gpt2 / "tokenizer_config.json").write_text("{}")
    loaded = ph.load(gpt2)
    assert "pad_token" not in loaded.tokenizer.role_ids
    assert loaded.generate(["a dog", "two red dogs at sea"], max_new_tokens=4) == wanted


def test_a_padding_token_that_the_vocabulary_lacks_is_none(gpt2: Path) -> None:
    edited("tokenizer_config.json", pad_token="[PAD]")(gpt2)
    assert "pad_token" not in ph.load(gpt2).tokenizer.role_ids


@pytest.mark.parametrize("special", [True, False])
def test_a_padding_token_past_the_rows_is_dropped(gpt2: Path, special: bool) -> None:
    wanted = ph.load(gpt2).generate(["a dog", "two red dogs at sea"], max_new_tokens=4)
    inner = tokenizers.Tokenizer.from_file(str(gpt2 / "tokenizer.json"))
    added = tokenizers.AddedToken("[PAD]", special=special)
    assert (inner.add_special_tokens if special else inner.add_tokens)([added]) == 1
    inner.save(str(gpt2 / "tokenizer.json"))
    edited("tokenizer_config.json", pad_token="[PAD]")(gpt2)
    loaded = ph.load(gpt2)
    assert loaded.tokenizer.vocab_size == 300 and "pad_token" not in loaded.tokenizer.role_ids
    assert loaded.generate(["a dog", "two red dogs at sea"], max_new_tokens=4) == wanted
    assert loaded.generate(["[PAD]"], max_new_tokens=2), "it is text"


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
