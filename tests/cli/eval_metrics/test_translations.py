"""Tests of cli/eval_metrics/translations.py: what a translator reads, and its partial output."""

import json

import pyarrow
import pytest
from pyarrow import parquet
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF, TER

from polyhead import load
from polyhead.cli.eval_metrics import translations
from polyhead.config.recipe import Recipe

PAIRS = [("ein hund bellt .", "a dog barks ."), ("zwei hunde bellen .", "two dogs bark .")]


@pytest.fixture
def pair(tmp_path):
    """The source and the target file."""
    for name, side in zip(("de", "en"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in side))
    return [tmp_path / "de", tmp_path / "en"]


@pytest.fixture
def tables(tmp_path):
    """The pairs as tables, each with the options that select its columns."""
    rows = [{"id": i, "de": de, "en": {"text": en}} for i, (de, en) in enumerate(PAIRS)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    lines = "".join(f"{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(PAIRS))
    (tmp_path / "a.tsv").write_text(f"id\tde\ten\n{lines}")
    (tmp_path / "b.tsv").write_text(lines)
    keys = ["--source", "de", "--target", "en.text"]
    return [
        [tmp_path / "a.jsonl", *keys],
        [tmp_path / "a.parquet", *keys],
        [tmp_path / "a.tsv", "--source", "de", "--target", "en"],
        [tmp_path / "b.tsv", "--source", "1", "--target", "2"],
    ]


@pytest.fixture
def measure(cli):
    """A function that returns the lines of `eval` without the speed."""

    def run(*arguments):
        lines = cli("eval", *arguments).out.splitlines()
        return [line for line in lines if not line.startswith("speed")]

    return run


def test_output_lines_match_input_lines(tiny, pair, tmp_path, cli, monkeypatch):
    out = tmp_path / "out"
    assert "blank" not in cli("eval", tiny, *pair, "--output", out).err
    first, second = out.read_text().splitlines()
    pair[0].write_bytes(f"\n{PAIRS[0][0]}\n\xff\n{PAIRS[1][0]}\n \n".encode("latin-1"))
    pair[1].write_text(f"nothing\n{PAIRS[0][1]}\nbroken\n{PAIRS[1][1]}\nnothing\n")
    err = cli("eval", tiny, *pair, "--output", out).err
    assert f"polyhead: {out}: 3 of 5 lines are blank, for skipped inputs\n" in err
    assert out.read_text().splitlines() == ["", first, "", second, ""]
    cli("eval", tiny, *pair, "--output", out, "--limit", 1)
    assert out.read_text().splitlines() == ["", first]
    options = ["--min-new-tokens", 6, "--no-repeat-ngram-size", 1, "--output", out]
    cli("eval", tiny, *pair, *options)
    texts = load(tiny).translate([de for de, _ in PAIRS], min_new_tokens=6, no_repeat_ngram_size=1)
    assert [text for text in out.read_text().splitlines() if text] == texts

    def interrupt(*_):
        raise KeyboardInterrupt

    expected = out.read_bytes()
    monkeypatch.setattr(translations, "print_perplexity", interrupt)
    cli("eval", tiny, *pair, *options, code=130)
    assert out.read_bytes() == expected, "it survives an interrupted measure"


def test_selected_columns_of_a_table_are_measured(tiny, pair, tables, measure, cli):
    expected = measure(tiny, *pair)
    for table in tables:
        assert measure(tiny, *table) == expected
    message = cli.error("eval", tiny, tables[0][0])
    assert "has the keys de, en.text, id: set source to one of them" in message
    message = cli.error("eval", tiny, *pair, "--source", "de")
    assert "de + en are one side each, without columns or keys: remove --source and --target" in message
    message = cli.error("eval", tiny, "--target", 1)
    assert f"--source and --target require files: polyhead eval {tiny} FILE --source COLUMN" in message


def test_folders_are_paired_by_file_name(tiny, pair, tmp_path, measure):
    for path in pair:
        (folder := tmp_path / f"{path.name}-folder").mkdir()
        for number, line in enumerate(path.read_text().splitlines()):
            (folder / f"{number}.txt").write_text(f"{line}\n")
    assert measure(tiny, *(f"{path}-folder" for path in pair)) == measure(tiny, *pair)


def test_more_files_are_more_references(tiny, pair, tmp_path, measure, cli):
    out, second = tmp_path / "out", tmp_path / "second"
    cli("eval", tiny, *pair, "--output", out)
    outputs = out.read_text().splitlines()
    # line 1 has one more reference, the output itself; line 2 of the second file is blank
    second.write_text(f"{outputs[0]}\n\n")
    values = {line.split()[0]: line.split()[1:] for line in measure(tiny, *pair, second)}
    references = [pair[1].read_text().splitlines(), [outputs[0], None]]
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        expected = metric.corpus_score(outputs, references).score
        assert float(values[name][0]) == pytest.approx(expected, abs=0.01)
        assert "nrefs:var" in " ".join(values[name])
    n_exact = 1 + (outputs[1] == PAIRS[1][1])
    assert float(values["exact"][0]) == pytest.approx(50 * n_exact, abs=0.01)
    texts = [PAIRS[0][0], *(de for de, _ in PAIRS)], [outputs[0], *(en for _, en in PAIRS)]
    assert float(values["perplexity"][0]) == pytest.approx(load(tiny).perplexity(*texts), rel=1e-3)

    output = cli("eval", tiny, *pair, second, "--output", out, "--limit", 1)
    assert "de + en: 1 of 1 pairs\nde + second: 1 of 1 pairs\n" in output.err
    assert "nrefs:2" in output.out and out.read_text().splitlines() == outputs[:1]
    second.write_text("one\n")
    assert "de has 2 lines and second has 1" in cli("eval", tiny, *pair, second, code=2).err


def test_metrics_are_chosen_by_name(tiny, pair, tmp_path, measure, cli):
    out, values = tmp_path / "out", {}
    for line in measure(tiny, *pair, "--metric", "rouge-l", "--metric", "chrf", "--output", out):
        values.setdefault(line.split()[0], line.split()[1])
    assert "bleu" not in values
    texts = out.read_text().splitlines(), pair[1].read_text().splitlines()
    assert float(values["chrf"]) == pytest.approx(CHRF().corpus_score(texts[0], [texts[1]]).score, abs=0.01)
    rouge = [
        RougeScorer(["rougeL"], use_stemmer=True).score(*two)["rougeL"] for two in zip(*texts, strict=True)
    ]
    expected = 100 * sum(score.fmeasure for score in rouge) / len(rouge)
    assert float(values["rouge-l"]) == pytest.approx(expected, abs=0.01)
    message = cli.error("eval", tiny, *pair, "--metric", "rouge")
    assert "unknown metric 'rouge'; did you mean 'rouge-" in message


def test_scores_are_compared_with_those_of_another_run(tiny, pair, tmp_path, cli):
    out = tmp_path / "out"
    cli("eval", tiny, *pair, "--output", out)
    outputs, references = out.read_text().splitlines(), pair[1].read_text().splitlines()
    better = tmp_path / "better"
    better.write_text(f"{references[0]}\n{outputs[1]}\n")
    options = ["--metric", "chrf", "--metric", "ter", "--json"]
    printed = cli("eval", tiny, *pair, *options, "--against", better)
    found = json.loads(printed.out)
    for name, metric in (("chrf", CHRF()), ("ter", TER())):
        own, other = (
            metric.corpus_score(texts, [references]).score for texts in (outputs, [references[0], outputs[1]])
        )
        assert found["measures"][name] == found["scores"][name]["value"] == pytest.approx(own)
        assert found["against"][name]["value"] == pytest.approx(other)
        difference = found["against"][name]["difference"]
        assert difference["value"] == pytest.approx(own - other) and difference["p"] > 0.05
        assert difference["low"] <= difference["value"] <= difference["high"]
        assert f"{own - other:>9.3f}  [{difference['low']:+.2f}, {difference['high']:+.2f}]" in printed.err
        assert f"±{found['scores'][name]['margin']:.2f}  nrefs:1|bs:1000|seed:12345|" in printed.err
    assert found["against"]["name"] == str(better) and "chrf" in found["baselines"]
    for same in (tiny, out):
        against = json.loads(cli("eval", tiny, *pair, *options, "--against", same).out)["against"]
        assert against["chrf"]["difference"] == {"value": 0, "low": 0, "high": 0, "p": 1}
    better.write_text("one\n")
    message = cli("eval", tiny, *pair, "--against", better, code=2).err
    assert (
        "better has 1 lines for 2 pairs; expected a run, or a file with one translation per line" in message
    )
    assert "no run" in cli.error("eval", tiny, *pair, "--against", tmp_path / "none")
    message = cli.error("eval", tiny, *pair, "--metric", "comet:none")
    assert "metric comet has no checkpoint at 'none'" in message


@pytest.mark.parametrize("format_", ["parallel", "tsv"])
def test_files_of_the_recipe_have_its_format(format_, tiny, pair, tables, tmp_path, measure):
    """Other files have the format of their names."""
    expected = measure(tiny, *pair)
    (tmp_path / "table").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    files = pair if format_ == "parallel" else [tmp_path / "table"]
    names = [str(path) for path in files]
    run = load(tiny)
    data = {"train": names, "valid": names, "format": format_}
    run.recipe = Recipe.model_validate({"data": data, "train": {"steps": 1}})
    run.save(tmp_path / "run")
    for arguments in (files, *tables):
        assert measure(tmp_path / "run", *arguments) == expected
