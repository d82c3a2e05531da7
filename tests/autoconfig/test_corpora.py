import pytest

from polyhead.autoconfig.draft_recipe import draft_recipe
from polyhead.core.errors import UserError


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for stem, count, sides in (("news", 60, ("en", "de")), ("talks", 20, ("en", "zh"))):
        for split in (stem, f"{stem}-train"):
            for side in sides:
                lines = (f"{side} {split} {'abcdefgh'[: 1 + i % 8]} {i}\n" for i in range(count))
                (tmp_path / f"{split}.{side}").write_text("".join(lines))


def test_three_languages_give_a_corpus_each(texts):
    draft = draft_recipe(["news.en", "news.de", "talks.en", "talks.zh"], ["data.temperature=2"])
    corpora = draft.recipe.data.list_corpora("train")
    assert [(c.name, c.files, c.source_lang, c.target_lang) for c in corpora] == [
        ("en-de", ["news.en", "news.de"], "en", "de"),
        ("en-zh", ["talks.en", "talks.zh"], "en", "zh"),
    ]
    assert draft.recipe.data.language_tags == {"de": ">>de<<", "zh": ">>zh<<"}
    # the square roots of 60 and 20 are 7.75 and 4.47, of 80 pairs 50.7 and 29.3
    assert "corpus en-de: 60 of 60 texts, 63.7% of an epoch, 0.85 passes" in draft.notes
    assert "corpus en-zh: 20 of 20 texts, 36.2% of an epoch, 1.45 passes" in draft.notes


def test_both_ways_needs_validation_files(texts):
    with pytest.raises(UserError, match="both directions of a corpus need validation files"):
        draft_recipe(["news.en", "news.de"], [], both_ways=True)
    for side in ("en", "de"):
        with open(f"news-valid.{side}", "w") as file:
            file.write(f"other {side}\n" * 5)
    data = draft_recipe(["news-train.en", "news-train.de"], [], both_ways=True).recipe.data
    assert [corpus.files for corpus in data.list_corpora("train")] == [
        ["news-train.en", "news-train.de"],
        ["news-train.de", "news-train.en"],
    ]
    assert [(corpus.name, corpus.files) for corpus in data.list_corpora("valid")] == [
        ("en-de", ["news-valid.en", "news-valid.de"]),
        ("de-en", ["news-valid.de", "news-valid.en"]),
    ]
    with pytest.raises(UserError, match="--both-ways expects pairs of files"):
        draft_recipe(["news.en"], [], both_ways=True)


def test_one_pair_of_files_is_one_corpus(texts):
    assert draft_recipe(["news.en", "news.de"], []).recipe.data.train == ["news.en", "news.de"]
