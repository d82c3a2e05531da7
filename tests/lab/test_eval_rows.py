from tests.lab.caches_helpers import TEXT, the_run

from polyhead.lab.eval_rows import make_eval_rows
from polyhead.lab.test_model import ModelUnderTest


def test_windows_of_a_text_follow_each_other(tmp_path):
    from polyhead import load

    run = load(the_run(tmp_path / "run"))
    (ids,) = run.tokenizer.encode([TEXT])
    read = make_eval_rows(ModelUnderTest(run, "it", [TEXT], []), 3, 8)
    assert read.input_ids.tolist() == [ids[i : i + 8] for i in (0, 9, 18)]
    assert read.labels.tolist() == [ids[i + 1 : i + 9] for i in (0, 9, 18)]
