import json
import subprocess
import sys

import pytest

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.train_tokenizer import train_tokenizer

KINDS = TOKENIZER.names()


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_in_corpus_stay_text(kind):
    tokenizer = train_tokenizer(["</s><pad> <s>word</s>", "<mask> </s>"] * 50, Choice(kind), 400)
    assert not {0, 1, 2, 4} & set(tokenizer.encode(["</s><pad> <s>word</s> <mask>"])[0])


SCRIPT = """
import json, sys
from polyhead.core.registry import Choice, TOKENIZER
from polyhead.tokenizers.train_tokenizer import train_tokenizer
texts = json.load(sys.stdin)
print(json.dumps({name: train_tokenizer(texts, Choice(name), 400).sha256 for name in TOKENIZER.names()}))
"""


@pytest.mark.acceptance("A14")
@pytest.mark.parametrize("parallelism", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_training_is_deterministic_across_processes(parallelism, get_tokenizer, texts):
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(texts),
        text=True,
        capture_output=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "TOKENIZERS_PARALLELISM": parallelism},
    )
    assert json.loads(process.stdout) == {kind: get_tokenizer(kind).sha256 for kind in KINDS}


def test_lone_surrogate_is_refused_by_number(get_tokenizer):
    with pytest.raises(UserError, match="text 1 has half of a surrogate pair"):
        get_tokenizer("bpe").encode(["fine", "\ud800"])
    with pytest.raises(UserError, match="text 0 has half"):
        train_tokenizer(["\udfff"], Choice("bpe"), 300)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_corpus_is_refused(kind):
    for corpus in ([], ["", ""]):
        with pytest.raises(UserError, match="no text to train"):
            train_tokenizer(corpus, Choice(kind), 400)


@pytest.mark.parametrize("kind", KINDS)
def test_error_of_corpus_reader_is_raised(kind):
    def read_lines():
        yield "one"
        raise UserError("line 2 is damaged")

    with pytest.raises(UserError, match=r"^line 2 is damaged$"):
        train_tokenizer(read_lines(), Choice(kind), 400)
