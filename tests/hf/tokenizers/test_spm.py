import random
import shutil
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import sentencepiece
import transformers
from tests.hf.conftest import edit_json
from tests.hf.tokenizers.spm_helpers import DOCS, SOURCES, piece_ids, read_lines, train_spm
from tests.hf.tokenizers.spm_helpers import m2m100 as m2m100
from tests.hf.tokenizers.spm_helpers import marian as marian

import polyhead as ph
from polyhead.cli import main
from polyhead.cli.visualize import count_example_tokens
from polyhead.core.errors import UserError
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.tokenizers.spm import build_tokenizer, read_spm_model
from polyhead.run.run import Run
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.run.run_examples import write_examples
from polyhead.serve.api_errors import ApiError
from polyhead.serve.openai.pooling_endpoints import _check_text_lengths
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead_lab.models import ModelUnderTest, make_pair_rows
from polyhead_lab.paging import count_row_tokens
from tokenizers import Tokenizer as Inner

Translator = tuple[Path, Any, Any]
ENGLISH, CHINESE = read_lines("guide.md"), read_lines("guide.zh-CN.md")
OTHER_ENGLISH = list(read_lines("architecture.md"))
UNUSUAL = ["", " ", "a  b", "\ta\n b ", "ﬁne ① ½", "☃☃ x ☃", "e\u0301te\u0301", "▁ ▁a", "1\u00a02", "ÀÉ ß"]
UNUSUAL += ["🙂🙃 hi", "x\u200by", "<unk> </s> <pad> <<a>>", ">>fra<< the", "__de__ the", "．，", "\u202eabc"]
UNUSUAL += ["the" * 300]


def read_model(directory, ids, special_tokens=("<unk>",)):
    return build_tokenizer(read_spm_model(CheckpointFiles(directory), "m.spm"), ids, list(special_tokens))


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


