"""Tests of cli/translate.py: lines in, translations out, aligned and in order, whatever the batches."""

import gzip
import io
import math
import os
import sys
import threading
from types import SimpleNamespace

import pytest
from tests.cli.conftest import LINES

import polyhead
from polyhead.cli import main
from polyhead.cli.line_io import choose_read_batch, read_lines
from polyhead.introspect.word_alignment import align_pairs
from polyhead.run.run import Run
from polyhead.tokenizers.languages import with_languages


def test_output_is_that_of_the_library(tiny, source, tmp_path, translate):
    expected = [text.replace("\n", " ") for text in polyhead.load(tiny).translate(LINES)]
    assert translate(tiny, source) == [a if b.strip() else "" for a, b in zip(expected, LINES, strict=True)]
    blank = ["\u200b", "\xad", " \u202e\u2066", "\u3164", "\ufe0f", "\x07", "\u200b" * 5000]
    source.write_text("\n".join([*blank, LINES[0]]) + "\n")
    assert translate(tiny, source)[:-1] == [""] * len(blank), "without visible characters"
    source.write_bytes(b"")
    assert translate(tiny, source) == []


@pytest.mark.acceptance("C1")
@pytest.mark.parametrize(
    "options",
    [
        *(("--read-batch", size, "--n-best", 2, "--scores") for size in ("1", "2", "4", "9" * 20)),
        *(("--cache", cache) for cache in ("growing", "window,window=300,sink=2", "low_rank,rank=99")),
        ("--cache", "{name: h2o, budget: 300}"),
    ],
    ids=str,
)
def test_batches_and_large_caches_do_not_change_output(options, tiny, source, translate):
    assert translate(tiny, source, *options) == translate(tiny, source, *options[2:])


