import pytest
from tests.train.task_runs import write_texts


@pytest.fixture
def corpus_dir(tmp_path):
    write_texts(tmp_path)
    return tmp_path
