import pytest
from tests.compare.compare_helpers import OTHER_TASKS, UntrainedTask, compare

from polyhead.compare.tasks.base import COMPARED_TASKS, get_compared_task
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK


def test_other_tasks_than_compared_ones_are_named():
    """Of replaced tokens each design would be asked for those of its own generator."""
    others = {"replaced-token-detection", "multi-label", "regression", "token-classification", "dpo", "kto"}
    others |= {"embedding", "question-answering"}
    assert set(COMPARED_TASKS.names()) == set(TASK.names()) - others
    for name in (*others, "dreams"):
        with pytest.raises(UserError, match=f"task is '{name}'; supported tasks: chat, classification, "):
            get_compared_task(name)


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize("name", OTHER_TASKS)
def test_validation_text_replaces_missing_test_text(name):
    no_test = UntrainedTask(name, "data.test=null", noise=0.3)
    valid = no_test.recipe.data.valid[0]
    result, _ = no_test.evaluate()
    expected, _ = UntrainedTask(name, f"data.test={valid}", noise=0.3).evaluate()
    assert result["split"] == "valid"
    for measure in get_compared_task(name).measures:
        assert result[measure.name] == expected[measure.name]


@pytest.mark.usefixtures("run_trials")
def test_measures_per_token_are_not_compared_across_tokenizers(capsys):
    compare("masked-lm", "--vary", "tokenizer.kind=byte")
    assert "\nloss, accuracy: not comparable between different tokenizers.\n" in capsys.readouterr().out
    expected = {"translation": ["loss"], "language-model": ["loss"], "classification": []}
    for name in COMPARED_TASKS.names():
        names = [m.name for m in get_compared_task(name).measures if not m.across_tokenizers]
        assert names == expected.get(name, ["loss", "accuracy"])
