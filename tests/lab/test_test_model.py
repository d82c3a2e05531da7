import pytest
from tests.lab.caches_helpers import the_run

from polyhead.cli import main


def words(capsys):
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["scaling", "--run", "r", "--text", "t"],
            "experiment 'scaling' uses its own models and text; experiments for your own run: caches, paging",
        ),
        (["all", "--run", "r", "--text", "t"], "uses its own models and text"),
        (["caches", "--text", "t"], "requires --run RUN"),
        (["caches", "--limit", "3"], "requires --run RUN"),
        (["caches", "--run", "r"], "requires --text FILE"),
        (["caches", "--run", "nowhere", "--text", "t"], "no run directory 'nowhere'"),
    ],
)
def test_what_does_not_go_together_is_told_in_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["experiments", *arguments]) == 2
    assert said in words(capsys)


def test_a_model_without_decoder_and_a_short_text_are_refused(tmp_path, capsys):
    (tmp_path / "t").write_text("a dog .\n")
    at = ["--text", str(tmp_path / "t"), "--out", str(tmp_path / "out")]
    assert main(["experiments", "caches", "--run", str(the_run(tmp_path / "e", "encoder")), *at]) == 2
    assert "has no decoder" in words(capsys)
    assert main(["experiments", "caches", "--run", str(the_run(tmp_path / "d")), *at]) == 2
    assert "at least two windows of 49" in words(capsys)
    assert (
        main(
            [
                "experiments",
                "caches",
                "--run",
                str(the_run(tmp_path / "d")),
                "--text",
                str(tmp_path / "nothing"),
            ]
        )
        == 2
    )
    assert "no file 'nothing'" in words(capsys)
