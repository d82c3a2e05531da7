import pytest
from tests.export.conftest import random_run, read_refused_configs

from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.export.ctranslate2 import check_ct2

WINDOW = {"name": "softmax", "window": 4}
REFUSED_PREFIX = "CTranslate2 does not support this model: "


@pytest.mark.whole
@pytest.mark.parametrize(("config", "message"), read_refused_configs("ctranslate2"))
def test_unsupported_component_is_refused(config, message):
    with pytest.raises(UserError) as error:
        check_ct2(random_run(**config).model, "fp32")
    assert str(error.value).startswith(REFUSED_PREFIX + message)


def test_all_unsupported_components_are_named(tmp_path, capsys):
    run = random_run(norm="batchnorm", feed_forward="prelu", attention=WINDOW)
    message = r"window of attention is 4.*; norm is 'batchnorm'.*; feed_forward is 'prelu'"
    with pytest.raises(UserError, match=message):
        check_ct2(run.model, "fp32")
    random_run(kind="decoder", attention=WINDOW).save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "new" / "out"), "--to", "ctranslate2"]) == 2
    assert capsys.readouterr().err.startswith(
        f"polyhead: {REFUSED_PREFIX}window of attention is 4, expected null"
    )
    assert [x.name for x in tmp_path.iterdir()] == ["run"]
