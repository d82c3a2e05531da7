"""Scores are those of sacreBLEU, whatever the language; what cannot be scored is refused."""

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF

from polyhead.core.errors import UserError
from polyhead.evaluate.translation_metrics import bleu, bleu_tokenizer, chrf

ENGLISH = (
    ["The cat sat on the mat .", "A dog barks loudly at night.", "He didn't go home, did he?"],
    ["The cat sat on the mat.", "A dog barks at night.", "He did not go home, did he?"],
)
CHINESE = (
    ["猫坐在垫子上。", "狗在晚上大声叫。", "他没有回家,是吗?"],
    ["猫坐在垫子上。", "狗在夜里叫。", "他没回家,对吗?"],
)
JAPANESE = (
    ["猫がマットの上に座った。", "東京都の人口は多い。"],
    ["猫はマットの上に座っていた。", "東京都の人口はとても多いです。"],
)
KOREAN = (
    ["고양이가 매트 위에 앉았다.", "개가 밤에 짖는다."],
    ["고양이가 매트 위에 앉아 있었다.", "개가 밤에 크게 짖는다."],
)
THAI = (["แมวนั่งบนเสื่อ", "หมาเห่าตอนกลางคืน"], ["แมวนั่งอยู่บนเสื่อ", "หมาเห่าในตอนกลางคืน"])


@pytest.mark.parametrize(
    ("texts", "lang", "tokenizer"),
    [
        (ENGLISH, "", "13a"),
        (ENGLISH, "de", "13a"),
        (CHINESE, "", "zh"),
        (CHINESE, "zh", "zh"),
        (CHINESE, "zh_CN", "zh"),
        (CHINESE, "ZH-Hant", "zh"),
        (JAPANESE, "", "char"),
        (JAPANESE, "ja", "char"),
        (KOREAN, "", "13a"),
        (KOREAN, "ko", "13a"),
        (THAI, "th", "char"),
    ],
)
def test_bleu_is_corpus_sacrebleu_with_the_tokenizer_of_the_language(texts, lang, tokenizer):
    outputs, references = texts
    wanted = sacrebleu.corpus_bleu(outputs, [references], tokenize=tokenizer)
    score = bleu(outputs, references, lang)
    assert score.name == "bleu"
    assert score.value == wanted.score
    metric = BLEU(tokenize=tokenizer)
    metric.corpus_score(outputs, [references])
    assert score.signature == str(metric.get_signature())
    assert f"tok:{tokenizer}" in score.signature


def test_lowercase_bleu_says_so():
    outputs = ["THE cat sat on a mat"]
    score = bleu(outputs, ["the cat sat on a mat"], lowercase=True)
    assert (score.name, round(score.value, 6)) == ("bleu-lc", 100)
    assert "case:lc" in score.signature
    assert bleu(outputs, ["the cat sat on a mat"]).value < 100


@pytest.mark.parametrize("texts", [ENGLISH, CHINESE, JAPANESE])
def test_chrf_is_that_of_sacrebleu(texts):
    score, metric = chrf(*texts), CHRF()
    assert score.value == metric.corpus_score(texts[0], [texts[1]]).score
    assert score.signature == str(metric.get_signature())


def test_bleu_is_of_the_corpus_not_a_mean_of_sentences_and_of_words_not_of_letters():
    outputs, references = ENGLISH
    score = bleu(outputs, references).value
    alone = [sacrebleu.sentence_bleu(o, [r]).score for o, r in zip(outputs, references, strict=True)]
    assert abs(score - sum(alone) / 3) > 0.5
    assert abs(score - sacrebleu.corpus_bleu(outputs, [references], tokenize="char").score) > 0.5


def test_the_language_is_guessed_from_the_references():
    assert bleu_tokenizer("", ["人工知能の研究について", "これはペンです"]) == "char"
    assert bleu_tokenizer("", ["iPhone 的价格是 999 美元", "今天天气很好"]) == "zh"
    assert bleu_tokenizer("", ["大韓民國 서울특별시의 인구는 많다"]) == "13a"
    assert bleu_tokenizer("", ["In Beijing (北京) it rains"]) == "13a"
    assert bleu_tokenizer("", ["", ""]) == "13a"


@pytest.mark.parametrize("metric", [bleu, chrf])
def test_what_is_not_line_by_line_is_refused(metric):
    with pytest.raises(UserError, match="2 outputs and 1 references"):
        metric(["a", "b"], ["a"])
    with pytest.raises(UserError, match="nothing to score"):
        metric([], [])
