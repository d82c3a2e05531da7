"""Lines in, translations out: aligned, in order, whatever the chunks."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import polyhead
from polyhead.cli import main
from polyhead.cli.line_io import choose_read_batch

LINES = ["ein hund bellt .", "zwei hunde", "", "hund hund hund", "  ", "a"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def translated(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    assert main(["translate", *map(str, arguments)]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\n") or not out
    return out.removesuffix("\n").split("\n") if out else []


def test_lines_come_out_as_the_library_translates_them(
    tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [text.replace("\n", " ") for text in polyhead.load(tiny).translate(LINES)]
    got = translated(capsys, tiny, source)
    assert [text for text, line in zip(got, LINES, strict=True) if not line.strip()] == ["", ""]
    wanted = [text for text, line in zip(expected, LINES, strict=True) if line.strip()]
    assert [text for text, line in zip(got, LINES, strict=True) if line.strip()] == wanted


def test_a_line_without_visible_characters_stays_a_blank_line(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unseen = ["\u200b", "\xad", " \u202e\u2066", "\u3164", "\ufe0f", "\x07", "\u200b" * 5000]
    path = tmp_path / "unseen.txt"
    path.write_text("\n".join([*unseen, LINES[0]]) + "\n")
    assert translated(capsys, tiny, path)[:-1] == [""] * len(unseen)


@pytest.mark.acceptance("C1")
@pytest.mark.parametrize("chunk", ["1", "2", "4", "99999999999999999999"])
def test_chunks_change_nothing(
    chunk: str, tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--n-best", "2", "--scores"]
    whole = translated(capsys, tiny, source, *options)
    assert translated(capsys, tiny, source, *options, "--read-batch", chunk) == whole


@pytest.mark.parametrize("chunk", ["1", "2", "4"])
def test_chunks_change_nothing_of_what_is_drawn(
    chunk: str, tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--temperature", "1.5", "--seed", "7", "--n-best", "2", "--scores"]
    whole = translated(capsys, tiny, source, *options)
    assert translated(capsys, tiny, source, *options, "--read-batch", chunk) == whole
    assert [whole[i] for i in (4, 5, 8, 9)] == [""] * 4  # of blank lines
    found = polyhead.load(tiny).hypotheses(
        [line if line.strip() else "" for line in LINES], n_best=2, temperature=1.5, seed=7
    )
    wanted = [
        f"{h.log_prob:.4f}" for line, best in zip(LINES, found, strict=True) for h in best if line.strip()
    ]
    assert [line.split("\t")[0] for line in whole if line] == wanted
    assert translated(capsys, tiny, source, *options[:3], "8", *options[4:]) != whole


def test_what_has_no_effect_on_drawing_is_refused(
    tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terms = source.with_name("terms.tsv")
    terms.write_text("hund\tdog\n")
    for options, said in [
        (["--temperature", "1", "--beam-size", "2"], "beam_size has no effect on sampled translations"),
        (
            ["--top-p", "0.9", "--terminology", str(terms)],
            "terminology is supported only for translations with beam search",
        ),
        (["--seed", "3"], "seed has no effect on translations"),
        (["--temperature", "1", "--n-best", "0"], "n_best is 0; expected an integer, 1 or more"),
        (["--temperature", "1", "--seed", "-1"], "--seed: '-1' is out of range"),
    ]:
        assert main(["translate", str(tiny), str(source), *options]) == 2
        out, err = capsys.readouterr()
        assert not out and said in err


def test_a_pipe_takes_translations_as_they_come(
    tiny: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, pipe, came = translated(capsys, tiny, source), tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: came.append(pipe.read_text()))
    reader.start()
    assert translated(capsys, tiny, source, "--output", pipe) == []
    reader.join(60)
    assert came == ["".join(f"{line}\n" for line in wanted)]
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "cache", ["growing", "window,window=300,sink=2", "{name: h2o, budget: 300}", "low_rank,rank=99"]
)
def test_a_cache_with_room_changes_nothing(
    cache: str, tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert translated(capsys, tiny, source, "--cache", cache) == translated(capsys, tiny, source)


def test_n_best_gives_as_many_lines_for_each_with_falling_scores(
    tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got = translated(capsys, tiny, source, "--n-best", "3", "--beam-size", "4", "--scores")
    assert len(got) == 3 * len(LINES)
    for i, line in enumerate(LINES):
        group = got[3 * i : 3 * i + 3]
        if not line.strip():
            assert group == [""] * 3
            continue
        scores = [float(text.split("\t")[0]) for text in group]
        assert scores == sorted(scores, reverse=True)
        assert all(score < 0 for score in scores)


def test_the_number_of_translations_is_that_of_the_run_where_none_is_given(
    tiny: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = polyhead.load(tiny)
    several.generation = several.generation.model_copy(update={"n_best": 2})
    several.save(tmp_path / "several")
    assert translated(capsys, tmp_path / "several", source) == translated(
        capsys, tiny, source, "--n-best", "2"
    )
    once = translated(capsys, tmp_path / "several", source, "--n-best", "1")
    assert once == translated(capsys, tiny, source)
    assert polyhead.load(tmp_path / "several").translate(["ein hund"]) == several.translate(["ein hund"])


@pytest.mark.parametrize("scores", [(), ("--scores",)])
def test_fewer_translations_than_asked_for_leave_lines_in_their_place(
    scores: tuple[str, ...],
    tiny: Path,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = polyhead.run.run.Run.hypotheses
    monkeypatch.setattr(
        polyhead.run.run.Run, "hypotheses", lambda *a, **k: [found[:2] for found in whole(*a, **k)]
    )
    got = translated(capsys, tiny, source, "--n-best", "3", "--beam-size", "4", *scores)
    assert len(got) == 3 * len(LINES)
    assert all(line == "" for line in got[2::3])
    best = polyhead.load(tiny).translate(LINES, beam_size=4)
    assert [line.rpartition("\t")[2] for line in got[::3]] == [text.strip("\n") for text in best]


def test_standard_input_gzip_and_named_pipes_are_read(
    tiny: Path,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    wanted = translated(capsys, tiny, source)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(source.read_bytes())))
    assert translated(capsys, tiny) == wanted
    packed = tmp_path / "input.txt.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    assert translated(capsys, tiny, packed) == wanted
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(source.read_bytes()))
    writer.start()
    assert translated(capsys, tiny, pipe) == wanted
    writer.join()


@pytest.mark.acceptance("A9")
def test_only_newlines_end_lines(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / "odd.txt"
    odd.write_bytes(b"\xef\xbb\xbfein\r\nhund\x0bhund\x1c\xe2\x80\xa8x\xc2\x85y\na\rb")
    assert len(translated(capsys, tiny, odd)) == 3


def test_standard_input_may_come_from_windows(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def piped(data: bytes) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return translated(capsys, tiny)

    assert piped(b"\xef\xbb\xbfein hund\r\nzwei\r\n") == piped(b"ein hund\nzwei\n")


def test_a_person_is_answered_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (choose_read_batch("-", 512), choose_read_batch("input.txt", 512)) == (512, 512)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert (choose_read_batch("-", 512), choose_read_batch("input.txt", 512)) == (1, 512)


def test_bad_bytes_are_reported_and_keep_their_line(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"ein\n\xff\xfe\nhund\n")
    assert main(["translate", str(tiny), str(bad)]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 3
    first = "polyhead: line 2 is not UTF-8; invalid bytes are replaced by U+FFFD\n"
    assert err == first
    bad.write_bytes(b"ein\n" + b"\xff\xfe\n" * 4)
    assert main(["translate", str(tiny), str(bad)]) == 0
    assert capsys.readouterr().err == first + "polyhead: 4 lines in total are not UTF-8\n"


def test_nothing_in_nothing_out(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    assert translated(capsys, tiny, empty) == []


@pytest.mark.acceptance("C5")
def test_a_line_too_long_is_named_and_can_be_cut(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = polyhead.load(tiny)
    most = run.config.max_len - 1
    fits = "ü" * (most // 2) + "x" * (most % 2)
    assert len(run.tokenizer.encode([fits])[0]) == most
    long = tmp_path / "long.txt"
    long.write_text(f"ein\n{fits}\n{fits}x\n")
    assert main(["translate", str(tiny), str(long), "--read-batch", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.split("\n")[:-1] == ["".join(text.splitlines()) for text in run.translate(["ein", fits, ""])]
    way = "split it, or translate its beginning with --truncate; its output is blank\n"
    assert err == f"polyhead: line 3: {most + 1} tokens, the model's maximum is {most}: {way}"
    got = translated(capsys, tiny, long, "--truncate")
    assert got[1] == got[2]
    begins = tmp_path / "begins.txt"
    begins.write_text(f"\n{fits}\n{fits}x\n")
    long.write_text("ein\n\nein\n")
    assert main(["translate", str(tiny), str(long), "--prefix", str(begins), "--read-batch", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.split("\n") == [*run.translate(["ein"]), "", "", ""]
    assert err == (
        f"polyhead: line 3: its prefix has {most + 1} tokens, the model's maximum is {most}; "
        "its output is blank\n"
    )
    long.write_text(f"ein\n{fits}x\n" * 7)
    assert translated(capsys, tiny, long)[1::2] == [""] * 7
    begins.write_text("x" * (1 << 20) + "ü\nein\n" + "x" * (1 << 20) + "ü\n")
    assert main(["translate", str(tiny), str(begins)]) == 0
    out, err = capsys.readouterr()
    assert out.split("\n") == ["", *run.translate(["ein"]), "", ""]
    assert err.startswith("polyhead: line 1 has more than 1,048,576 bytes; its beginning is read\n")
    assert "polyhead: 2 lines in total have more than 1,048,576 bytes\n" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beam-size", "0"], "beam_size: 0 is out of range: should be greater than or equal to 1"),
        (["--beam-size", "1", "--n-best", "2"], "n_best (2) is more than beam_size (1)"),
        (["--cache", "statc"], "cache: unknown cache 'statc'; did you mean 'static'? Known: "),
        (
            ["--cache", "{name: static, chunk: x}"],
            "cache: chunk of cache 'static': 'x' is not an integer",
        ),
        (
            ["--cache", "window,widow=4"],
            "cache: cache 'window' has no option 'widow'; did you mean 'window'? Known: ",
        ),
        (["--cache", "window,4"], "'window,4': expected name,option=value, e.g. window,window=256,sink=4"),
        (
            ["--cache", "h2o,budget=3,recent=3"],
            "cache 'h2o': a budget of 3 tokens with 3 recent ones and a sink of 4;",
        ),
        (
            ["--cache", "state"],
            "cache 'state' stores a recurrent state, but layers of this model have keys and "
            "values: use cache 'static'",
        ),
        (["--early-stopping", "maybe"], "early_stopping: 'maybe' is not one of true, false, never"),
        (
            ["--min-new-tokens", "99"],
            "a source of 4 tokens: min_new_tokens is 99, more than the maximum of 7 tokens of this output",
        ),
    ],
)
def test_a_wrong_option_is_explained(
    arguments: list[str], message: str, tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", str(tiny), str(source), *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"polyhead: {message}")
    assert err.count("\n") == 1


def test_the_first_line_is_answered_before_the_last_is_asked(tiny: Path) -> None:
    command = [sys.executable, "-m", "polyhead", "translate", str(tiny), "--read-batch", "1"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=buffered
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in ("ein hund", "zwei"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith("\n")
        process.stdin.close()
        assert process.wait(timeout=60) == 0
