import pytest
import torch
from tests.hf.tokenizers.spm_helpers import SOURCES, read_lines
from tests.hf.tokenizers.spm_helpers import m2m100 as m2m100
from tests.hf.tokenizers.spm_helpers import marian as marian
from tokenizers.processors import TemplateProcessing

import polyhead as ph
from polyhead import Choice
from polyhead.cli import main
from polyhead.run.run import Run
from polyhead.tokenizers.languages import list_languages, with_languages
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import Tokenizer as Inner


def test_scores_use_target_tokenizer(marian):
    directory, reference_tokenizer, model = marian
    targets = [line[:30] for line in read_lines("guide.zh-CN.md", 4)[1:]]
    inputs = reference_tokenizer([f">>fra<< {text}" for text in SOURCES], text_target=targets)
    run = ph.load(directory)
    template = with_languages(run.tokenizer, None, "fra")
    run = Run(run.model, run.tokenizer.with_seq2seq_template(template), run.generation)
    for number, score in enumerate(run.score(SOURCES, targets)):
        input_ids, labels = (torch.tensor([inputs[key][number]]) for key in ("input_ids", "labels"))
        with torch.no_grad():
            loss = model(input_ids, labels=labels).loss
        assert score.tokens == labels.size(1)
        assert score.log_prob == pytest.approx(-float(loss) * score.tokens, rel=1e-4)


def test_language_pairs_of_m2m100_and_mbart(m2m100, tmp_path):
    original, run_dir = ph.load(m2m100[0]), tmp_path / "run"
    languages = ["--source-lang", "zu", "--target-lang", "de"]
    assert main(["import", str(m2m100[0]), str(run_dir), *languages]) == 0
    run, template = ph.load(run_dir), original.tokenizer.seq2seq_template
    assert run.tokenizer.seq2seq_template == with_languages(original.tokenizer, "zu", "de") != template
    expected = original.translate(SOURCES, source_lang="zu", target_lang="de")
    assert run.translate(SOURCES) == expected
    inner = Inner.from_str(ph.load(m2m100[0]).tokenizer.tokenizer_json)
    special_tokens = [(name, inner.token_to_id(name)) for name in ("</s>", "__en__")]
    inner.post_processor = TemplateProcessing(single="$A </s> __en__", special_tokens=special_tokens)
    tokenizer = Tokenizer(inner, {"eos_token": "</s>", "decoder_start_token": "__en__"})
    pair = with_languages(tokenizer, "zu", "de")
    assert tokenizer.with_seq2seq_template(pair).seq2seq_template == pair != tokenizer.seq2seq_template
    assert pair.source_suffix == (2, inner.token_to_id("__zu__"))
    assert pair.decoder_start_id == inner.token_to_id("__de__")


def test_languages_are_listed(marian, m2m100):
    codes = sorted(m2m100[1].lang_code_to_id)
    assert list_languages(ph.load(m2m100[0]).tokenizer) == {"source": codes, "target": codes}
    tokenizer = ph.load(marian[0]).tokenizer
    for one in (tokenizer, tokenizer.target_tokenizer):
        assert list_languages(one) == {"source": [], "target": ["cmn_Hans", "fra"]}
    # as mBART and NLLB spell them
    rules = tokenizer.target_tokenizer.tokenizer_json.replace(">>fra<<", "de_DE")
    inner, names = Inner.from_str(rules.replace(">>cmn_Hans<<", "eng_Latn")), ["de_DE", "eng_Latn"]
    assert list_languages(Tokenizer(inner, {})) == {"source": names, "target": names}
    plain = train_tokenizer(SOURCES * 5, Choice("bpe"), 300, 3)  # of one pair; sentinels are no languages
    assert list_languages(plain) == {"source": [], "target": []}
