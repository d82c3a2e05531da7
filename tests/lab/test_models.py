import pytest
from tests.cli.cli_helpers import cli as cli
from tests.lab.caches_helpers import save_run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scaling", "--run", "r", "--text", "t"], "experiments for your own run: caches, paging"),
        (["all", "--run", "r", "--text", "t"], "uses its own models and text"),
        (["caches", "--text", "t"], "requires --run RUN"),
        (["caches", "--run", "r"], "requires --text FILE"),
        (["caches", "--run", "nowhere", "--text", "t"], "no run directory 'nowhere'"),
    ],
)
def test_invalid_options_are_errors(arguments, message, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in cli.error("experiments", *arguments)


def test_unsuitable_model_or_text_is_an_error(tmp_path, cli):
    text = tmp_path / "t"
    text.write_text("a dog .\n")
    encoder, decoder = (save_run(tmp_path / kind, kind) for kind in ("encoder", "decoder"))
    command = ("experiments", "caches", "--run")
    assert "has no decoder" in cli.error(*command, encoder, "--text", text)
    assert "at least two windows of 49" in cli.error(*command, decoder, "--text", text)
    assert "no file 'nothing'" in cli.error(*command, decoder, "--text", "nothing")
