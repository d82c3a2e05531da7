from tests.lab.caches_helpers import TEXT, make_run

from polyhead_lab.models import ModelUnderTest, make_eval_rows


def test_windows_of_text_are_consecutive():
    run = make_run(lines=tuple(TEXT.splitlines()))
    (ids,) = run.tokenizer.encode([TEXT])
    rows = make_eval_rows(ModelUnderTest(run, "it", [TEXT], []), 3, 8)
    assert rows.input_ids.tolist() == [ids[i : i + 8] for i in (0, 9, 18)]
    assert rows.labels.tolist() == [ids[i + 1 : i + 9] for i in (0, 9, 18)]
