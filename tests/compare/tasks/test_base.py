"""Tests of compare/tasks/base.py."""

from __future__ import annotations

import pytest
from tests.compare.tasks_helpers import OTHERS, Ready, compared_rows
from tests.compare.tasks_helpers import texts as texts

from polyhead.compare.tasks.base import COMPARED_TASKS, get_compared_task
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK


@pytest.mark.usefixtures("place")
def test_a_task_that_nobody_compares_yet_is_refused_by_name() -> None:
    known = "supported tasks: chat, classification, "
    with pytest.raises(UserError, match=f"task is 'dreams'; {known}"):
        get_compared_task("dreams")


def test_every_task_that_is_trained_is_compared() -> None:
    """But for replaced tokens: each design is asked for those of its own generator."""
    assert set(COMPARED_TASKS.names()) == set(TASK.names()) - {"replaced-token-detection"}
    with pytest.raises(UserError, match="task is 'replaced-token-detection'; supported tasks: "):
        get_compared_task("replaced-token-detection")


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", OTHERS)
def test_without_a_test_text_all_is_of_the_validation_text(name: str) -> None:
    found, _ = Ready(name, "data.test=null").quality()
    assert found["split"] == "valid"
    other, _ = Ready(name, f"data.test={Ready(name).recipe.data.valid[0]}").quality()
    for of in get_compared_task(name).measures:
        assert found[of.name] == other[of.name]


@pytest.mark.usefixtures("texts", "in_process")
def test_all_that_does_not_compare_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    compared_rows("masked-lm", "--vary", "tokenizer.kind=byte")
    assert "\nloss, accuracy: not comparable between different tokenizers.\n" in capsys.readouterr().out
