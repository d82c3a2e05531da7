"""Tests of generation/prompt_template.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.evaluate.scoring_helpers import made

import polyhead
from polyhead import Choice
from polyhead.generation.prompt_template import get_prompt_template
from polyhead.tokenizers.train_tokenizer import train_tokenizer


@pytest.mark.parametrize(
    ("documents", "always"), [("line", True), ("blank", True), ("file", False), (None, False)]
)
def test_a_prompt_is_the_beginning_of_a_document_or_its_middle(
    tmp_path: Path, documents: str | None, always: bool
) -> None:
    run = polyhead.load(made(tmp_path, documents))
    t = run.tokenizer
    (ids,) = t.encode(["anna"])
    begin = t.encode(["\n"])[0] if documents == "file" else [t.eos_id]
    assert run.prompt_template.build_prompt(ids) == ([*begin, *ids] if always else ids)
    assert run.prompt_template.build_prompt([]) == begin
    without = train_tokenizer(["ab"], Choice("char"), 20)  # knows no end of a line
    assert get_prompt_template(run.recipe, without).build_prompt([]) == [without.eos_id]


@pytest.mark.parametrize(
    ("files", "format", "always"),
    [
        ("talks.jsonl", "auto", True),
        ("a.csv.gz", "auto", True),
        ("a.txt", "tsv", True),
        ("a.txt", "auto", False),
    ],
)
def test_a_prompt_is_the_beginning_of_a_value_where_a_table_was_learned(
    tmp_path: Path, files: str, format: str, always: bool
) -> None:
    run = polyhead.load(made(tmp_path, "file"))
    assert run.recipe is not None
    data = run.recipe.data.model_copy(update={"train": [files], "format": format})
    about = get_prompt_template(run.recipe.model_copy(update={"data": data}), run.tokenizer)
    assert about.always_add_prefix == always
    assert (about.prefix_ids, about.suffix_ids) == ([run.tokenizer.eos_id],) * 2 or not always
    chat = {"data": data, "task": Choice("chat")}  # whose lines are conversations
    assert not get_prompt_template(run.recipe.model_copy(update=chat), run.tokenizer).always_add_prefix
