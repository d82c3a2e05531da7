import pytest

from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe

TEXT = """
data:
  train: [train.de, train.en]
  valid: [val.de, val.en]
train:
  steps: 100
"""


@pytest.fixture
def recipe_file(tmp_path):
    return write(tmp_path / "small.yaml", TEXT)


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def error_of(path, *overrides):
    with pytest.raises(UserError) as error:
        load_recipe(path, list(overrides))
    return str(error.value)
