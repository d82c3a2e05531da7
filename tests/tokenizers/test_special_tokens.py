import json

import pytest
import transformers

from polyhead.core.choice import Choice
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

KINDS = TOKENIZER.names()


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_come_first_and_sentinels_last(kind, texts, tmp_path, get_tokenizer):
    plain = train_tokenizer(texts, Choice(kind), 400)
    assert plain.sentinel_ids == [] and plain.special_ids == [0, 1, 2, 3, 4]
    t = train_tokenizer(texts, Choice(kind), 400, sentinels=7)
    names = [f"<extra_id_{n}>" for n in range(7)]
    assert t.vocab_size <= 400 and t.sentinel_ids == list(range(t.vocab_size - 7, t.vocab_size))
    assert t.ids_to_tokens(t.sentinel_ids) == names and t.special_ids == [0, 1, 2, 3, 4, *t.sentinel_ids]
    assert not set(t.encode(["a <extra_id_0> <extra_id_3> b"])[0]) & set(t.sentinel_ids)
    assert t.decode([[*t.sentinel_ids[:2], *t.encode(["a man"])[0]]]) == ["a man"]
    t.save(tmp_path)
    saved_tokenizer = Tokenizer.load(tmp_path)
    for name in ("sentinel_ids", "special_ids", "sha256"):
        assert getattr(saved_tokenizer, name) == getattr(t, name), name
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["additional_special_tokens"] == names
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert reference.convert_tokens_to_ids("<extra_id_6>") == t.sentinel_ids[6]
    assert "<extra_id_6>" in reference.all_special_tokens
    t = get_tokenizer(kind)
    assert [t.pad_id, t.bos_id, t.eos_id, t.unk_id, t.mask_id] == [0, 1, 2, 3, 4]
    assert t.ids_to_tokens(range(5)) == list(SPECIAL_TOKENS) and t.vocab_size <= 400
    assert all(0 <= i < t.vocab_size for row in t.encode(["a man", "你好"]) for i in row)
    for special in SPECIAL_TOKENS:
        for text in (special, f"a {special} word", f"dog{special}s", special * 3):
            ids = t.encode([text])[0]
            assert not {t.pad_id, t.bos_id, t.eos_id, t.mask_id} & set(ids)
            if kind != "char":  # whose few characters need not hold every letter
                assert t.decode([ids]) == [text]
