"""Tests of cli/line_io.py: terminology and prefixes of each line."""

import pytest
from tests.cli.conftest import LINES

import polyhead
from polyhead.core.errors import UserError

TEXTS = ["ein hund bellt .", "zwei hunde", "", "EIN Hund", "a dog"]
TERMS = {"hund": ["dog", "two dogs"], "zwei hunde": "dogs bark"}


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.fixture
def terms_file(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("hund\tdog\n\nhund\ttwo dogs\nzwei hunde\tdogs bark\n")
    return path


def one_line(texts):
    return [" ".join(text.splitlines()) for text in texts]


@pytest.mark.parametrize("read_batch", [1, 512])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_translations_contain_their_terms(tiny, text_file, terms_file, tmp_path, cli, read_batch, beam_size):
    options = ["--beam-size", beam_size, "--read-batch", read_batch, "--output", tmp_path / "out.txt"]
    err = cli("translate", tiny, text_file, "--terminology", terms_file, *options).err
    assert f"polyhead: 3 of 5 lines have terms of {terms_file}" in err
    lines = (tmp_path / "out.txt").read_text().split("\n")[:-1]
    run, texts = polyhead.load(tiny), [text for text in TEXTS if text]
    expected = run.translate(texts, terminology=TERMS, beam_size=beam_size)
    assert [line for line, text in zip(lines, TEXTS, strict=True) if text] == one_line(expected)
    for text, output, plain in zip(texts, expected, run.translate(texts, beam_size=beam_size), strict=True):
        assert (output != plain) == ("hund" in text.lower())
        if "hund" in text.lower():
            assert ("dogs bark" if "hunde" in text else "dog") in output
    engine = run.engine()
    request = engine.submit(TEXTS[0], terminology=TERMS, beam_size=beam_size)
    assert request.collect_texts() == expected[:1]
    short = {"max_length_ratio": 0, "max_length_extra": 1, "beam_size": beam_size}
    output = run.translate(["zwei hunde"], terminology=TERMS, **short)
    assert "dogs bark" in output[0], "whatever the maximum length"
    assert engine.submit("zwei hunde", terminology=TERMS, **short).collect_texts() == output


def test_terms_apply_to_eval_and_are_checked(tiny, text_file, terms_file, tmp_path, cli):
    terms_file.write_text("a dog\t" + 40 * "dog " + "\n")
    out, err = cli("translate", tiny, text_file, "--terminology", terms_file, "--read-batch", 2)
    expected = one_line(polyhead.load(tiny).translate(TEXTS))
    assert out.split("\n")[:-1] == [*expected[:4], ""]
    assert "line 5: its terms have 40 tokens, the model's maximum is 31; its output is blank\n" in err
    texts, path = [text for text in TEXTS if text], tmp_path / "out.txt"
    text_file.write_text("\n".join(texts) + "\n")
    terms_file.write_text("hund\tdog\n")
    options = ["--terminology", terms_file, "--output", path]
    assert "bleu" in cli("eval", tiny, text_file, text_file, *options).out
    expected = polyhead.load(tiny).translate(texts, terminology={"hund": "dog"})
    assert path.read_text().split("\n")[:-1] == one_line(expected)
    with pytest.raises(UserError, match="terminology is supported only for translations with beam search"):
        polyhead.load(tiny).engine().submit("ein hund", terminology=TERMS, temperature=0.5)
    with pytest.raises(UserError, match=r'terms are a dict such as {"dog": "Hund"}, got .dog.'):
        polyhead.load(tiny).translate(["ein hund"], terminology="dog")


def test_translations_begin_with_their_prefixes(tiny, source, tmp_path, translate):
    """Whatever the read batch; a line without prefix has none, and a blank line stays blank."""
    prefixes = [["", "ab", "the cat", "b a"][i % 4] for i in range(len(LINES))]
    path, run = tmp_path / "prefixes.txt", polyhead.load(tiny)
    path.write_text("".join(f"{line}\n" for line in prefixes))
    rows = [i for i, line in enumerate(LINES) if line.strip()]
    texts = [LINES[i] for i in rows]
    expected = run.translate(texts, prefix=[prefixes[i] for i in rows], beam_size=2)
    assert all(text.startswith(prefixes[i].strip()) for i, text in zip(rows, expected, strict=True))
    assert expected != run.translate(texts, beam_size=2)
    for read_batch in (512, 2):
        options = ["--beam-size", 2, "--read-batch", read_batch]
        lines = translate(tiny, source, "--prefix", path, *options)
        assert [lines[i] for i in rows] == one_line(expected)
        assert all(lines[i] == "" for i in range(len(LINES)) if i not in rows)


@pytest.mark.parametrize("read_batch", [2, 512])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ["--min-new-tokens", 6],
            "a source of 2 tokens: min_new_tokens is 6, more than the maximum of 5 tokens",
        ),
        (
            ["--terminology", "terms", "--no-repeat-ngram-size", 1],
            "no output with all of its terms was found",
        ),
    ],
)
def test_one_refused_line_stops_no_file(tiny, tmp_path, monkeypatch, cli, options, reason, read_batch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms").write_text("katze\tdog dog\n")
    texts = ["ein hund bellt .", "zwei hunde bellen .", "", "katze" if "terms" in options else "hund"]
    (tmp_path / "texts").write_text("\n".join([*texts, texts[0]]))
    out, err = cli("translate", tiny, "texts", "--scores", *options, "--read-batch", read_batch)
    assert f"polyhead: line 4: {reason}" in err and "; its output is blank\n" in err
    (tmp_path / "texts").write_text("\n".join(texts[:2]))
    first, second = cli("translate", tiny, "texts", "--scores", *options).out.splitlines()
    assert out == f"{first}\n{second}\n\n\n{first}\n"
