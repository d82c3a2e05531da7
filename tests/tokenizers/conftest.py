import json
from functools import cache
from pathlib import Path

import pytest

from polyhead.core.choice import Choice
from polyhead.tokenizers.train_tokenizer import train_tokenizer

ENGLISH = ["A man in a red shirt walks the dog.", "Two dogs run; the man, tired, sits down."]
ENGLISH += ["It's 3 o'clock (almost).", "She said: “naïve café”!", "a <b>bold</b> </s> <pad> word"]
CHINESE = ["我们今天去公园散步。", "他说：“你好，世界！”", "这只狗跑得很快。", "公园里有三只狗。"]


TEXTS = (ENGLISH + CHINESE) * 20
SCRIPTS = json.loads((Path(__file__).parent / "scripts.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def texts():
    return TEXTS


@cache
def tokenizer_of_kind(kind):
    return train_tokenizer(TEXTS, Choice(kind), 400)


@pytest.fixture(scope="session")
def get_tokenizer():
    return tokenizer_of_kind
