import json
import os
import shutil
from unittest.mock import Mock

import pytest

import tokenizers
from polyhead.core.errors import UserError
from polyhead.tokenizers.files import MAX_TOKENIZER_BYTES
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import models


def test_saved_file_is_parsed_once(tmp_path, monkeypatch):
    """A vocabulary of hundreds of thousands of pieces takes seconds each time."""
    pieces = [("<unk>", 0.0), *((f"p{i}", -(i * 0.6180339887498949 % 20.0)) for i in range(1, 400))]
    Tokenizer(tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0)), {}).save(tmp_path)
    parser = Mock(side_effect=tokenizers.Tokenizer.from_str)
    monkeypatch.setattr(tokenizers, "Tokenizer", Mock(wraps=tokenizers.Tokenizer, from_str=parser))
    Tokenizer.load(tmp_path, {})
    assert parser.call_count == 1


def write(name, content):
    data = content.encode() if isinstance(content, str) else content
    return lambda directory: (directory / name).write_bytes(data)


def set_role(role, token):
    def damage(directory):
        path = directory / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {role: token}))

    return damage


RULES, CONFIG = "tokenizer.json", "tokenizer_config.json"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda directory: (directory / RULES).unlink(), "no tokenizer.json"),
        (shutil.rmtree, "no tokenizer.json"),
        (lambda directory: (directory / CONFIG).unlink(), "no tokenizer_config.json"),
        (lambda directory: os.truncate(directory / RULES, 1000), "tokenizer.json is not valid JSON"),
        (write(RULES, "[]"), "tokenizer.json cannot be read"),
        (write(RULES, b"\xff\xfe\x00"), "not UTF-8"),
        (lambda directory: os.truncate(directory / RULES, MAX_TOKENIZER_BYTES + 1), "the maximum for"),
        (write(CONFIG, "{"), "not valid JSON"),
        (write(CONFIG, "[" * 100_000), "nested too deeply"),
        (write(CONFIG, "[]"), "must be a JSON object"),
        (set_role("eos_token", "<end>"), "not in the vocabulary"),
        (set_role("pad_token", "</s>"), "must differ"),
    ],
)
def test_damaged_directory_is_refused(damage, message, get_tokenizer, tmp_path):
    get_tokenizer("bpe").save(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(error.value)
