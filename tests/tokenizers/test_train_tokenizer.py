import json
import subprocess
import sys

import pytest

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.train_tokenizer import train_tokenizer

KINDS = TOKENIZER.names()


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


@pytest.mark.parametrize("kind", KINDS)
def test_unusable_corpus_is_refused(kind, get_tokenizer):
    def read_lines():
        yield "one"
        raise UserError("line 2 is damaged")

    for corpus, message in (
        ([], "no text to train"),
        (["", ""], "no text to train"),
        (["\udfff"], "text 1 has half of a surrogate pair"),
        (read_lines(), r"^line 2 is damaged$"),
    ):
        with pytest.raises(UserError, match=message):
            train_tokenizer(corpus, Choice(kind), 400)
    with pytest.raises(UserError, match="text 2 has half of a surrogate pair"):
        get_tokenizer(kind).encode(["fine", "\ud800"])
