import pytest

from polyhead.data.readers.parallel_corpus import open_corpus
from polyhead.data.stores.pair_store import PairStore

SOURCES = ["one", "", "three 你好", "x" * 40, "five"]
TARGETS = ["eins", "zwei", "drei", "vier", "fünf"]


@pytest.fixture
def corpus(write_file):
    return open_corpus([write_file("a.en", "\n".join(SOURCES)), write_file("a.de", "\n".join(TARGETS))])


@pytest.fixture
def open_store(tmp_path, tokenizer):
    def open_or_build(corpus, max_len=20, tokenizer=tokenizer):
        return PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=max_len)

    return open_or_build
