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
    given = [
        str(tiny),
        str(source),
        "--terminology",
        str(file),
        "--beam-size",
        str(beams),
        "--read-batch",
        chunk,
    ]
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
            "--terminology: line 1 of FILE is 'hund dog'; expected a word, a tab and its translation",
        ),
        (
            "hund\tdog\n\tcat\n",
            "--terminology: line 2 of FILE is '\\tcat'; expected a word, a tab and its translation",
        ),
        ("hund\tdog\t\n", "--terminology: line 1 of FILE is 'hund\\tdog\\t'; expected a word"),
        ("\n", "--terminology: FILE has no line with a word, a tab and its translation"),
    ],
)
def test_mistakes_are_told(
    text: str, message: str, tiny: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text(text)
    assert main(["translate", str(tiny), str(source), "--terminology", str(file), "--read-batch", "2"]) == 2
    assert message.replace("FILE", str(file)) in capsys.readouterr().err


def test_a_line_with_too_many_terms_is_named(
    tiny: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text("a dog\t" + 40 * "dog " + "\n")
    assert main(["translate", str(tiny), str(source), "--terminology", str(file), "--read-batch", "2"]) == 0
    out, err = capsys.readouterr()
    outputs = [text.replace("\n", " ") for text in polyhead.load(tiny).translate(LINES)]
    assert out.split("\n")[:-1] == ["" if i == 4 else text for i, text in enumerate(outputs)]
    assert "line 5: its terms have 40 tokens, the model's maximum is 31; its output is blank\n" in err


def test_terms_are_for_translations_that_beams_search_for(tiny: Path) -> None:
    with pytest.raises(UserError, match="terminology is supported only for translations with beam search"):
        polyhead.load(tiny).engine().submit("ein hund", terminology=TERMS, temperature=0.5)
    with pytest.raises(UserError, match=r'terms are a dict such as {"dog": "Hund"}, got .dog.'):
        polyhead.load(tiny).translate(["ein hund"], terminology="dog")


TRANSLATE_LINES = ["ein hund bellt .", "zwei hunde", "", "hund hund hund", "  ", "a"]


@pytest.fixture
def source_of_translate(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text("\n".join(TRANSLATE_LINES) + "\n")
    return path


def translated(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    assert main(["translate", *map(str, arguments)]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\n") or not out
    return out.removesuffix("\n").split("\n") if out else []


def test_each_translation_begins_as_it_must(
    tiny: Path, source_of_translate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same as in the library, however lines are chunked; nothing is nothing, and a blank line stays
    blank.
    """
    begins = [["", "ab", "the cat", "b a"][i % 4] for i in range(len(TRANSLATE_LINES))]
    file = tmp_path / "begins.txt"
    file.write_text("".join(f"{line}\n" for line in begins))
    run = polyhead.load(tiny)
    kept = [i for i, line in enumerate(TRANSLATE_LINES) if line.strip()]
    wanted = run.translate([TRANSLATE_LINES[i] for i in kept], prefix=[begins[i] for i in kept], beam_size=2)
    assert all(text.startswith(begins[i].strip()) for i, text in zip(kept, wanted, strict=True))
    assert wanted != run.translate([TRANSLATE_LINES[i] for i in kept], beam_size=2)
    for chunk in (512, 2):
        found = translated(
            capsys,
            tiny,
            source_of_translate,
            "--prefix",
            file,
            "--beam-size",
            "2",
            "--read-batch",
            str(chunk),
        )
        assert [found[i] for i in kept] == [" ".join(text.splitlines()) for text in wanted]
        assert all(found[i] == "" for i in range(len(TRANSLATE_LINES)) if i not in kept)


def test_prefixes_are_one_for_each_line(
    tiny: Path, source_of_translate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "begins.txt"
    for lines, said in (
        (len(TRANSLATE_LINES) - 1, f"begins.txt ends before line {len(TRANSLATE_LINES)} of the text"),
        (
            len(TRANSLATE_LINES) + 1,
            f"begins.txt has more lines than the text, which has {len(TRANSLATE_LINES)}",
        ),
    ):
        file.write_text(lines * "a\n")
        assert (
            main(
                ["translate", str(tiny), str(source_of_translate), "--prefix", str(file), "--read-batch", "2"]
            )
            == 2
        )
        assert said in capsys.readouterr().err
    assert main(["translate", str(tiny), "-", "--prefix", "-"]) == 2
    assert "--prefix: standard input is already used for the text" in capsys.readouterr().err