def test_columns_are_those_of_the_library(tiny, source, translate):
    run = polyhead.load(tiny)
    texts = [line.strip() and line for line in LINES]
    rows = run.hypotheses(texts, n_best=2)
    columns = "--scores", "--confidence", "--alignments", "--token-scores"
    lines = translate(tiny, source, "--n-best", 2, "--read-batch", 3, *columns)
    plain = translate(tiny, source, "--n-best", 2)
    template = with_languages(run.tokenizer)
    for i, (line, text) in enumerate(zip(lines, plain, strict=True)):
        if not texts[i // 2]:
            assert line == text == ""
            continue
        best = rows[i // 2][i % 2]
        (reading,) = align_pairs(run.model, run.tokenizer, template, [texts[i // 2]], [best.tokens])
        score, confidence, rest = line.split("\t")
        translation, alignment, tokens = rest.rsplit(" ||| ", 2)
        assert (score, confidence, translation) == (f"{best.score:.4f}", f"{best.confidence:.4f}", text)
        assert alignment == " ".join(f"{a}-{b}" for a, b in reading.alignment)
        found = [float(token.rsplit(":", 1)[1]) for token in tokens.split(" ")]
        assert found == pytest.approx([math.exp(p) for p in reading.log_probs], abs=6e-4)


@pytest.mark.parametrize("size", ["1", "2", "4"])
def test_read_batch_does_not_change_samples(size, tiny, source, translate):
    options = ["--temperature", 1.5, "--n-best", 2, "--scores", "--seed"]
    expected = translate(tiny, source, *options, 7)
    assert translate(tiny, source, *options, 7, "--read-batch", size) == expected
    assert [expected[i] for i in (4, 5, 8, 9)] == [""] * 4  # of blank lines
    texts = [line.strip() and line for line in LINES]
    hypotheses = polyhead.load(tiny).hypotheses(texts, n_best=2, temperature=1.5, seed=7)
    scores = [f"{h.log_prob:.4f}" for text, best in zip(texts, hypotheses, strict=True) for h in best if text]
    assert [line.split("\t")[0] for line in expected if line] == scores
    assert translate(tiny, source, *options, 8) != expected


def test_n_best_lines_have_falling_scores(tiny, source, tmp_path, translate):
    lines = translate(tiny, source, "--n-best", 3, "--beam-size", 4, "--scores")
    assert len(lines) == 3 * len(LINES)
    for i, line in enumerate(LINES):
        group = lines[3 * i : 3 * i + 3]
        if line.strip():
            scores = [float(text.split("\t")[0]) for text in group]
            assert scores == sorted(scores, reverse=True) and scores[0] < 0
        else:
            assert group == [""] * 3
    run = polyhead.load(tiny)
    run.generation = run.generation.model_copy(update={"n_best": 2})
    run.save(tmp_path / "run")
    assert translate(tmp_path / "run", source) == translate(tiny, source, "--n-best", 2), "the default"
    assert translate(tmp_path / "run", source, "--n-best", 1) == translate(tiny, source)
    assert polyhead.load(tmp_path / "run").translate(["ein hund"]) == run.translate(["ein hund"])


@pytest.mark.parametrize("options", [(), ("--scores",)])
def test_missing_hypotheses_leave_blank_lines(options, tiny, source, translate, monkeypatch):
    hypotheses = Run.hypotheses
    monkeypatch.setattr(Run, "hypotheses", lambda *a, **k: [best[:2] for best in hypotheses(*a, **k)])
    lines = translate(tiny, source, "--n-best", 3, "--beam-size", 4, *options)
    assert len(lines) == 3 * len(LINES) and lines[2::3] == [""] * len(LINES)
    best = polyhead.load(tiny).translate(LINES, beam_size=4)
    assert [line.rpartition("\t")[2] for line in lines[::3]] == [text.strip("\n") for text in best]


def test_pipes_and_gzip_are_read_and_written(tiny, source, tmp_path, translate):
    expected, content = translate(tiny, source), source.read_bytes()
    assert translate(tiny, stdin=content) == expected
    assert translate(tiny, stdin=b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")) == expected
    (tmp_path / "input.txt.gz").write_bytes(gzip.compress(content))
    assert translate(tiny, tmp_path / "input.txt.gz") == expected
    source_pipe, output_pipe, texts = tmp_path / "source", tmp_path / "output", []
    os.mkfifo(source_pipe)
    os.mkfifo(output_pipe)
    writer = threading.Thread(target=lambda: source_pipe.write_bytes(content))
    reader = threading.Thread(target=lambda: texts.append(output_pipe.read_text()))
    writer.start()
    reader.start()
    assert translate(tiny, source_pipe, "--output", output_pipe) == []
    writer.join()
    reader.join()
    assert texts == ["".join(f"{line}\n" for line in expected)] and output_pipe.is_fifo()


@pytest.mark.acceptance("A9")
def test_lines_end_with_newlines_only(tiny, tmp_path, translate, monkeypatch, capsys):
    path = tmp_path / "odd.txt"
    path.write_bytes(b"\xef\xbb\xbfein\r\nhund\x0bhund\x1c\xe2\x80\xa8x\xc2\x85y\na\rb")
    assert len(translate(tiny, path)) == 3
    assert (choose_read_batch("-", 512), choose_read_batch("input.txt", 512)) == (512, 512)
    terminal = type("Terminal", (io.BytesIO,), {"isatty": lambda stream: True})
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, buffer=terminal(b"ein\n")))
    assert list(read_lines("-")) == ["ein"]
    assert capsys.readouterr().err == "polyhead: type a line; Ctrl-D ends\n"
    assert (choose_read_batch("-", 512), choose_read_batch("input.txt", 512)) == (1, 512)


def test_damaged_lines_are_reported_and_keep_their_place(tiny, tmp_path, cli):
    path = tmp_path / "bad.txt"
    warning = "polyhead: line 2 is not UTF-8; invalid bytes are replaced by U+FFFD\n"
    path.write_bytes(b"ein\n\xff\xfe\nhund\n")
    out, err = cli("translate", tiny, path)
    assert out.count("\n") == 3 and err == warning
    path.write_bytes(b"ein\n" + b"\xff\xfe\n" * 4)
    assert cli("translate", tiny, path).err == f"{warning}polyhead: 4 lines in total are not UTF-8\n"
    chinese = cli("--lang", "zh", "translate", tiny, path).err
    assert chinese == "polyhead: 第 2 行不是 UTF-8；无效的字节换成 U+FFFD\npolyhead: 共有 4 行不是 UTF-8\n"
    path.write_text("x" * (1 << 20) + "ü\nein\n" + "x" * (1 << 20) + "ü\n")
    out, err = cli("translate", tiny, path)
    assert out.split("\n") == ["", *polyhead.load(tiny).translate(["ein"]), "", ""]
    assert err.startswith("polyhead: line 1 has more than 1,048,576 bytes; its beginning is read\n")
    assert "polyhead: 2 lines in total have more than 1,048,576 bytes\n" in err


@pytest.mark.acceptance("C5")
def test_too_long_line_is_reported_or_truncated(tiny, tmp_path, cli, translate):
    run = polyhead.load(tiny)
    max_len = run.config.max_len - 1
    fits = "ü" * (max_len // 2) + "x" * (max_len % 2)
    assert len(run.tokenizer.encode([fits])[0]) == max_len
    path = tmp_path / "long.txt"
    path.write_text(f"ein\n{fits}\n{fits}x\n")
    out, err = cli("translate", tiny, path, "--read-batch", 2)
    assert out.split("\n")[:-1] == ["".join(text.splitlines()) for text in run.translate(["ein", fits, ""])]
    advice = "split it, or translate its beginning with --truncate; its output is blank\n"
    assert err == f"polyhead: line 3: {max_len + 1} tokens, the model's maximum is {max_len}: {advice}"
    lines = translate(tiny, path, "--truncate")
    assert lines[1] == lines[2]
    path.write_text(f"ein\n{fits}x\n" * 7)
    assert translate(tiny, path)[1::2] == [""] * 7

    prefixes = tmp_path / "prefixes.txt"
    prefixes.write_text(f"\n{fits}\n{fits}x\n")
    path.write_text("ein\n\nein\n")
    out, err = cli("translate", tiny, path, "--prefix", prefixes, "--read-batch", 2)
    assert out.split("\n") == [*run.translate(["ein"]), "", "", ""]
    limit = f"{max_len + 1} tokens, the model's maximum is {max_len}; its output is blank\n"
    assert err == f"polyhead: line 3: its prefix has {limit}"


def test_line_is_translated_before_the_next_is_read(tiny, monkeypatch):
    (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
    with os.fdopen(read_out) as output, os.fdopen(write_in, "w") as lines:
        monkeypatch.setattr(sys, "stdin", os.fdopen(read_in))
        monkeypatch.setattr(sys, "stdout", os.fdopen(write_out, "w"))  # with a buffer, as that of a process
        codes = []
        command = ["translate", str(tiny), "--read-batch", "1"]
        thread = threading.Thread(target=lambda: codes.append(main(command)), daemon=True)
        thread.start()
        for line in ("ein hund", "zwei"):
            print(line, file=lines, flush=True)
            assert output.readline().endswith("\n")
        lines.close()
        thread.join(100)
        sys.stdout.close()
        assert codes == [0]
