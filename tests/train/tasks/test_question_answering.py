import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from tests.serve.conftest import serve_run
from tests.train.conftest import Notes, user_error
from tests.train.tasks.classification_helpers import recipe
from tests.train.test_resume import assert_resumes

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.data.batching.windows import encode_question, label_answer
from polyhead.data.readers.spans import TextSpan
from polyhead.nn.loss import IGNORE_INDEX, span_loss
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]
NAMES = {"who": ["ann", "bo", "cleo"], "where": ["rome", "york"]}
FILLERS = ["the", "film", "was", "long"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Contexts with a name or without; the question word says of which kind."""
    folder, rng = tmp_path_factory.mktemp("answers"), np.random.default_rng(5)
    for split, count in (("train", 300), ("valid", 40), ("test", 40)):
        rows = []
        for _ in range(count):
            words = [
                str(word) for word in rng.choice(FILLERS, int(rng.integers(3, 30 if split == "test" else 8)))
            ]
            asked, kind = (str(rng.choice([*NAMES])) for _ in "ab")
            name = str(rng.choice(NAMES[kind]))
            words.insert(int(rng.integers(len(words) + 1)), name)
            context = " ".join(words)
            start = f" {context} ".index(f" {name} ")
            answers = [{"text": name, "start": start}] if asked == kind else []
            rows.append({"question": f"{asked} ?", "context": context, "answers": answers})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def task_recipe(directory, out, data=None, **train):
    data = {split: f"{split}.jsonl" for split in ("train", "valid", "test")} | (data or {})
    data = {"text": ["question", "context"], "label": "answers"} | data
    train = {"best_metric": "f1", "lr": 1e-2, "steps": 120, "eval_every": 60, "save_every": 60} | train
    model = {"pooling": None, "n_layers": 2, "position": "rope"}
    return recipe(directory, out, task="question-answering", data=data, train=train, model=model)


@pytest.fixture(scope="module")
def trained_run(directory, no_fsync):
    config = task_recipe(directory, "reader")
    run, _ = run_training(config, report=Notes())
    return run, config


def read_rows(directory):
    return [json.loads(line) for line in (directory / "test.jsonl").read_text().splitlines()]


def test_answers_are_learned_and_evaluated(trained_run, directory, capsys):
    _, config = trained_run
    rows = read_rows(directory)
    found = ph.load(config.out).answer_all([(row["question"], row["context"]) for row in rows])
    wanted = [row["answers"][0] if row["answers"] else {"text": "", "start": 0} for row in rows]
    right = [(a.answer, a.start) == (b["text"], b["start"]) for a, b in zip(found, wanted, strict=True)]
    assert np.mean(right) > 0.85 and all(
        row["context"][a.start : a.end] == a.answer for a, row in zip(found, rows, strict=True)
    )
    assert main(["eval", str(config.out), "--json"]) == 0
    measures = json.loads(capsys.readouterr().out)
    match = np.mean([a.answer == b["text"] for a, b in zip(found, wanted, strict=True)])
    assert measures["measures"]["exact_match"] == pytest.approx(match)
    assert measures["measures"]["f1"] == pytest.approx(match)  # answers are single words
    assert measures["baselines"]["exact_match"]["guess"] == "empty answer"
    card = (config.out / "README.md").read_text()
    assert f"| test exact_match | {match:.4f}" in card and "empty answer" in card


def test_output_of_the_command_line_and_the_server(trained_run, directory, capsys):
    run, config = trained_run
    row = next(row for row in read_rows(directory) if row["answers"])
    answer = run.answer(row["question"], row["context"])
    with pytest.raises(UserError, match="single texts; expected a list of pairs"):
        run.answer_all([row["question"]])
    for wrong in ("who ?", "ab"):  # two characters are no pair
        with pytest.raises(UserError, match=f"^text 2 is '{re.escape(wrong)}', expected a pair of texts$"):
            run.answer_all([(row["question"], row["context"]), wrong])
    (directory / "context.txt").write_text(row["context"] + "\n")
    for context in (row["context"], str(directory / "context.txt")):
        assert main(["answer", str(config.out), row["question"], "--context", context]) == 0
        line = json.loads(capsys.readouterr().out)
        assert (line["question"], line["answer"]) == (row["question"], answer.answer)
        assert line["score"] == pytest.approx(answer.score, abs=1e-4)
    with serve_run(run) as client:
        body = {"question": row["question"], "context": row["context"]}
        data = client.ask("/v1/answer", body).json()
        assert {name: data[name] for name in ("answer", "start", "end")} == {
            "answer": answer.answer, "start": answer.start, "end": answer.end
        }  # fmt: skip
        assert client.ask("/v1/tag", {"input": "x"}).status_code == 400
        for blank in ("", " \u3000\u200b"):
            response = client.ask("/v1/answer", body | {"question": blank})
            assert response.status_code == 400 and response.json()["error"]["param"] == "question"
            assert response.json()["error"]["message"] == "question is empty: expected text"
    for blank in ("", " \n", "\u3000\u200b"):
        with pytest.raises(UserError, match=r"^question 2 is empty: expected text$"):
            run.answer_all([("who ?", "cleo"), (blank, "cleo")])
        with pytest.raises(UserError, match=r"^question 1 is empty: expected text$"):
            run.answer(blank, "cleo")
    assert run.answer("who ?", "") == ("", 0, 0, pytest.approx(1.0))
    assert main(["tag", str(config.out), "x"]) == 2
    assert "use answer, eval or attention" in capsys.readouterr().err


def test_labels_and_loss_are_those_written_out(trained_run):
    run, _ = trained_run
    context = "the film was long and cleo was in the film"
    texts, spans = ("who ?", context), [TextSpan(22, 26, "cleo")]
    starts, windows = encode_question(texts, run.tokenizer, 12)
    assert len(windows) > 1
    seen = 0
    for window in windows:
        labels = label_answer(spans, starts, window)
        part = context[starts[window.start] : starts[window.end] if window.end < len(starts) else None]
        first, last = (int(np.flatnonzero(np.maximum(labels, 0) & bit)[0]) for bit in (1, 2))
        assert (labels != IGNORE_INDEX).sum() == window.end - window.start + 1
        if first:
            ids = window.row.ids[first : last + 1]
            assert run.tokenizer.decode([ids])[0].strip() == "cleo"
        seen += first > 0
        assert (first > 0) == ("cleo" in part)
    assert seen
    torch.manual_seed(1)
    logits, labels = torch.randn(3, 5, 2), torch.full((3, 5), IGNORE_INDEX)
    labels[0, [0, 2, 3]], labels[1, [0, 1]] = torch.tensor([0, 1, 2]), torch.tensor([3, 0])
    start, end = logits[0, [0, 2, 3]].log_softmax(0).T
    none = logits[1, [0, 1]].log_softmax(0)[0]
    loss = span_loss(logits, labels)
    assert (
        float(loss.total) == pytest.approx(float(-(start[1] + end[2] + none.sum()) / 2)) and loss.count == 2
    )


def test_killed_run_resumes_bit_for_bit(directory):
    assert_resumes(partial(task_recipe, directory))


def test_unsuitable_recipes_are_refused(directory):
    task = TASK.get("question-answering")
    with user_error(r"reads two columns: data.text=\[question, context\]"):
        task.check(task_recipe(directory, "unused", {"text": ["context"]}))


def test_init_finds_questions(directory, capsys, monkeypatch):
    monkeypatch.chdir(directory)
    assert main(["init", "train.jsonl", "--output", "mine.yaml"]) == 0
    recipe_text = (directory / "mine.yaml").read_text()
    assert "task: question-answering" in recipe_text and "label: answers" in recipe_text
    assert "text: [question, context]" in recipe_text and "valid: " in recipe_text
