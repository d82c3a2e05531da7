"""Terms from a file: each translation says what the words of its line must become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import polyhead
from polyhead.cli import main
from polyhead.core.errors import UserError

LINES = ["ein hund bellt .", "zwei hunde", "", "EIN Hund", "a dog"]
TERMS = {"hund": ["dog", "two dogs"], "zwei hunde": "dogs bark"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.mark.parametrize("chunk", ["1", "512"])
@pytest.mark.parametrize("beams", [1, 3])
def test_translations_are_those_of_the_library_and_have_their_terms(
    tiny: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], chunk: str, beams: int
) -> None:
    file, out = tmp_path / "terms.tsv", tmp_path / "out.txt"
    file.write_text("hund\tdog\n\nhund\ttwo dogs\nzwei hunde\tdogs bark\n")
    given = [str(tiny), str(source), "--terminology", str(file), "--beam-size", str(beams), "--chunk", chunk]
    assert main(["translate", *given, "--output", str(out)]) == 0
    assert f"polyhead: 3 of 5 lines have terms of {file}" in capsys.readouterr().err
    found = out.read_text().split("\n")[:-1]
    run, kept = polyhead.load(tiny), [line for line in LINES if line]
    wanted = run.translate(kept, terminology=TERMS, beam_size=beams)
    assert [text for text, line in zip(found, LINES, strict=True) if line] == [
        " ".join(text.splitlines()) for text in wanted
    ]
    plain = run.translate(kept, beam_size=beams)
    for line, with_terms, without in zip(kept, wanted, plain, strict=True):
        if "hund" not in line.lower():
            assert with_terms == without
        else:
            assert ("dogs bark" if "hunde" in line else "dog") in with_terms
            assert with_terms != without
    assert run.engine().submit(LINES[0], terminology=TERMS, beam_size=beams).collect_texts() == wanted[:1]
    short: dict[str, Any] = {"max_length_ratio": 0, "max_length_extra": 1, "beam_size": beams}
    whole = run.translate(["zwei hunde"], terminology=TERMS, **short)
    assert "dogs bark" in whole[0]  # however short an output should be
    assert run.engine().submit("zwei hunde", terminology=TERMS, **short).collect_texts() == whole


def test_eval_measures_translations_with_terms(
    tiny: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = [line for line in LINES if line]
    source.write_text("\n".join(kept) + "\n")
    file, out = tmp_path / "terms.tsv", tmp_path / "out.txt"
    file.write_text("hund\tdog\n")
    given = [str(tiny), str(source), str(source), "--terminology", str(file), "--output", str(out)]
    assert main(["eval", *given]) == 0
    assert "bleu" in capsys.readouterr().out
    wanted = polyhead.load(tiny).translate(kept, terminology={"hund": "dog"})
    assert out.read_text().split("\n")[:-1] == [" ".join(text.splitlines()) for text in wanted]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "hund dog\n",
            "--terminology: line 1 of FILE is 'hund dog'; wanted a word, a tab and what it becomes",
        ),
        (
            "hund\tdog\n\tcat\n",
            "--terminology: line 2 of FILE is '\\tcat'; wanted a word, a tab and what it becomes",
        ),
        ("hund\tdog\t\n", "--terminology: line 1 of FILE is 'hund\\tdog\\t'; wanted a word"),
        ("\n", "--terminology: FILE has no line with a word, a tab and what it becomes"),
        (
            "a dog\t" + 40 * "dog " + "\n",
            "polyhead: --terminology: line 5 has 40 tokens; this model takes 31 at most. Give fewer terms",
        ),
    ],
)
def test_mistakes_are_told(
    text: str, message: str, tiny: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text(text)
    assert main(["translate", str(tiny), str(source), "--terminology", str(file), "--chunk", "2"]) == 2
    assert message.replace("FILE", str(file)) in capsys.readouterr().err


def test_terms_that_are_not_utf_8_are_refused(
    tiny: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "terms.tsv"
    file.write_bytes(b"dog\tHund\nman\tM\xe4nner\n")
    assert main(["translate", str(tiny), str(source), "--terminology", str(file)]) == 2
    assert f"--terminology: line 2 of {file} has characters that are not UTF-8" in capsys.readouterr().err


def test_a_file_that_is_not_there_or_is_the_text_is_told(
    tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", str(tiny), str(source), "--terminology", "nowhere.tsv"]) == 2
    assert "no file 'nowhere.tsv'" in capsys.readouterr().err
    assert main(["translate", str(tiny), "-", "--terminology", "-"]) == 2
    assert "--terminology: standard input is the text already; name a file" in capsys.readouterr().err


def test_terms_are_for_translations_that_beams_search_for(tiny: Path) -> None:
    with pytest.raises(
        UserError, match="terminology has an effect on translations that beams search for alone"
    ):
        polyhead.load(tiny).engine().submit("ein hund", terminology=TERMS, temperature=0.5)
    with pytest.raises(UserError, match=r'terms are a dict such as {"dog": "Hund"}, got .dog.'):
        polyhead.load(tiny).translate(["ein hund"], terminology="dog")
