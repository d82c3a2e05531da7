"""Vocabularies of SentencePiece, against the library itself and the tokenizers of the reference
implementation.
"""

from __future__ import annotations

import json
import random
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import transformers
from tests.hf.tokenizers.spm_helpers import DOCS, SOURCES, learnt, lines, numbered
from tests.hf.tokenizers.spm_helpers import m2m100 as m2m100
from tests.hf.tokenizers.spm_helpers import marian as marian

import polyhead as ph
from polyhead.cli import main
from polyhead.cli.visualize import count_training_tokens
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.tokenizers.spm import build_tokenizer, read_spm_model
from polyhead.lab.eval_rows import make_pair_rows
from polyhead.lab.paging import count_row_tokens
from polyhead.lab.test_model import ModelUnderTest
from polyhead.run.run import Run
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.serve.http.errors import ApiError
from polyhead.serve.openai.pooling_endpoints import _check_text_lengths
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import Tokenizer as Inner

UNUSUAL = [
    "", " ", "a  b", "\ta\n b ", "ﬁne ① ½", "☃☃ x ☃", "e\u0301te\u0301", "▁ ▁a", "1\u00a02", "ÀÉ ß",
    "🙂🙃 hi",
    "x\u200by",
    "<unk> </s> <pad> <<a>>", ">>fra<< the", "__de__ the", "．，", "\u202eabc", "the" * 300,
]  # fmt: skip


