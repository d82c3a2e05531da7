"""Tests of tokenizers/train_tokenizer.py."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

NAMES = TOKENIZER.names()

Trained = Callable[[str], Tokenizer]


@pytest.mark.parametrize("name", NAMES)
def test_a_corpus_full_of_special_tokens_does_not_teach_them(name: str) -> None:
    t = train_tokenizer(["</s><pad> <s>word</s>", "<mask> </s>"] * 50, Choice(name), 400)
    assert not {0, 1, 2, 4} & set(t.encode(["</s><pad> <s>word</s> <mask>"])[0])


SCRIPT = """
import json, sys
from polyhead.core.registry import Choice, TOKENIZER
from polyhead.tokenizers.train_tokenizer import train_tokenizer
texts = json.load(sys.stdin)
print(json.dumps({name: train_tokenizer(texts, Choice(name), 400).sha256 for name in TOKENIZER.names()}))
"""


@pytest.mark.acceptance("A14")
def test_the_same_text_gives_the_same_bytes_in_another_process(trained: Trained, texts: list[str]) -> None:
    for parallel in ("true", "false"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input=json.dumps(texts),
            text=True,
            capture_output=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path), "TOKENIZERS_PARALLELISM": parallel},
        )
        assert json.loads(done.stdout) == {name: trained(name).sha256 for name in NAMES}


def test_half_a_surrogate_pair_is_refused_by_number(trained: Trained) -> None:
    with pytest.raises(UserError, match="text 1 has half of a surrogate pair"):
        trained("bpe").encode(["fine", "\ud800"])
    with pytest.raises(UserError, match="text 0 has half"):
        train_tokenizer(["\udfff"], Choice("bpe"), 300)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_corpus_is_refused(name: str) -> None:
    for nothing in ([], ["", ""]):
        with pytest.raises(UserError, match="no text to train"):
            train_tokenizer(nothing, Choice(name), 400)


@pytest.mark.parametrize("name", NAMES)
def test_an_error_while_reading_the_corpus_arrives_whole(name: str) -> None:
    def damaged() -> Iterator[str]:
        yield "one"
        raise UserError("line 2 is damaged")

    with pytest.raises(UserError, match=r"^line 2 is damaged$"):
        train_tokenizer(damaged(), Choice(name), 400)
