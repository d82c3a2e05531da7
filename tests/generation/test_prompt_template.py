import pytest
from tests.evaluate.scoring_helpers import make_scoring_run

from polyhead import Choice, load
from polyhead.generation.prompt_template import get_prompt_template
from polyhead.tokenizers.train_tokenizer import train_tokenizer


@pytest.mark.parametrize(
    ("documents", "always"), [("line", True), ("blank", True), ("file", False), (None, False)]
)
def test_prompt_prefix_by_document_separator(tmp_path, documents, always):
    run = load(make_scoring_run(tmp_path, documents))
    t = run.tokenizer
    (ids,) = t.encode(["anna"])
    prefix = t.encode(["\n"])[0] if documents == "file" else [t.eos_id]
    assert run.prompt_template.build_prompt(ids) == ([*prefix, *ids] if always else ids)
    assert run.prompt_template.build_prompt([]) == prefix
    no_newline = train_tokenizer(["ab"], Choice("char"), 20)
    assert get_prompt_template(run.recipe, no_newline).build_prompt([]) == [no_newline.eos_id]


@pytest.mark.parametrize(
    ("file", "format", "always"),
    [
        ("talks.jsonl", "auto", True),
        ("a.csv.gz", "auto", True),
        ("a.txt", "tsv", True),
        ("a.txt", "auto", False),
    ],
)
def test_prompt_prefix_by_file_format(tmp_path, file, format, always):
    run = load(make_scoring_run(tmp_path, "file"))
    data = run.recipe.data.model_copy(update={"train": [file], "format": format})
    template = get_prompt_template(run.recipe.model_copy(update={"data": data}), run.tokenizer)
    assert template.always_add_prefix == always
    assert (template.prefix_ids, template.suffix_ids) == ([run.tokenizer.eos_id],) * 2 or not always
    chat = {"data": data, "task": Choice("chat")}  # whose lines are conversations
    assert not get_prompt_template(run.recipe.model_copy(update=chat), run.tokenizer).always_add_prefix