SETTINGS = [
    {},
    {"add_dummy_prefix": False},
    {"remove_extra_whitespaces": False},
    {"split_by_whitespace": False},
    {"normalization_rule_name": "identity"},
    {"normalization_rule_name": "nfkc_cf"},
    {"character_coverage": 0.98},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_texts_are_cut_as_by_the_library(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = learnt(tmp_path, "m", lines("guide.md"), model_type=kind, **settings)
    made = build_tokenizer(
        read_spm_model(CheckpointFiles(tmp_path), "m.spm"), numbered(model), ["<unk>", "<s>", "</s>"]
    )
    made.encode_special_tokens = True
    for text in [*lines("architecture.md"), *lines("guide.zh-CN.md", 100), *UNUSUAL]:
        wanted = model.encode(text)
        assert made.encode(text, add_special_tokens=False).ids == wanted, text
        if model.unk_id() not in wanted:
            assert made.decode(wanted) == model.decode(wanted)


def test_what_a_user_defined_comes_first_in_unigram_models_and_is_not_there_in_others(tmp_path: Path) -> None:
    symbols = ["og b", "☃", "zqz"]
    model = learnt(tmp_path, "m", lines("guide.md"), user_defined_symbols=symbols)
    made = build_tokenizer(read_spm_model(CheckpointFiles(tmp_path), "m.spm"), numbered(model), ["<unk>"])
    for text in ["a dog barks", "☃☃", "zqzqz the dog", "dog b"]:
        assert made.encode(text, add_special_tokens=False).ids == model.encode(text), text
    learnt(tmp_path, "m", lines("guide.md"), user_defined_symbols=symbols, model_type="bpe")
    with pytest.raises(UserError, match="a bpe model with user-defined pieces"):
        read_spm_model(CheckpointFiles(tmp_path), "m.spm")


@pytest.mark.parametrize("rules", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"])
def test_letters_and_their_marks_are_one_character_however_long(rules: str, tmp_path: Path) -> None:
    """Korean and Vietnamese in pieces, as files of some systems have it, and marked letters of half width."""
    texts = ["한국어를 각각 읽는다", "ガラスノパンダ ～", "Tiếng Việt được viết bằng chữ Latinh", "ἄνδρα ᾧ ᾦ"]
    model = learnt(
        tmp_path, "m", lines("guide.md") + texts * 20, vocab_size=600, normalization_rule_name=rules
    )
    made = build_tokenizer(read_spm_model(CheckpointFiles(tmp_path), "m.spm"), numbered(model), ["<unk>"])
    for text in [*(unicodedata.normalize("NFD", text) for text in texts), "ｶﾞﾗｽﾉﾊﾟﾝﾀﾞ", "カ\u3099"]:
        wanted = model.encode(text)
        assert made.encode(text, add_special_tokens=False).ids == wanted, text
        assert model.unk_id() not in wanted


@pytest.mark.parametrize(("piece", "written"), [("①", "1"), ("\t", " "), ("ﬁ", "fi")])
def test_a_piece_of_its_user_that_its_rules_write_otherwise_is_refused(
    piece: str, written: str, tmp_path: Path
) -> None:
    """There it is found all the same; here its rules come first."""
    model = learnt(tmp_path, "m", lines("guide.md"), user_defined_symbols=[piece])
    assert piece in model.encode(f"a{piece}b", out_type=str)
    with pytest.raises(UserError, match=f"a user-defined piece, .* its rules normalize to '{written}'"):
        read_spm_model(CheckpointFiles(tmp_path), "m.spm")


def cut(rows: list[list[int]], end: int) -> list[list[int]]:
    """Tokens up to the end."""
    return [row[: row.index(end)] if end in row else row for row in rows]


def test_marian_is_read_with_its_two_ways_of_cutting(marian: tuple[Path, Any, Any]) -> None:
    directory, theirs, _ = marian
    ours = ph.load(directory).tokenizer
    english, chinese = lines("architecture.md"), lines("guide.zh-CN.md")
    assert ours.encode(english) == [ids[:-1] for ids in theirs(english).input_ids]
    assert ours.target_tokenizer.encode(chinese) == [
        ids[:-1] for ids in theirs(text_target=chinese).input_ids
    ]
    assert ours.target_tokenizer.encode(chinese) != ours.encode(chinese)
    assert ours.decode(ours.encode(english)) == theirs.batch_decode(
        ours.encode(english), skip_special_tokens=True
    )
    assert ours.special_ids == [0, 1, *range(ours.vocab_size - 3, ours.vocab_size)]


def test_sources_of_what_was_exported_end_as_they_did(
    marian: tuple[Path, Any, Any], m2m100: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    """Pieces have no rule for the end, which the reference's own code puts there; the
    exported file has one.
    """
    for number, (directory, theirs, _) in enumerate((marian, m2m100)):
        run, out = tmp_path / f"run{number}", tmp_path / f"out{number}"
        languages = [] if number == 0 else ["--source-lang", "en", "--target-lang", "fr"]
        assert main(["import", str(directory), str(run), *languages]) == 0
        assert main(["export", str(run), str(out)]) == 0
        again = transformers.AutoTokenizer.from_pretrained(out)
        theirs.src_lang = "en"
        assert again(SOURCES).input_ids == theirs(SOURCES).input_ids


@pytest.mark.parametrize("language", ["fra", "cmn"])
def test_marian_is_told_the_language_of_the_target(language: str, marian: tuple[Path, Any, Any]) -> None:
    directory, tokenizer, model = marian
    told = [f">>{'fra' if language == 'fra' else 'cmn_Hans'}<< {text}" for text in SOURCES]
    wanted = model.generate(**tokenizer(told, return_tensors="pt", padding=True)).tolist()
    found = ph.load(directory).hypotheses(SOURCES, n_best=1, target_lang=language)
    assert [best[0].tokens[:19] for best in found] == cut([row[1:20] for row in wanted], 0)


def test_a_line_with_no_room_for_its_language_is_named_by_its_number(
    marian: tuple[Path, Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, text = ph.load(marian[0]), tmp_path / "text"
    most = run.config.max_len - 2  # beside the end the language
    word = run.tokenizer.decode([run.tokenizer.encode(["the dog " * 60])[0][: most + 1]])[0]
    assert len(run.tokenizer.encode([word])[0]) == most + 1
    text.write_text(f"the dog\n\nthe dog\n\n{word}\n")
    for chunk in ("2", "512"):
        assert (
            main(["translate", str(marian[0]), str(text), "--target-lang", "fra", "--read-batch", chunk]) == 0
        )
        out, err = capsys.readouterr()
        assert out.count("\n") == 5 and out.endswith("\n\n")
        assert err.startswith(f"polyhead: line 5: {most + 1} tokens, the model's maximum is {most}: split it")


def test_a_pair_of_languages_is_chosen_at_import(
    marian: tuple[Path, Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run then needs no language, can be gone on from, keeps both ways of cutting, and still obeys
    another one.
    """
    directory, tokenizer, _ = marian
    assert main(["import", str(directory), str(tmp_path / "run"), "--target-lang", "fra"]) == 0
    run, whole = ph.load(tmp_path / "run"), ph.load(directory)
    assert run.translate(SOURCES) == whole.translate(SOURCES, target_lang="fra")
    assert run.translate(SOURCES, target_lang="cmn") == whole.translate(SOURCES, target_lang="cmn")
    assert run.tokenizer.seq2seq_template.encoder_input([5]) == [*tokenizer(">>fra<<").input_ids[:1], 5, 0]
    chinese = lines("guide.zh-CN.md", 50)
    assert run.tokenizer.target_tokenizer.encode(chinese) == whole.tokenizer.target_tokenizer.encode(chinese)
    assert run.tokenizer.sha256 == ph.load(tmp_path / "run").tokenizer.sha256 != whole.tokenizer.sha256
    capsys.readouterr()
    assert main(["import", str(directory), str(tmp_path / "b"), "--source-lang", "fra"]) == 2
    assert "takes only a target language" in capsys.readouterr().err


def test_several_languages_and_none_named_is_told(
    marian: tuple[Path, Any, Any], m2m100: tuple[Path, Any, Any]
) -> None:
    run = ph.load(marian[0])
    with pytest.raises(UserError, match=r"several languages; .* one of af, am, .* and 76 more$"):
        ph.load(m2m100[0]).translate(SOURCES, source_lang="en")
    for unsaid in (
        run.translate,
        lambda texts: run.score(texts, texts),
        lambda texts: run.cross_attention(texts[0], texts[0]),
    ):
        with pytest.raises(
            UserError,
            match=r"set the target language .* for all else --target-lang of import\), one of cmn_Hans, fra",
        ):
            unsaid(SOURCES)
    with pytest.raises(UserError, match="this model has no token for it; did you mean 'fra'"):
        run.translate(SOURCES, target_lang="frr")
    for code, other in {"fra": "fr", "cmn_Hans": "zh"}.items():  # other codes of the same languages
        assert run.translate(SOURCES, target_lang=code) == run.translate(SOURCES, target_lang=other)


def test_m2m100_is_read_and_translates_between_its_languages(m2m100: tuple[Path, Any, Any]) -> None:
    directory, tokenizer, model = m2m100
    run, english = ph.load(directory), lines("architecture.md")
    assert run.tokenizer.encode(english) == [ids[1:-1] for ids in tokenizer(english).input_ids]
    assert run.tokenizer.seq2seq_template.encoder_input([7]) == [tokenizer.get_lang_id("en"), 7, 2]
    tokenizer.src_lang = "zu"
    given = tokenizer(SOURCES, return_tensors="pt", padding=True)
    wanted = model.generate(**given, forced_bos_token_id=tokenizer.get_lang_id("de")).tolist()
    found = run.hypotheses(SOURCES, n_best=1, source_lang="zu", target_lang="de")
    assert [best[0].tokens[:18] for best in found] == cut([row[2:20] for row in wanted], 2)


def edited(name: str, **keys: Any) -> Callable[[Path], Any]:
    def write(directory: Path) -> None:
        path = directory / name
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))

    return write


MISTAKES: list[tuple[Callable[[Path], Any], str]] = [
    (lambda d: (d / "target.spm").unlink(), "{0} has no target.spm"),
    (lambda d: (d / "vocab.json").unlink(), "{0} has neither tokenizer.json nor vocab.json"),
    (edited("vocab.json", new=True), "{0}/vocab.json must have token ids from 0, including <unk>"),
    (edited("vocab.json", new=[1]), "{0}/vocab.json must have token ids from 0, including <unk>"),
    (lambda d: (d / "vocab.json").write_text('{"a": 0}'), "{0}/vocab.json must have token ids from 0, "
        "including <unk>"),
    (lambda d: (d / "source.spm").write_bytes(b""), "{0}/source.spm: it is damaged or not a SentencePiece "
        "model"),
    (lambda d: (d / "source.spm").write_text("pieces"), "{0}/source.spm: it is damaged or not a "
        "SentencePiece model"),
    (lambda d: learnt(d, "source", lines("guide.md"), model_type="word"), "{0}/source.spm: a model of kind "
        "word; expected unigram or bpe"),
    (lambda d: learnt(d, "target", lines("guide.md"), byte_fallback=True, vocab_size=800),
        "{0}/target.spm: a model with byte_fallback"),
    (lambda d: learnt(d, "target", lines("guide.md"), treat_whitespace_as_suffix=True),
        "{0}/target.spm: a model with treat_whitespace"),
    (edited("tokenizer_config.json", separate_vocabs=True), "{0}/tokenizer_config.json: separate_vocabs is "
        "true, expected false"),
    (lambda d: ((d / "target.spm").unlink(), (d / "target.spm").symlink_to(DOCS / "guide.md")),
        "{0}/target.spm is a link to a file outside"),
]  # fmt: skip


@pytest.mark.acceptance("F6", "F10")
@pytest.mark.parametrize(("spoil", "message"), MISTAKES)
def test_what_is_wrong_is_named(
    spoil: Callable[[Path], Any], message: str, marian: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    directory = tmp_path / "m"
    shutil.copytree(marian[0], directory)
    spoil(directory)
    with pytest.raises(UserError) as error:
        ph.load(directory)
    assert str(error.value).startswith(message.replace("{0}", str(directory)))


def test_damaged_files_are_read_or_refused_but_nothing_else(tmp_path: Path) -> None:
    model = learnt(tmp_path, "m", lines("guide.md", 100))
    whole, ids, draw = (tmp_path / "m.spm").read_bytes(), numbered(model), random.Random(0)
    for _ in range(150):
        data = bytearray(whole[: draw.choice([len(whole), len(whole), draw.randrange(len(whole))])])
        for _ in range(draw.randrange(4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (tmp_path / "m.spm").write_bytes(data)
        try:
            build_tokenizer(read_spm_model(CheckpointFiles(tmp_path), "m.spm"), ids, ["<unk>"]).encode(
                "the dog ☃"
            )
        except UserError:
            continue


def test_languages_of_m2m100_are_checked(m2m100: tuple[Path, Any, Any], tmp_path: Path) -> None:
    for keys, message in [
        ({"language_codes": "m2m"}, "language_codes is 'm2m', expected one of m2m100, wmt21"),
        ({"language_codes": ["en"]}, "language_codes is ['en'], expected"),
        ({"src_lang": "eng"}, "src_lang is 'eng', expected one of af am"),
    ]:
        directory = tmp_path / str(len(message))
        shutil.copytree(m2m100[0], directory)
        edited("tokenizer_config.json", **keys)(directory)
        with pytest.raises(UserError, match=r"tokenizer_config.json: ") as error:
            ph.load(directory)
        assert message in str(error.value)


def test_what_cuts_targets_goes_with_the_files(
    marian: tuple[Path, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, text = ph.load(marian[0]).tokenizer, lines("guide.zh-CN.md", 30)
    both.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.sha256 == both.sha256
    assert again.target_tokenizer.encode(text) == both.target_tokenizer.encode(text)
    with monkeypatch.context() as full:
        full.setattr("polyhead.tokenizers.tokenizer.replace_file", Mock(side_effect=OSError("no space left")))
        with pytest.raises(OSError, match="no space"):
            both.save(tmp_path)
    assert Tokenizer.load(tmp_path).sha256 == both.sha256
    both.target_tokenizer.save(tmp_path)  # alone it cuts both sides, and nothing is left of the other
    alone = Tokenizer.load(tmp_path)
    assert alone.target_tokenizer is alone
    assert alone.sha256 == both.target_tokenizer.sha256 != both.sha256


def test_characters_that_one_side_alone_knows_are_looked_up_as_there(marian: tuple[Path, Any, Any]) -> None:
    """A character of the vocabulary that is no piece of this side is its token; words made of such are never
    one.
    """
    directory, theirs, _ = marian
    ours, texts = ph.load(directory).tokenizer, ["a 安 b", "the 型 dog", "x 的"]
    assert ours.encode(texts) == [ids[:-1] for ids in theirs(texts).input_ids]
    assert not any(ours.unk_id in ids for ids in ours.encode(texts))
    assert ours.unk_id in ours.encode(["a 囧 b"])[0]


def test_whoever_counts_the_tokens_of_a_target_counts_those_that_cut_targets(
    marian: tuple[Path, Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A target that is short as a source and too long as a target."""
    whole = ph.load(marian[0])
    run = Run(
        whole.model,
        whole.tokenizer.with_seq2seq_template(with_languages(whole.tokenizer, None, "fra")),
        whole.generation,
    )
    source, target, most = run.tokenizer, run.tokenizer.target_tokenizer, run.config.max_len
    texts = [
        "the dog",
        next(text for text in lines("architecture.md") if len(target.encode([text])[0]) > most)[:120],
    ]
    (short, fits), (_, long) = (map(len, cuts.encode(texts)) for cuts in (source, target))
    assert short < fits < most < long

    with pytest.raises(ApiError, match=f"text 1 has {long} tokens"):
        _check_text_lengths(SimpleNamespace(run=run), [("the dog", texts[1])])  # type: ignore[arg-type]
    assert count_row_tokens(ModelUnderTest(run, "", SOURCES[:2], texts))[1] == most
    chinese = [line[:30] for line in lines("guide.zh-CN.md", 4)[1:]]
    wanted = make_pair_rows(ModelUnderTest(run, "", SOURCES, chinese), 3, 60).labels
    assert [row[row >= 0][:-1].tolist() for row in wanted] == target.encode(chinese)

    for name, side in (("a.en", ["the dog"] * 2), ("a.zh", texts)):
        (tmp_path / name).write_text("\n".join(side) + "\n")
    files = [str(tmp_path / "a.en"), str(tmp_path / "a.zh")]
    run.save(tmp_path / "run")
    assert main(["eval", str(tmp_path / "run"), *files]) == 0
    assert "polyhead: 1 pairs have more than" in capsys.readouterr().err
    run.recipe = Recipe.model_validate({"data": {"train": files, "valid": files}, "train": {"steps": 1}})
    counted = count_training_tokens(run)
    assert counted is not None
    assert counted[1].sum() == sum(map(len, target.encode(texts)))


def test_a_model_of_several_languages_is_not_taught_before_one_is_chosen(
    marian: tuple[Path, Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.en", "a.zh"):
        (tmp_path / name).write_text("the dog\n" * 5)
    data = (
        "{" + ", ".join(f"{split}: [{tmp_path}/a.en, {tmp_path}/a.zh]" for split in ("train", "valid")) + "}"
    )
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"task: translation\ninit_from: {marian[0]}\ndata: {data}\ntrain: {{steps: 1}}\nout: {tmp_path}/run\n"
    )
    assert main(["train", str(recipe)]) == 2
    assert "this model translates to several languages" in capsys.readouterr().err
    assert main(["import", str(marian[0]), str(tmp_path / "one"), "--target-lang", "fra"]) == 0
    assert main(["train", str(recipe), f"init_from={tmp_path}/one"]) == 0
    kept = [ph.load(tmp_path / name).tokenizer for name in ("one", "run")]
    assert kept[0].sha256 == kept[1].sha256
    assert kept[1].seq2seq_template == kept[0].seq2seq_template


def test_tokenizers_that_differ_in_how_targets_are_cut_are_not_the_same(
    marian: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    both = ph.load(marian[0]).tokenizer
    source = Inner.from_str(both.tokenizer_json)
    assert Tokenizer(source, {}, target_tokenizer=both.target_tokenizer).sha256 == both.sha256
    assert Tokenizer(source, {}, target_tokenizer=Tokenizer(source, {})).sha256 != both.sha256
    both.save(tmp_path)
    (tmp_path / "target_tokenizer.json").unlink()
    run, alone = ph.load(marian[0]), Tokenizer.load(tmp_path)
    with pytest.raises(UserError, match="run 2 has another tokenizer than run 1"):
        ensemble_runs([run, Run(run.model, alone, run.generation)])
