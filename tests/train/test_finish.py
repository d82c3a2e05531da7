import json
from unittest.mock import Mock

import pytest
from safetensors.torch import load_file
from tests.train.conftest import Notes, equal_tensors, small_recipe, user_error, with_data
from tests.train.distributed.rank_runs import recipe_of, write_task_texts
from tests.train.task_runs import task_recipe, write_texts

import polyhead as ph
from polyhead import Choice
from polyhead.checkpoint import checkpoint
from polyhead.config.generation_config import GenerationConfig
from polyhead.train import run_training as run_training_module
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask

pytestmark = pytest.mark.usefixtures("no_report")
LONG = "a cat and a dog and a cat and a dog and a cat and a dog"


@pytest.fixture(scope="module")
def texts_dir(tmp_path_factory):
    return write_task_texts(tmp_path_factory.mktemp("texts"))


def chat_line(answer) -> str:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}) + "\n"


def assert_refused(recipe, message):
    notes = Notes()
    with user_error(message):
        run_training(recipe, report=notes)
    assert notes.rows == []
    assert not checkpoint.list_steps(recipe.out / "checkpoints")


@pytest.mark.parametrize(
    ("task", "files", "message"),
    [
        ("classification", {"a.tsv": "text\tlabel\na cat\t-1\n"}, "0 of 1 texts; skipped 1 with an unknown"),
        ("translation", {"a.de": "ein\nzwei\n", "a.en": "a\n"}, r"a\.de has 2 lines and a\.en has 1"),
        ("translation", {"a.de": "\n", "a.en": "\n"}, r"no usable pair in a\.de \+ a\.en"),
        ("chat", {"a.jsonl": chat_line(LONG * 9)}, "0 of 1 conversations, 0 answers; skipped 1 overlong"),
        ("masked-lm", {"a.txt": " \n \n"}, r"a\.txt: no visible text"),
        ("denoising", {"a.txt": " \n \n"}, r"a\.txt: no visible text"),
        ("language-model", {"a.txt": " \n \n"}, r"a\.txt: no visible text"),
        ("language-model", {"a.txt": "\n"}, r"a\.txt: no visible text"),
    ],
)
def test_unusable_test_text_is_refused_at_start(task, files, message, texts_dir, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    recipe = recipe_of(texts_dir, task, f"late-{task}-{len(message)}")
    separator = {"document_separator": "file"} if "one token" in message else {}
    assert_refused(with_data(recipe, test=[str(tmp_path / name) for name in files], **separator), message)


@pytest.mark.parametrize(
    ("task", "generation", "message"),
    [
        ("language-model", {"stop_tokens": ["<nuk>"]}, "stop_tokens: no token '<nuk>' in the vocabulary"),
        ("language-model", {"grammar": Choice("regex", pattern="[a-")}, "'regex': unclosed character class"),
        ("language-model", {"grammar": Choice("json", schema={"not": {}})}, "'json': unimplemented keys"),
        ("language-model", {"cache": Choice("state")}, "cache: cache 'state' stores a recurrent state"),
        ("language-model", {"chat": Choice("chatml")}, r"needs the token '<\|im_end\|>', which is not in th"),
        ("translation", {"bad_words": ["<nuk>"]}, "generation.bad_words: no token '<nuk>' in the vocabulary"),
        ("translation", {"stop_tokens": ["<nuk>"]}, "stop_tokens: no token '<nuk>' in the vocabulary"),
        ("translation", {"cache": Choice("state")}, "generation.cache: cache 'state' stores a recurrent"),
        ("translation", {"cache": Choice("h2o", budget=1)}, "cache 'h2o': a budget of 1 tokens"),
    ],
)
def test_unusable_generation_settings_are_refused_at_start(task, generation, message, texts_dir):
    recipe = recipe_of(texts_dir, task, "late-decoding")
    settings = GenerationConfig.model_validate(recipe.generation.model_dump() | generation)
    assert_refused(recipe.model_copy(update={"generation": settings}), message)


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("task", ["classification", "chat", "denoising"])
def test_row_longer_than_any_batch_is_refused(task, split, tmp_path):
    files = {
        "short.txt": "a cat\na dog\n",
        "long.txt": f"{LONG}\n",
        "short.jsonl": 2 * chat_line("a dog"),
        "long.jsonl": chat_line(LONG),
        "short.tsv": "text\tlabel\na cat\tcat\n" + 2 * "a dog\tdog\n",
        "long.tsv": f"text\tlabel\n{LONG}\tdog\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    suffix = {"classification": "tsv", "chat": "jsonl"}.get(task, "txt")
    options = {"max_tokens": 25, "model": {"max_len": 128}, "tokenizer": {"vocab_size": 262}}
    texts = {name: [f"short.{suffix}"] for name in ("train", "valid", "test")} | {split: [f"long.{suffix}"]}

    recipe = with_data(recipe_of(tmp_path, task, "run", **options), max_len=128, **texts)
    assert_refused(recipe, "max_tokens is 25, but row 1 alone has")


def test_error_in_final_evaluation_loses_no_weights(corpus_dir, monkeypatch):
    """The run has its loss, and a resume measures the rest."""
    expected, cut = (small_recipe(corpus_dir, name, steps=4) for name in ("all", "cut"))
    run_training(expected, report=Notes())

    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "collect_facts", Mock(side_effect=RuntimeError("out of luck")))
        with pytest.raises(RuntimeError, match="out of luck"):
            run_training(cut, report=Notes())
    weights = [load_file(recipe.out / "model.safetensors") for recipe in (cut, expected)]
    assert equal_tensors(*weights)
    assert ph.load(cut.out).translate(["ein hund"]) == ph.load(expected.out).translate(["ein hund"])
    card = (cut.out / "README.md").read_text()
    assert "| valid loss |" in card
    assert "bleu" not in card
    run_training(cut, resume=True, report=Notes())
    for name in ("README.md", "baseline.json", "examples.json"):
        assert (cut.out / name).read_bytes() == (expected.out / name).read_bytes()


@pytest.mark.parametrize(
    ("task", "train"),
    [
        ("language-model", {"lr": 1.0, "eval_every": 1, "schedule": {"name": "constant", "warmup": 1}}),
        ("language-model", {"ema": 0.9}),
        ("translation", {"average_checkpoints": 2, "save_every": 2}),
    ],
)
def test_lost_final_weights_are_rebuilt_from_checkpoints(task, train, tmp_path, caplog, monkeypatch):
    """They are not the newest ones: training diverges, or the second candidate is better."""
    losses = iter([2.0, 1.0])
    monkeypatch.setattr(run_training_module, "measure_metric", lambda *_: next(losses))
    write_texts(tmp_path)
    recipe = task_recipe(tmp_path, task, tmp_path / "run", steps=8, **train)
    run_training(recipe, report=Notes())
    weights = load_file(recipe.out / "model.safetensors")
    selection = json.loads((recipe.out / "manifest.json").read_text())["extra"]["weights"]
    assert selection != {"steps": [8], "group": "model"}
    newest = load_file(recipe.out / "checkpoints" / "step-8" / "model.safetensors")
    assert not equal_tensors(weights, {name: newest[name] for name in weights})
    (recipe.out / "model.safetensors").unlink()
    loaded_weights = dict(ph.load(recipe.out).model.named_parameters())
    assert equal_tensors(weights, {name: loaded_weights[name] for name in weights})
    assert "which was chosen when training ended" in caplog.text
