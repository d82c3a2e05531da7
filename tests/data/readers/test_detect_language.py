import pytest

from polyhead.data.readers.detect_language import Language, describe_language, detect_wrong_language

ENGLISH = """The man in the blue shirt is standing on a ladder and he is cleaning the window of the house.
Two dogs are playing in the snow while a girl looks at them from the other side of the street.
A woman with a red hat sits on a bench and she is reading the book that her sister gave to her.
There are many people at the market, and some of them have come to buy fish for their dinner.""".splitlines()
GERMAN = """Der Mann in dem blauen Hemd steht auf einer Leiter und er putzt das Fenster von dem Haus.
Zwei Hunde spielen in dem Schnee und ein Mädchen sieht ihnen von der anderen Seite der Straße zu.
Eine Frau mit einem roten Hut sitzt auf einer Bank und sie liest das Buch, das ihre Schwester ihr gab.
Es sind viele Leute auf dem Markt, und einige von ihnen sind hier, um Fisch zu kaufen.""".splitlines()
CHINESE = ["穿蓝色衬衫的男人站在梯子上擦房子的窗户。", "两只狗在雪地里玩耍，一个女孩在街的另一边看着它们。"]
TECHNICAL = "Wir trainieren das Transformer-Modell mit PyTorch auf der GPU im Cloud-Server von NVIDIA"
EN, DE, ZH = describe_language(ENGLISH), describe_language(GERMAN), describe_language(CHINESE)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("texts", "language", "other", "reason"),
    [
        (CHINESE, EN, ZH, "Han script"),
        (ENGLISH, ZH, EN, "Latin script"),
        (["我们用 Python 和 PyTorch 写代码"], EN, ZH, "Han script"),
        (GERMAN, EN, DE, "frequent words"),
        (ENGLISH, DE, EN, "frequent words"),
        (ENGLISH, Language("Han", code="zh"), Language("Latin", code="en"), "Latin script"),
        (ENGLISH, EN, ZH, ""),
        (CHINESE, ZH, EN, ""),
        (ENGLISH, EN, DE, ""),
        (GERMAN, DE, EN, ""),
        ([TECHNICAL], DE, EN, ""),
        (["Windows Server 2019 Datacenter, NVIDIA GeForce RTX 4090"], ZH, EN, ""),
        (["OK", "Yes", "PyTorch 2.0"], ZH, EN, ""),
        (["1 234 567", "3.14 + 2.72", "2024-01-01"], ZH, EN, ""),
        (["狗"], EN, ZH, ""),
        (ENGLISH + CHINESE, EN, ZH, ""),
        (["word " * 500], EN, DE, ""),
        (ENGLISH, EN, EN, ""),  # source and target are the same language
        ([], EN, DE, ""),
        (GERMAN, Language(), Language(), ""),  # the run has no languages
    ],
)
def test_text_in_the_other_language_is_detected(texts, language, other, reason):
    assert detect_wrong_language(texts, language, other) == reason