SETTINGS = [{}, {"add_dummy_prefix": False}, {"remove_extra_whitespaces": False}]
SETTINGS += [{"split_by_whitespace": False}, {"normalization_rule_name": "identity"}]
SETTINGS += [{"normalization_rule_name": "nfkc_cf"}, {"character_coverage": 0.98}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_segmentation_equals_library(kind, settings, tmp_path):
    model = train_spm(tmp_path, "m", ENGLISH, model_type=kind, **settings)
    tokenizer = read_model(tmp_path, piece_ids(model), ("<unk>", "<s>", "</s>"))
    tokenizer.encode_special_tokens = True
    for text in [*OTHER_ENGLISH, *CHINESE[:100], *UNUSUAL]:
        expected = model.encode(text)
        assert encode(tokenizer, text) == expected, text
        if model.unk_id() not in expected:
            assert tokenizer.decode(expected) == model.decode(expected)


def test_user_defined_symbols(tmp_path):
    """They come first in unigram models; BPE models with such are refused."""
    symbols = ("og b", "☃", "zqz")
    model = train_spm(tmp_path, "m", ENGLISH, user_defined_symbols=symbols)
    tokenizer = read_model(tmp_path, piece_ids(model))
    for text in ["a dog barks", "☃☃", "zqzqz the dog", "dog b"]:
        assert encode(tokenizer, text) == model.encode(text), text
    train_spm(tmp_path, "m", ENGLISH, user_defined_symbols=symbols, model_type="bpe")
    with pytest.raises(UserError, match="a bpe model with user-defined pieces"):
        read_spm_model(CheckpointFiles(tmp_path), "m.spm")


@pytest.mark.parametrize("rules", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"])
def test_combining_marks_are_composed(rules, tmp_path):
    """Korean and Vietnamese in decomposed form, and half-width letters with marks."""
    texts = ("한국어를 각각 읽는다", "ガラスノパンダ ～", "Tiếng Việt được viết bằng chữ Latinh", "ἄνδρα ᾧ ᾦ")
    model = train_spm(tmp_path, "m", ENGLISH + texts * 20, vocab_size=600, normalization_rule_name=rules)
    tokenizer = read_model(tmp_path, piece_ids(model))
    for text in [*(unicodedata.normalize("NFD", text) for text in texts), "ｶﾞﾗｽﾉﾊﾟﾝﾀﾞ", "カ\u3099"]:
        expected = model.encode(text)
        assert encode(tokenizer, text) == expected, text
        assert model.unk_id() not in expected


@pytest.mark.parametrize(("piece", "normalized_piece"), [("①", "1"), ("\t", " "), ("ﬁ", "fi")])
def test_denormalized_user_symbol_is_refused(piece, normalized_piece, tmp_path):
    """The library finds it all the same; here the rules come first."""
    model = train_spm(tmp_path, "m", ENGLISH, user_defined_symbols=(piece,))
    assert piece in model.encode(f"a{piece}b", out_type=str)
    message = f"a user-defined piece, .* its rules normalize to '{normalized_piece}'"
    with pytest.raises(UserError, match=message):
        read_spm_model(CheckpointFiles(tmp_path), "m.spm")


def before_end(rows, end):
    return [row[: row.index(end)] if end in row else row for row in rows]


def test_marian_has_two_tokenizers(marian):
    """A character of the vocabulary that is no piece of one side is its token; it never joins a word."""
    directory, reference, _ = marian
    tokenizer, chinese = ph.load(directory).tokenizer, list(CHINESE)
    texts, unknown_id = [*OTHER_ENGLISH, "a 安 b", "the 型 dog", "x 的"], tokenizer.unk_id
    ids, target_ids = tokenizer.encode(texts), tokenizer.target_tokenizer.encode(chinese)
    assert ids == [row[:-1] for row in reference(texts).input_ids]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(directory / "target.spm"))

    def score(row):
        return sum(pieces.GetScore(pieces.PieceToId(token)) for token in reference.convert_ids_to_tokens(row))

    for row, expected in zip(target_ids, reference(text_target=chinese).input_ids, strict=True):
        # two cuts of a text may have the same score
        assert row == expected[:-1] or score(row) == pytest.approx(score(expected[:-1]), abs=1e-4)
    assert target_ids != tokenizer.encode(chinese)
    assert tokenizer.decode(ids) == reference.batch_decode(ids, skip_special_tokens=True)
    assert tokenizer.special_ids == [0, 1, *range(tokenizer.vocab_size - 3, tokenizer.vocab_size)]
    assert not any(unknown_id in row for row in ids[-3:]) and unknown_id in tokenizer.encode(["a 囧 b"])[0]


def test_exported_tokenizer_ends_sources(marian, m2m100, tmp_path):
    """In the reference its code puts the end there, in the exported file a rule."""
    pairs = ([], ["--source-lang", "en", "--target-lang", "fr"])
    for (directory, reference, _), languages in zip((marian, m2m100), pairs, strict=True):
        run_dir, exported_dir = (tmp_path / f"{directory.name}-{name}" for name in ("run", "exported"))
        assert main(["import", str(directory), str(run_dir), *languages]) == 0
        assert main(["export", str(run_dir), str(exported_dir)]) == 0
        exported_tokenizer = transformers.AutoTokenizer.from_pretrained(exported_dir)
        reference.src_lang = "en"
        assert exported_tokenizer(SOURCES).input_ids == reference(SOURCES).input_ids


@pytest.mark.parametrize(("language", "token"), [("fra", ">>fra<<"), ("cmn", ">>cmn_Hans<<")])
def test_target_language_of_marian(language, token, marian):
    directory, tokenizer, model = marian
    inputs = tokenizer([f"{token} {text}" for text in SOURCES], return_tensors="pt", padding=True)
    expected = before_end([row[1:20] for row in model.generate(**inputs).tolist()], 0)
    hypotheses = ph.load(directory).hypotheses(SOURCES, n_best=1, target_lang=language)
    assert [best[0].tokens[:19] for best in hypotheses] == expected


def test_too_long_line_is_named_by_number(marian, tmp_path, capsys):
    """The language and the end need room too."""
    run, path = ph.load(marian[0]), tmp_path / "text"
    max_len = run.config.max_len - 2
    text = run.tokenizer.decode([run.tokenizer.encode(["the dog " * 60])[0][: max_len + 1]])[0]
    assert len(run.tokenizer.encode([text])[0]) == max_len + 1
    path.write_text(f"the dog\n\nthe dog\n\n{text}\n")
    for chunk in ("2", "512"):
        options = ["--target-lang", "fra", "--read-batch", chunk]
        assert main(["translate", str(marian[0]), str(path), *options]) == 0
        out, err = capsys.readouterr()
        assert out.count("\n") == 5 and out.endswith("\n\n")
        message = f"polyhead: line 5: {max_len + 1} tokens, the model's maximum is {max_len}: split it"
        assert err.startswith(message)


def test_imported_target_language(marian, tmp_path, capsys):
    """The run needs no language, keeps both tokenizers, and still takes another language."""
    directory, reference, _ = marian
    assert main(["import", str(directory), str(tmp_path / "run"), "--target-lang", "fra"]) == 0
    run, original = ph.load(tmp_path / "run"), ph.load(directory)
    assert run.translate(SOURCES) == original.translate(SOURCES, target_lang="fra")
    assert run.translate(SOURCES, target_lang="cmn") == original.translate(SOURCES, target_lang="cmn")
    prefix = reference(">>fra<<").input_ids[:1]
    assert run.tokenizer.seq2seq_template.encoder_input([5]) == [*prefix, 5, 0]
    ids, expected_ids = (one.tokenizer.target_tokenizer.encode(list(CHINESE[:50])) for one in (run, original))
    assert ids == expected_ids
    assert run.tokenizer.sha256 == ph.load(tmp_path / "run").tokenizer.sha256 != original.tokenizer.sha256
    capsys.readouterr()
    assert main(["import", str(directory), str(tmp_path / "b"), "--source-lang", "fra"]) == 2
    assert "takes only a target language" in capsys.readouterr().err


def test_languages_are_required_and_chosen(marian, m2m100):
    run = ph.load(marian[0])
    with pytest.raises(UserError, match=r"several languages; .* one of af, am, .* and 76 more$"):
        ph.load(m2m100[0]).translate(SOURCES, source_lang="en")
    message = r"set the target language \(target_lang\), one of cmn_Hans, fra"
    for call in (
        run.translate,
        lambda texts: run.score(texts, texts),
        lambda texts: run.cross_attention(texts[0], texts[0]),
    ):
        with pytest.raises(UserError, match=message):
            call(SOURCES)
    with pytest.raises(UserError, match="this model has no token for it; did you mean 'fra'"):
        run.translate(SOURCES, target_lang="frr")
    for code, alias in {"fra": "fr", "cmn_Hans": "zh"}.items():
        assert run.translate(SOURCES, target_lang=code) == run.translate(SOURCES, target_lang=alias)
    directory, tokenizer, model = m2m100
    run = ph.load(directory)
    assert run.tokenizer.encode(OTHER_ENGLISH) == [ids[1:-1] for ids in tokenizer(OTHER_ENGLISH).input_ids]
    assert run.tokenizer.seq2seq_template.encoder_input([7]) == [tokenizer.get_lang_id("en"), 7, 2]
    tokenizer.src_lang = "zu"
    inputs = tokenizer(SOURCES, return_tensors="pt", padding=True)
    outputs = model.generate(**inputs, forced_bos_token_id=tokenizer.get_lang_id("de")).tolist()
    hypotheses = run.hypotheses(SOURCES, n_best=1, source_lang="zu", target_lang="de")
    assert [best[0].tokens[:18] for best in hypotheses] == before_end([row[2:20] for row in outputs], 2)


def link_target(directory):
    (directory / "target.spm").unlink()
    (directory / "target.spm").symlink_to(DOCS / "guide.md")


def retrain(name, **settings):
    return lambda directory: train_spm(directory, name, ENGLISH, **settings)


def edit_config(**keys):
    return lambda directory: edit_json(directory / "tokenizer_config.json", **keys)


IDS = "vocab.json must have token ids from 0, including <unk>"
DAMAGED_WEIGHTS = "source.spm: it is damaged or not a SentencePiece model"
CONFIG = "tokenizer_config.json: "


@pytest.mark.acceptance("F6", "F10")
@pytest.mark.whole
@pytest.mark.parametrize(
    ("translator", "damage", "message"),
    [
        ("marian", lambda d: (d / "target.spm").unlink(), " has no target.spm"),
        ("marian", lambda d: (d / "vocab.json").unlink(), " has neither tokenizer.json nor vocab.json"),
        ("marian", lambda d: edit_json(d / "vocab.json", new=True), "/" + IDS),
        ("marian", lambda d: edit_json(d / "vocab.json", new=[1]), "/" + IDS),
        ("marian", lambda d: (d / "vocab.json").write_text('{"a": 0}'), "/" + IDS),
        ("marian", lambda d: (d / "source.spm").write_bytes(b""), "/" + DAMAGED_WEIGHTS),
        ("marian", lambda d: (d / "source.spm").write_text("pieces"), "/" + DAMAGED_WEIGHTS),
        ("marian", retrain("source", model_type="word"), "/source.spm: a model of kind word; expected un"),
        ("marian", retrain("target", byte_fallback=True, vocab_size=800), "/target.spm: a model with byte_f"),
        ("marian", retrain("target", treat_whitespace_as_suffix=True), "/target.spm: a model with treat_wh"),
        ("marian", edit_config(separate_vocabs=True), f"/{CONFIG}separate_vocabs is true, expected false"),
        ("marian", link_target, "/target.spm leads to a file outside"),
        ("m2m100", edit_config(language_codes="m2m"), f"/{CONFIG}language_codes is 'm2m', expected one"),
        ("m2m100", edit_config(language_codes=["en"]), f"/{CONFIG}language_codes is ['en'], expected"),
        ("m2m100", edit_config(src_lang="eng"), f"/{CONFIG}src_lang is 'eng', expected one of af am"),
    ],
)
def test_damaged_files_are_refused(translator, damage, message, request, tmp_path):
    directory = tmp_path / "checkpoint"
    shutil.copytree(request.getfixturevalue(translator)[0], directory)
    damage(directory)
    with pytest.raises(UserError) as error:
        ph.load(directory)
    assert str(error.value).startswith(f"{directory}{message}")


def test_random_damage_raises_only_user_errors(tmp_path):
    ids = piece_ids(train_spm(tmp_path, "m", ENGLISH[:100]))
    content, generator = (tmp_path / "m.spm").read_bytes(), random.Random(0)
    for _ in range(60):
        size = generator.choice([len(content), len(content), generator.randrange(len(content))])
        data = bytearray(content[:size])
        for _ in range(generator.randrange(4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        (tmp_path / "m.spm").write_bytes(data)
        try:
            read_model(tmp_path, ids).encode("the dog ☃")
        except UserError:
            continue


def test_both_tokenizers_are_saved(marian, tmp_path, monkeypatch):
    tokenizer, texts = ph.load(marian[0]).tokenizer, list(CHINESE[:30])
    target_tokenizer = tokenizer.target_tokenizer
    tokenizer.save(tmp_path)
    saved_tokenizer = Tokenizer.load(tmp_path)
    assert saved_tokenizer.sha256 == tokenizer.sha256
    assert saved_tokenizer.target_tokenizer.encode(texts) == target_tokenizer.encode(texts)
    full_disk = Mock(side_effect=OSError("no space left"))
    with monkeypatch.context() as patches:
        patches.setattr("polyhead.tokenizers.tokenizer.replace_file", full_disk)
        with pytest.raises(OSError, match="no space"):
            tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).sha256 == tokenizer.sha256
    # alone it serves both sides, and no file of the other one is left
    (tmp_path / "target_tokenizer.json").unlink()
    run = ph.load(marian[0])
    with pytest.raises(UserError, match="run 2 has another tokenizer than run 1"):
        ensemble_runs([run, Run(run.model, Tokenizer.load(tmp_path), run.generation)])
    source = Inner.from_str(tokenizer.tokenizer_json)
    for target, is_equal in ((target_tokenizer, True), (Tokenizer(source, {}), False)):
        assert (Tokenizer(source, {}, target_tokenizer=target).sha256 == tokenizer.sha256) == is_equal
    target_tokenizer.save(tmp_path)
    single_tokenizer = Tokenizer.load(tmp_path)
    assert single_tokenizer.target_tokenizer is single_tokenizer
    assert single_tokenizer.sha256 == target_tokenizer.sha256 != tokenizer.sha256


def test_target_lengths_use_target_tokenizer(marian, tmp_path, capsys):
    """Of a text that is short as a source and too long as a target."""
    original = ph.load(marian[0])
    template = with_languages(original.tokenizer, None, "fra")
    run = Run(original.model, original.tokenizer.with_seq2seq_template(template), original.generation)
    source, target, max_len = run.tokenizer, run.tokenizer.target_tokenizer, run.config.max_len
    long_text = next(text for text in OTHER_ENGLISH if len(target.encode([text])[0]) > max_len)[:120]
    texts = ["the dog", long_text]
    (first, second), (_, n_target) = (map(len, one.encode(texts)) for one in (source, target))
    assert first < second < max_len < n_target
    with pytest.raises(ApiError, match=f"text 1 has {n_target} tokens"):
        _check_text_lengths(SimpleNamespace(run=run), [("the dog", long_text)])
    assert count_row_tokens(ModelUnderTest(run, "", SOURCES[:2], texts))[1] == max_len
    chinese = [line[:30] for line in CHINESE[1:4]]
    labels = make_pair_rows(ModelUnderTest(run, "", SOURCES, chinese), 3, 60).labels
    assert [row[row >= 0][:-1].tolist() for row in labels] == target.encode(chinese)
    files = [str(tmp_path / "a.en"), str(tmp_path / "a.zh")]
    for path, side in zip(files, (["the dog"] * 2, texts), strict=True):
        Path(path).write_text("\n".join(side) + "\n")
    run.save(tmp_path / "run")
    assert main(["eval", str(tmp_path / "run"), *files]) == 0
    assert "polyhead: 1 pairs have more than" in capsys.readouterr().err
    run.directory = tmp_path
    write_examples(tmp_path, zip(["the dog"] * 2, texts, strict=True))
    counts = count_example_tokens(run)
    assert counts is not None and counts[1].sum() == sum(map(len, target.encode(texts)))


def test_training_needs_one_target_language(marian, tmp_path, capsys):
    files, recipe = [str(tmp_path / name) for name in ("a.en", "a.zh")], tmp_path / "r.yaml"
    for path in files:
        Path(path).write_text("the dog\n" * 5)
    recipe.write_text(
        f"task: translation\ninit_from: {marian[0]}\ndata: {{train: {files}, valid: {files}}}\n"
        f"train: {{steps: 1}}\nout: {tmp_path}/run\n"
    )
    assert main(["train", str(recipe)]) == 2
    assert "this model translates to several languages" in capsys.readouterr().err
    assert main(["import", str(marian[0]), str(tmp_path / "one"), "--target-lang", "fra"]) == 0
    assert main(["train", str(recipe), f"init_from={tmp_path}/one"]) == 0
    first, second = (ph.load(tmp_path / name).tokenizer for name in ("one", "run"))
    assert first.sha256 == second.sha256 and first.seq2seq_template == second.seq2seq_template
