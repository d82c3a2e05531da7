"""Tests of cli/generate.py."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from tests.train.conftest import Notes
from tests.train.conftest import unsynced as unsynced
from tests.train.tasks.language_helpers import learned as learned
from tests.train.tasks.language_helpers import place as place
from tests.train.tasks.language_helpers import shell

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]


def test_options_without_effect_are_refused(
    learned: tuple[Path, Notes], capsys: pytest.CaptureFixture[str]
) -> None:
    run = ph.load(learned[0])
    with pytest.raises(
        UserError,
        match="length_penalty has no effect on sampled text; valid settings: batch_tokens, cache, "
        "frequency_penalty, grammar",
    ):
        run.generate(["a"], length_penalty=2.0)
    with pytest.raises(
        UserError, match="top_p has no effect on beam search; valid settings: batch_tokens, beam_size"
    ):
        run.generate(["a"], beam_size=3, top_p=0.5)
    with pytest.raises(UserError, match="seed has no effect on beam search"):
        run.generate(["a"], beam_size=3, seed=0)
    assert main(["generate", str(learned[0]), "a", "--beam-size", "3", "--seed", "0"]) == 2
    assert capsys.readouterr().err.startswith("polyhead: seed has no effect on beam search; ")
    with pytest.raises(UserError, match="n sets the number of texts, not n_best"):
        run.generate(["a"], beam_size=3, n_best=2)
    with pytest.raises(UserError, match=r"^n \(4\) is more than beam_size \(3\)"):
        run.generate(["a"], n=4, beam_size=3)
    with pytest.raises(UserError, match=r"^n is 1,000,000,000, expected at most 10,000"):
        run.generate(["a"], n=10**9)
    assert main(["generate", str(learned[0]), "a", "--n", "1000000000"]) == 2
    with pytest.raises(UserError, match="unknown key; did you mean 'temperature'"):
        run.generate(["a"], temprature=3)


def test_a_prompt_that_is_the_name_of_a_file_is_told_to_be_a_text(
    learned: tuple[Path, Notes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = str(learned[0].resolve())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "begin.txt").write_text("the \n")
    assert main(["generate", run, "begin.txt", "--max-new-tokens", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("begin.txt")
    assert (
        err
        == "polyhead: 'begin.txt' is used as the prompt text; to read lines from the file: - < begin.txt\n"
    )
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    assert main(["generate", run, "table.parquet", "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().err == "polyhead: 'table.parquet' is used as the prompt text\n"
    assert main(["generate", run, "begin", "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().err == ""


def test_generate_in_the_shell(learned: tuple[Path, Notes], capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    out = learned[0]
    run = ph.load(out)
    (said,) = run.generate(["anna"], temperature=0.0)
    assert shell(capsys, out, "anna", "--temperature", "0")[:2] == (0, f"anna{said}\n")
    begun = run.generate([""], n=3, seed=4, temperature=0.7)[0]
    assert shell(capsys, out, "-n", "3", "--seed", "4", "--temperature", "0.7")[:2] == (
        0,
        "".join(f"{t}\n" for t in begun),
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"anna\nbert a\n")))
    both = run.generate(["anna", "bert a"], max_new_tokens=6, top_k=2, stop=["x"])
    wanted = "".join(f"{a}{b}\n" for a, b in zip(["anna", "bert a"], both, strict=True))
    assert shell(capsys, out, "-", "--max-new-tokens", "6", "--top-k", "2", "--stop", "x")[:2] == (0, wanted)
    for beams in ([], ["--beam-size", "2"]):  # a line that is too long is named
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"anna\n" + b"a" * 40 + b"\nanna\n")))
        settings = {"beam_size": 2} if beams else {"temperature": 0.0}
        (said,) = run.generate(["anna"], max_new_tokens=6, **settings)
        given = ["-", "--max-new-tokens", "6", *(beams or ["--temperature", "0"])]
        told = "polyhead: line 2: 41 tokens, the model's maximum is 32; its output is blank\n"
        assert shell(capsys, out, *given) == (0, f"anna{said}\n\nanna{said}\n", told)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"anna\n")))
    assert shell(capsys, out, "-", "--max-new-tokens", "6", "--beam-size", "2")[1] == f"anna{said}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--top-p", "2"], "top_p: 2.0 is out of range: should be less than or equal to 1"),
        (
            ["a", "--temperature", "-1"],
            "temperature: -1.0 is out of range: should be greater than or equal to 0",
        ),
        (["a", "--stop", ""], "a stop string is empty; it would end every text immediately"),
        (["a" * 40], "prompt 1 has 41 tokens; the model's maximum is 32: pass only its end"),
        (
            ["a", "--cache", "state"],
            "cache 'state' stores a recurrent state, but layers of this model have keys and "
            "values: use cache 'static'",
        ),
        (
            ["a", "--cache", "stat"],
            f"cache: unknown cache 'stat'; did you mean 'state'? Known: {', '.join(CACHE.names())}",
        ),
    ],
)
def test_mistakes_are_told_in_one_line_before_anything_is_shown(learned, capsys, arguments, message) -> None:
    assert shell(capsys, learned[0], *arguments) == (2, "", f"polyhead: {message}\n")
