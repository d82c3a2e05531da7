"""Whole documents of ``translate``: bytes in, bytes out."""

import gzip

import pytest

import polyhead

PAGE = "\ufeff<p>ein <b>hund</b> bellt.\r\nzwei  hunde.</p>\r\n<pre>ein</pre>"


def test_documents_are_those_of_the_library(tiny, tmp_path, cli):
    expected = "\ufeff" + polyhead.load(tiny).translate_document(PAGE[1:], "html", beam_size=1)
    path, output = tmp_path / "page.html", tmp_path / "output.html"
    path.write_bytes(PAGE.encode())
    options = "--format", "html", "--beam-size", "1"
    assert cli("translate", tiny, path, *options) == (expected, "")
    assert cli("translate", tiny, "-", *options, stdin=PAGE.encode()).out == expected
    path.with_suffix(".gz").write_bytes(gzip.compress(PAGE.encode()))
    cli("translate", tiny, path.with_suffix(".gz"), *options, "--output", output)
    assert output.read_bytes() == expected.encode()
    assert cli("translate", tiny, "ein hund bellt. ein hund.", "--document").out == polyhead.load(
        tiny
    ).translate_document("ein hund bellt. ein hund.")


def test_other_file_names_are_a_hint(tiny, tmp_path, cli):
    path = tmp_path / "page.md"
    path.write_text("# ein hund\n")
    warning = f"polyhead: {path} ends like markdown; it is read as text\n"
    assert cli("translate", tiny, path, "--document").err == warning
    warning = f"polyhead: {path} is read line by line; --format markdown keeps its structure\n"
    assert cli("translate", tiny, path).err == warning
    path.write_text("ein hund bellt.\n\n" + "hund " * 40)
    out, err = cli("translate", tiny, path, "--format", "markdown")
    assert out.split("\n\n")[1] == "hund " * 40
    assert err.startswith("polyhead: sentence 2: ") and "maximum is" in err


@pytest.mark.parametrize(
    ("options", "content", "message"),
    [
        (("--format", "htm"), b"x", "--format: unknown format 'htm'; did you mean 'html'?"),
        (("--document", "--scores", "--n-best", "2"), b"x", "--n-best, --scores: for lines only"),
        (("--format", "xliff"), b"<xliff>", "xliff: the document is not well-formed XML: no element found"),
        (("--format", "srt"), b"1\n00:01 --> 2\n", "srt: line 2 is '00:01 --> 2'; expected times such as"),
        (("--format", "html"), "<p>größer".encode("latin-1"), "is not UTF-8"),
        (("--format", "html"), b"<META charset=latin1><p>x", "declares the encoding latin1, but"),
        (
            ("--format", "xliff"),
            b"<?xml version='1.0' encoding='ISO-8859-1'?><xliff/>",
            "declares the encoding ISO-8859-1",
        ),
    ],
)
def test_mistakes_are_one_message(options, content, message, tiny, tmp_path, cli):
    path = tmp_path / "document"
    path.write_bytes(content)
    out, err = cli("translate", tiny, path, *options, code=2)
    assert out == "" and message in err and err.count("\n") == 1


def test_language_models_are_refused(encoder, tmp_path, cli):
    out, err = cli("translate", encoder[0], "ein hund", "--document", code=2)
    assert out == "" and "encoder-decoder" in err
