import pytest
from tests.lab.caches_helpers import save_run

from polyhead.cli import main


@pytest.fixture
def expect_error(tmp_path, monkeypatch, capsys):
    """The command fails with this message, on one line."""
    monkeypatch.chdir(tmp_path)

    def run_command(arguments, message):
        assert main(["experiments", *arguments]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1

    return run_command


OTHER_MODELS = (
    "experiment 'scaling' uses its own models and text; experiments for your own run: caches, paging"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scaling", "--run", "r", "--text", "t"], OTHER_MODELS),
        (["all", "--run", "r", "--text", "t"], "uses its own models and text"),
        (["caches", "--text", "t"], "requires --run RUN"),
        (["caches", "--limit", "3"], "requires --run RUN"),
        (["caches", "--run", "r"], "requires --text FILE"),
        (["caches", "--run", "nowhere", "--text", "t"], "no run directory 'nowhere'"),
    ],
)
def test_invalid_options_are_errors(arguments, message, expect_error):
    expect_error(arguments, message)


def test_unsuitable_model_or_text_is_an_error(tmp_path, expect_error):
    (tmp_path / "t").write_text("a dog .\n")
    encoder, decoder = (str(save_run(tmp_path / kind, kind)) for kind in ("encoder", "decoder"))
    expect_error(["caches", "--run", encoder, "--text", "t"], "has no decoder")
    expect_error(["caches", "--run", decoder, "--text", "t"], "at least two windows of 49")
    expect_error(["caches", "--run", decoder, "--text", "nothing"], "no file 'nothing'")
