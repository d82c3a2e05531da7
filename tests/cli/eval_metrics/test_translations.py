"""`polyhead eval` of a translator: what it reads, and what it leaves where it is stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from sacrebleu.metrics import BLEU, CHRF

from polyhead import load
from polyhead.cli import main
from polyhead.cli.eval_metrics import translations
from polyhead.config.recipe import Recipe

PAIRS = [("ein hund bellt .", "a dog barks ."), ("zwei hunde bellen .", "two dogs bark .")]


@pytest.fixture
def sides(tmp_path: Path) -> list[str]:
    for name, side in zip(("de", "en"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in side))
    return [str(tmp_path / "de"), str(tmp_path / "en")]


def test_translations_that_are_made_are_kept_where_a_later_measure_is_interrupted(
    tiny: Path, sides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    assert main(["eval", str(tiny), *sides, "--output", str(tmp_path / "whole")]) == 0
    monkeypatch.setattr(translations, "print_perplexity", interrupted)
    assert main(["eval", str(tiny), *sides, "--output", str(tmp_path / "kept")]) == 130
    assert (tmp_path / "kept").read_bytes() == (tmp_path / "whole").read_bytes()


def test_line_n_of_the_output_belongs_to_line_n_of_the_input(
    tiny: Path, sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(tiny), *sides, "--output", str(tmp_path / "whole")]) == 0
    assert "blank" not in capsys.readouterr().err
    first, second = (tmp_path / "whole").read_text().splitlines()
    Path(sides[0]).write_bytes(f"\n{PAIRS[0][0]}\n\xff\n{PAIRS[1][0]}\n \n".encode("latin-1"))
    Path(sides[1]).write_text(f"nothing\n{PAIRS[0][1]}\nbroken\n{PAIRS[1][1]}\nnothing\n")
    out = tmp_path / "out"
    assert main(["eval", str(tiny), *sides, "--output", str(out)]) == 0
    assert out.read_text().splitlines() == ["", first, "", second, ""]
    assert f"polyhead: {out}: 3 of 5 lines are blank, for skipped inputs\n" in capsys.readouterr().err
    assert main(["eval", str(tiny), *sides, "--output", str(out), "--limit", "1"]) == 0
    assert out.read_text().splitlines() == ["", first]


def figures(capsys: pytest.CaptureFixture[str], *typed: str | Path) -> list[str]:
    assert main(["eval", *map(str, typed)]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("speed")]


def refused(capsys: pytest.CaptureFixture[str], *typed: str | Path) -> str:
    assert main(["eval", *map(str, typed)]) == 2
    return capsys.readouterr().err


@pytest.fixture
def tables(tmp_path: Path) -> list[list[str | Path]]:
    """The pairs as tables, with what says where they are in it."""
    rows = [{"id": i, "de": de, "en": {"text": en}} for i, (de, en) in enumerate(PAIRS)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.tsv").write_text(
        "id\tde\ten\n" + "".join(f"{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(PAIRS))
    )
    (tmp_path / "b.tsv").write_text("".join(f"{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(PAIRS)))
    keys = ["--source", "de", "--target", "en.text"]
    return [
        [tmp_path / "a.jsonl", *keys],
        [tmp_path / "a.parquet", *keys],
        [tmp_path / "a.tsv", "--source", "de", "--target", "en"],
        [tmp_path / "b.tsv", "--source", "1", "--target", "2"],
    ]


def test_of_a_table_the_columns_that_are_named_are_measured(
    tiny: Path, sides: list[str], tables: list[list[str | Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = figures(capsys, tiny, *sides)
    for table in tables:
        assert figures(capsys, tiny, *table) == wanted
    assert "has the keys de, en.text, id: set source to one of them" in refused(capsys, tiny, tables[0][0])
    said = "de + en are one side each, without columns or keys: remove --source and --target"
    assert said in refused(capsys, tiny, *sides, "--source", "de")
    said = "--source and --target require files: polyhead eval RUN FILE --source COLUMN"
    assert said in refused(capsys, tiny, "--target", "1")


def test_settings_of_translating_hold_for_what_is_measured(
    tiny: Path, sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = figures(capsys, tiny, *sides)
    assert figures(capsys, tiny, *sides, "--cache", "growing") == wanted
    assert "unknown cache 'statc'; did you mean 'static'?" in refused(
        capsys, tiny, *sides, "--cache", "statc"
    )
    assert "min_new_tokens is 99, more than" in refused(capsys, tiny, *sides, "--min-new-tokens", "99")
    assert "'maybe' is not one of" in refused(capsys, tiny, *sides, "--early-stopping", "maybe")
    assert "'fr'" in refused(capsys, tiny, *sides, "--target-lang", "fr")
    few = ["--min-new-tokens", "6", "--no-repeat-ngram-size", "1", "--output", str(tmp_path / "out")]
    figures(capsys, tiny, *sides, *few)
    said = load(tiny).translate([de for de, _ in PAIRS], min_new_tokens=6, no_repeat_ngram_size=1)
    assert (tmp_path / "out").read_text() == "".join(f"{text}\n" for text in said)


def test_further_files_are_further_references(
    tiny: Path, sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def scores(*typed: str | Path) -> dict[str, str]:
        return {line.split()[0]: " ".join(line.split()[1:]) for line in figures(capsys, tiny, *typed)}

    source, first = sides
    out, second = tmp_path / "out", tmp_path / "second"
    assert main(["eval", str(tiny), *sides, "--output", str(out)]) == 0
    outputs = out.read_text().splitlines()
    capsys.readouterr()
    # line 1 has one reference more, the output itself; line 2 of the second file is blank
    second.write_text(f"{outputs[0]}\n\n")
    found = scores(source, first, second)
    streams = [Path(first).read_text().splitlines(), [outputs[0], None]]
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        wanted = metric.corpus_score(outputs, streams).score
        assert float(found[name].split()[0]) == pytest.approx(wanted, abs=0.01)
        assert "nrefs:var" in found[name]
    num_exact = 1 + (outputs[1] == PAIRS[1][1])
    assert float(found["exact"].split()[0]) == pytest.approx(50 * num_exact, abs=0.01)
    run = load(tiny)
    texts = [PAIRS[0][0], *(de for de, _ in PAIRS)], [outputs[0], *(en for _, en in PAIRS)]
    assert float(found["perplexity"].split()[0]) == pytest.approx(run.perplexity(*texts), rel=1e-3)

    assert main(["eval", str(tiny), source, first, str(second), "--output", str(out), "--limit", "1"]) == 0
    said = capsys.readouterr()
    assert "de + en: 1 of 1 pairs\nde + second: 1 of 1 pairs\n" in said.err
    assert "nrefs:2" in said.out
    assert out.read_text().splitlines() == outputs[:1]
    second.write_text("one\n")
    assert "de has 2 lines and second has 1" in refused(capsys, tiny, source, first, second)


def test_files_and_a_split_are_two_wishes(
    tiny: Path, sides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = (
        f"--split valid selects files of the recipe and cannot be combined with {sides[0]!r}: remove "
        "one of them"
    )
    assert said in refused(capsys, tiny, *sides, "--split", "valid")


@pytest.mark.parametrize("given", ["parallel", "tsv"])
def test_files_named_as_those_of_the_recipe_are_read_as_those_and_others_by_their_names(
    given: str,
    tiny: Path,
    sides: list[str],
    tables: list[list[str | Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = figures(capsys, tiny, *sides)
    (tmp_path / "table").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    own: list[str | Path] = list(sides) if given == "parallel" else [tmp_path / "table"]
    data = {"train": list(map(str, own)), "valid": list(map(str, own)), "format": given}
    run = load(tiny)
    run.recipe = Recipe.model_validate({"data": data, "train": {"steps": 1}})
    run.save(tmp_path / "run")
    assert figures(capsys, tmp_path / "run", *own) == wanted
    for table in tables:
        assert figures(capsys, tmp_path / "run", *table) == wanted
