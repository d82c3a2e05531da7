import pytest
from tests.export.conftest import random_run, read_refused_configs

from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.export.onnx import check_onnx


@pytest.mark.parametrize(("config", "message"), read_refused_configs("onnx"))
def test_unsupported_part_is_refused(config, message):
    with pytest.raises(UserError) as error:
        check_onnx(random_run(**config).model, "fp32")
    assert str(error.value).startswith(message)


def test_refused_export_leaves_no_files(tmp_path, capsys):
    random_run(feed_forward="moe").save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "new" / "out"), "--to", "onnx"]) == 2
    message = "polyhead: feed_forward 'moe' cannot be written to ONNX: it routes tokens"
    assert capsys.readouterr().err.startswith(message)
    assert [x.name for x in tmp_path.iterdir()] == ["run"]
