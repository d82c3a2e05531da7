"""Scores are those of sacreBLEU, whatever the language; what cannot be scored is refused."""

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF

from polyhead.core.errors import UserError
from polyhead.evaluate.translation_metrics import (
    bleu,
    bleu_tokenizer,
    chrf,
    describe_tokenizer_mismatch,
    evaluate_translations,
)

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
KHMER = (["ឆ្មាអង្គុយលើកន្ទេល"], ["ឆ្មាកំពុងអង្គុយលើកន្ទេល"])
LAO = (["ແມວນັ່ງເທິງເສື່ອ"], ["ແມວນັ່ງຢູ່ເທິງເສື່ອ"])
BURMESE = (["ကြောင်သည်ဖျာပေါ်ထိုင်သည်"], ["ကြောင်သည်ဖျာပေါ်တွင်ထိုင်သည်"])
TIBETAN = (["བྱི་ལ་གདན་ཐོག་བསྡད་འདུག"], ["བྱི་ལ་གདན་ཐོག་ལ་བསྡད་འདུག"])


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
        *((CHINESE, code, "zh") for code in ("zho", "chi", "cmn", "zho_Hans", "zho_Hant", "yue_Hant", "xx")),
        *((JAPANESE, code, "char") for code in ("jpn", "jpn_Jpan", "ja_XX", "jp")),
        *((THAI, code, "char") for code in ("tha", "tha_Thai", "th-TH", "", "xx")),
        *((KHMER, code, "char") for code in ("km", "khm_Khmr", "")),
        *((LAO, code, "char") for code in ("lo", "lao_Laoo", "")),
        *((BURMESE, code, "char") for code in ("my", "mya_Mymr", "bur", "")),
        (TIBETAN, "bod_Tibt", "char"),
        *((ENGLISH, code, "13a") for code in ("eng", "eng_Latn", "deu_Latn")),
    ],
)
def test_bleu_equals_sacrebleu_with_tokenizer_of_language(texts, lang, tokenizer):
    outputs, references = texts
    expected = sacrebleu.corpus_bleu(outputs, [references], tokenize=tokenizer)
    score = bleu(outputs, references, lang)
    assert score.name == "bleu"
    assert score.value == expected.score
    metric = BLEU(tokenize=tokenizer)
    metric.corpus_score(outputs, [references])
    assert score.signature == str(metric.get_signature())
    assert f"tok:{tokenizer}" in score.signature


def test_lowercase_bleu_is_named():
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


def test_bleu_is_corpus_level_on_words():
    outputs, references = ENGLISH
    score = bleu(outputs, references).value
    sentence_scores = [
        sacrebleu.sentence_bleu(o, [r]).score for o, r in zip(outputs, references, strict=True)
    ]
    assert abs(score - sum(sentence_scores) / 3) > 0.5
    assert abs(score - sacrebleu.corpus_bleu(outputs, [references], tokenize="char").score) > 0.5


def test_the_language_is_guessed_from_the_references():
    assert bleu_tokenizer("", ["人工知能の研究について", "これはペンです"]) == "char"
    assert bleu_tokenizer("", ["iPhone 的价格是 999 美元", "今天天气很好"]) == "zh"
    assert bleu_tokenizer("", ["大韓民國 서울특별시의 인구는 많다"]) == "13a"
    assert bleu_tokenizer("", ["In Beijing (北京) it rains"]) == "13a"
    assert bleu_tokenizer("", ["", ""]) == "13a"


def test_tokenizer_mismatch_is_warned():
    for texts in (CHINESE, JAPANESE, THAI, KHMER, LAO, BURMESE, TIBETAN):
        warning = describe_tokenizer_mismatch("vie_Latn", texts[1])
        assert "no spaces between words" in warning and "'vie_Latn'" in warning
        assert evaluate_translations(*texts, "en").warning
        assert bleu(*texts, "en").value < bleu(*texts).value
        assert not describe_tokenizer_mismatch("", texts[1])
    for texts, lang in ((ENGLISH, "en"), (ENGLISH, ""), (KOREAN, "ko"), (CHINESE, "zho_Hans")):
        assert not evaluate_translations(*texts, lang).warning


SECOND_REFERENCES = [
    "On the mat sat the cat.",
    "A dog barks so loudly at night.",
    "He did not go home, right?",
]


def test_several_references_are_scored_as_by_sacrebleu():
    outputs, references = ENGLISH
    pairs = list(zip(references, SECOND_REFERENCES, strict=True))
    for score, metric in [(bleu(outputs, pairs), BLEU()), (chrf(outputs, pairs), CHRF())]:
        assert score.value == metric.corpus_score(outputs, [references, SECOND_REFERENCES]).score
        assert score.signature == str(metric.get_signature())
        assert "nrefs:2" in score.signature
        assert score.value > metric.corpus_score(outputs, [references]).score
    assert bleu(outputs, [[text] for text in references]) == bleu(outputs, references)


def test_the_number_of_references_may_vary():
    outputs, references = ENGLISH
    varying = [
        references[0],
        (references[1], SECOND_REFERENCES[1]),
        [references[2], SECOND_REFERENCES[2], "He stayed, right?"],
    ]
    streams = [references, [None, *SECOND_REFERENCES[1:]], [None, None, "He stayed, right?"]]
    for score, metric in [(bleu(outputs, varying), BLEU()), (chrf(outputs, varying), CHRF())]:
        assert score.value == metric.corpus_score(outputs, streams).score
        assert "nrefs:var" in score.signature
    scores = evaluate_translations(outputs, varying).scores
    assert scores == [bleu(outputs, varying), bleu(outputs, varying, lowercase=True), chrf(outputs, varying)]


@pytest.mark.parametrize("metric", [bleu, chrf])
def test_references_that_are_no_texts_are_refused(metric):
    for wrong in (3, None, [], ["a", 3], {"a": 1}):
        with pytest.raises(UserError, match=r"reference 1 is .*; expected a text or a list of texts"):
            metric(["a", "b"], ["a", wrong])
    with pytest.raises(UserError, match=r"3 outputs and 2 .*; of one list per reference, write list\(zip\("):
        metric(["a"] * 3, [["a"] * 3] * 2)


@pytest.mark.parametrize("metric", [bleu, chrf])
def test_what_is_not_line_by_line_is_refused(metric):
    with pytest.raises(UserError, match="2 outputs and 1 references"):
        metric(["a", "b"], ["a"])
    with pytest.raises(UserError, match="nothing to score"):
        metric([], [])
