import hashlib
import json

import pytest
from tests.train.conftest import Notes
from tests.train.ranks import outputs_of
from tests.train.task_runs import TASKS, task_recipe, write_texts
from tests.train.test_resume import KILLED_CODE, KillAt, train_in_child

import polyhead
from polyhead.config.recipe import Recipe
from polyhead.explain.marks import MARKS_DIRECTORY, describe_mark, read_marks
from polyhead.run.run_examples import read_examples
from polyhead.train import validation_examples
from polyhead.train.run_training import run_training
from polyhead.train.validation_examples import save_validation_examples

TURNS = [{"role": "user", "content": "a dog ?"}, {"role": "assistant", "content": "dogs"}]
CHAT = json.dumps({"messages": [{"role": "system", "content": "s"}, *TURNS, *TURNS]})
PAIR_LINES = "a\tb\tlabel\na dog .\ttwo dogs .\tgood\n"
HALF = {"valid": None, "valid_fraction": 0.5}


@pytest.mark.parametrize(
    ("task", "name", "content", "data", "examples"),
    [
        ("translation", "valid.tsv", "a dog\tein hund\n\tkein\n", {}, [("a dog", "ein hund")]),
        ("classification", "valid.tsv", "text\tlabel\na dog .\tgood\n", {}, [("a dog .",)]),
        ("classification", "valid.tsv", PAIR_LINES, {"text": ["a", "b"]}, [("a dog .", "two dogs .")]),
        ("language-model", "valid.txt", "a dog .\n\ndogs\n", {}, [("a dog .",), ("dogs",)]),
        ("language-model", "valid.txt", "one dog .\nfour dogs .\nx\n", HALF, [("x",)]),
        ("masked-lm", "valid.txt", "d" * 501 + "\n" * 9, {}, [("d" * 500,)]),
        ("chat", "valid.jsonl", CHAT, {}, [("a dog ?",)]),
        ("masked-lm", "gone.txt", "a dog .\n", {}, []),
    ],
)
def test_first_validation_texts_are_kept(task, name, content, data, examples, tmp_path):
    (tmp_path / name.replace("gone", "valid")).write_text(content)
    data = {"root": tmp_path, "train": name, "valid": name} | data
    recipe = Recipe.model_validate({"task": task, "data": data, "train": {"steps": 1}, "out": tmp_path})
    save_validation_examples(recipe)
    assert read_examples(tmp_path) == examples


pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.timeout(600)]


def files_of(out):
    return {path.name: path.read_bytes() for path in (out / MARKS_DIRECTORY).glob("*")}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "task",
    [task if task == "language-model" else pytest.param(task, marks=pytest.mark.slow) for task in TASKS],
)
def test_marks_survive_a_kill(task, tmp_path):
    write_texts(tmp_path)
    plain, whole, killed = (
        task_recipe(tmp_path, task, tmp_path / name, log_every=1, **train)
        for name, train in (("plain", {}), ("whole", {"explain_every": 2}), ("killed", {"explain_every": 2}))
    )
    run_training(plain, report=Notes())
    run_training(whole, report=(notes := Notes()))
    assert not [line for line in notes.lines if "explain_every" in line]
    assert (
        train_in_child(killed, report=KillAt(5)) == KILLED_CODE
    )  # after the mark of step 4, saved at step 3
    assert set(files_of(killed.out)) == {"0.json", "2.json", "4.json"}
    for step in (4, 5):
        (killed.out / MARKS_DIRECTORY / f"{step}.json").write_text("of weights that were lost")
    assert train_in_child(killed, resume=True) == 0
    marks = files_of(whole.out)
    assert set(marks) == {"0.json", "2.json", "4.json", "6.json"}
    assert files_of(killed.out) == marks
    assert len({digest(one.out / "model.safetensors") for one in (plain, whole, killed)}) == 1
    assert not files_of(plain.out)
    last, example = read_marks(whole.out)[-1], read_examples(whole.out)
    (target,) = {one[-1] for one in example if one[0] == last["text"]}
    target = target if task in ("translation", "denoising") else None
    # the final weights are those of step 6
    expected = describe_mark(polyhead.load(whole.out), last["text"], target)
    assert json.loads(json.dumps(expected))["guesses"] == last["guesses"]


def test_other_ranks_write_no_marks(tmp_path):
    write_texts(tmp_path)
    recipe = task_recipe(tmp_path, "language-model", tmp_path / "out", explain_every=3)

    def train(ranks):
        calls = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                validation_examples, "write_mark", lambda run, text, target, step, out: calls.append(step)
            )
            run_training(recipe, report=Notes(), ranks=ranks)
        return calls

    assert outputs_of(2, train) == [[0, 3, 6], []]


def test_error_of_mark_does_not_end_training(tmp_path, monkeypatch):
    write_texts(tmp_path)

    def fail(*arguments):
        raise OSError("the disk is full")

    monkeypatch.setattr(validation_examples, "write_mark", fail)
    _, outcome = run_training(
        task_recipe(tmp_path, "language-model", tmp_path / "out", explain_every=1), report=(notes := Notes())
    )
    lines = [line for line in notes.lines if "explain_every" in line]
    assert lines == ["warning: no more marks of train.explain_every: the disk is full"]
    assert outcome.status == "done"
