from tests.serve.conftest import build_run

from polyhead import Choice
from polyhead.serve.model_card import everyday_samples, is_unspaced
from polyhead.tokenizers.train_tokenizer import train_tokenizer


def test_language_is_given_or_has_fewest_tokens():
    german = ["ich kaufe frisches brot in meinem garten .", "es regnet seit heute morgen ."]
    tokenizer = train_tokenizer(german * 20, Choice("bpe"), 400)
    assert everyday_samples(tokenizer)[1] == ("Meine Schwester liest im Garten ein Buch.",)
    english = "The train leaves at half past nine. My sister is reading a book in the garden."
    english += " It has been raining since this morning. Where can I buy fresh bread?"
    tokenizer = train_tokenizer([english], Choice("char"), 100)
    assert everyday_samples(tokenizer)[0] == ("The train leaves at half past nine.",)
    tokenizer = build_run("encoder").tokenizer
    samples = everyday_samples(tokenizer, "zh")
    assert samples == everyday_samples(tokenizer, "zh_CN") == everyday_samples(tokenizer, "zh-Hans")
    assert all(is_unspaced(text) for (text,) in samples) and not is_unspaced("a dog 犬")
