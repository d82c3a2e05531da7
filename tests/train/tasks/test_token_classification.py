import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.hf.conftest import make
from tests.hf.sentence_helpers import BERT, set_template
from tests.serve.conftest import serve_run
from tests.train.conftest import Notes, user_error
from tests.train.tasks.classification_helpers import FILLERS, recipe
from tests.train.test_resume import assert_resumes

import polyhead as ph
from polyhead.cli import main
from polyhead.core.registry import TASK
from polyhead.data.readers.spans import spans_to_tags
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.samples.classes import take_samples

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]
ROOT = Path(__file__).resolve().parents[3]
NAMES = {"PER": ["Ann Lee", "Bo", "Cleo"], "LOC": ["Rome", "New York"]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Texts with names between fillers, as JSONL; of the test split also as CoNLL."""
    folder, rng = tmp_path_factory.mktemp("spans"), np.random.default_rng(5)
    for split, count in (("train", 250), ("valid", 30), ("test", 30)):
        rows, blocks = [], []
        for _ in range(count):
            text, spans = "", []
            for _ in range(int(rng.integers(2, 30 if split == "test" else 9))):
                kind = rng.choice(["PER", "LOC", "", ""])
                word = str(rng.choice(NAMES[kind] if kind else FILLERS))
                start = len(text) + bool(text)
                text += " " * bool(text) + word
                spans += [[start, start + len(word), str(kind)]] if kind else []
            rows.append({"text": text, "spans": spans})
            starts = [0, *(i + 1 for i, c in enumerate(text) if c == " ")]
            words = [(starts.index(a), starts.index(a) + text[a:b].count(" ") + 1, k) for a, b, k in spans]
            tags = spans_to_tags(words, len(starts))
            blocks.append("".join(f"{w}\tx\t{t}\n" for w, t in zip(text.split(), tags, strict=True)))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{split}.conll").write_text("\n".join(blocks))
    return folder


def task_recipe(directory, out, task="token-classification", suffix="jsonl", **train):
    data = {split: f"{split}.{suffix}" for split in ("train", "valid", "test")} | {"label": "spans"}
    train = {"best_metric": "micro_f1", "lr": 1e-2, "steps": 120, "eval_every": 60, "save_every": 60} | train
    model = {"pooling": None, "n_layers": 2, "position": "rope"}
    return recipe(directory, out, task=task, data=data, train=train, model=model)


@pytest.fixture(scope="module")
def trained_run(directory, no_fsync):
    config = task_recipe(directory, "names")
    run, _ = run_training(config, report=Notes())
    return run, config


def read_rows(directory, split="test"):
    return [json.loads(line) for line in (directory / f"{split}.jsonl").read_text().splitlines()]


def read_table(out):
    return {line.split()[0]: float(line.split()[1]) for line in out.split("\n\n")[0].splitlines()}


def test_spans_are_learned_and_evaluated(trained_run, directory, capsys):
    run, config = trained_run
    assert run.config.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    rows = read_rows(directory)
    found = [
        {span[1:4] for span in spans} for spans in ph.load(config.out).tag([row["text"] for row in rows])
    ]
    wanted = [{(label, start, end) for start, end, label in row["spans"]} for row in rows]
    right = sum(len(a & b) for a, b in zip(found, wanted, strict=True))
    counts = [sum(map(len, side)) for side in (found, wanted)]
    expected = {
        "precision": right / counts[0],
        "recall": right / counts[1],
        "micro_f1": 2 * right / sum(counts),
    }
    tables = []
    for files in ([], [directory / "test.conll"]):
        assert main(["eval", str(config.out), *map(str, files)]) == 0
        tables.append(read_table(out := capsys.readouterr().out))
        assert {name: tables[-1][name] for name in expected} == pytest.approx(expected, abs=1e-3)
        assert "confusion matrix" in out and len(out.split("\n\n")[2].splitlines()) == 6
    assert expected["micro_f1"] > 0.9 and tables[0].keys() >= {"loss", "f1", "accuracy", "f1_LOC", "f1_PER"}
    card = (config.out / "README.md").read_text()
    assert f"| test micro_f1 | {tables[0]['micro_f1']:.3f}" in card and "word by word" in card


def test_samples_are_spans_of_validation_texts(trained_run, directory):
    run, _ = trained_run
    samples = take_samples(open_task(directory)[0], ph.load(trained_run[1].out))
    rows = {row["text"]: row["spans"] for row in read_rows(directory, "valid")}
    for example in samples.examples:
        text = example["source"]
        labels = (f"{text[start:end]} = {label}" for start, end, label in rows[text])
        spans = (f"{span.text} = {span.label}" for span in run.tag([text])[0])
        assert (example["reference"], example["output"]) == (", ".join(labels), ", ".join(spans))
    assert len({example["source"] for example in samples.examples}) > 15
    counts = Counter(label for spans in rows.values() for _, _, label in spans)
    assert {group.name: group.size for group in samples.breakdowns[0].groups} == counts


def test_outputs_are_those_of_one_forward_pass(trained_run):
    """A text that fits into one window."""
    from polyhead.evaluate.tagging import compute_word_outputs

    run, _ = trained_run
    text = "a film with Ann Lee and Rome"
    ids, _ = run.tokenizer.encode_with_offsets(text)
    row = torch.tensor([[run.tokenizer.bos_id, *ids, run.tokenizer.eos_id]])
    (output,) = compute_word_outputs(run.model, run.tokenizer, [text], run.generation, 4096)
    with torch.no_grad():
        expected = run.model(row).log_softmax(-1)[0, 1:-1][output.units.tokens].double()
    torch.testing.assert_close(output.log_p, expected, atol=1e-5, rtol=1e-5)
    assert run.tag(["", " "]) == [[], []]


def asdict(span):
    return span._asdict()


def round_scores(spans):
    return [span | {"score": round(span["score"], 4)} for span in spans]


def test_output_of_the_command_line_and_the_server(trained_run, capsys):
    run, config = trained_run
    text = "a plot with Ann Lee and Bo"
    (spans,) = run.tag([text])
    assert [(span.text, span.label) for span in spans] == [("Ann Lee", "PER"), ("Bo", "PER")]
    assert all(text[span.start : span.end] == span.text and 0.5 < span.score <= 1 for span in spans)
    assert main(["tag", str(config.out), text]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["text"] == text and round_scores(line["spans"]) == round_scores(map(asdict, spans))
    with serve_run(run) as client:
        (data,) = client.ask("/v1/tag", {"input": text}).json()["data"]
        assert round_scores(data["spans"]) == round_scores(map(asdict, spans))
        assert client.ask("/v1/classify", {"input": text}).status_code == 400
    with user_error("this requires a classifier, but the run is a token classifier"):
        run.classify([text])
    assert main(["classify", str(config.out), text]) == 2
    assert "use tag, eval or attention" in capsys.readouterr().err


def test_init_recognises_the_files(directory, capsys):
    for suffix in ("jsonl", "conll"):
        assert main(["init", str(directory / f"train.{suffix}")]) == 0
        text = capsys.readouterr().out
        assert "task: token-classification" in text and f"valid.{suffix}]" in text
        assert ("label: spans" in text) == (suffix == "jsonl")
    assert main(["estimate", str(ROOT / "recipes" / "facts-en.yaml"), f"data.root={directory}"]) == 0
    assert "548,875 parameters" not in (text := capsys.readouterr().out) and "parameters" in text
    (directory / "pos.conll").write_text("Ann NNP\n")
    assert main(["init", str(directory / "pos.conll")]) == 2
    assert "is neither CoNLL, a word and a tag (B-PER) per line, nor JSONL" in capsys.readouterr().err


def test_published_encoder_is_fine_tuned(directory):
    """A tiny random BERT: its encoder is taken, a new layer for the tags is trained with it."""
    model = make(directory / "bert", "BertConfig", auto="AutoModelForMaskedLM", **BERT)
    set_template(directory / "bert", [1], [2])
    config = task_recipe(directory, "from-bert", steps=1, lr=1e-9)
    sections = config.model_dump(exclude_unset=True, exclude={"model", "tokenizer"})
    config = type(config).model_validate(sections | {"init_from": str(directory / "bert")})
    run, _ = run_training(config, report=Notes())
    assert run.config.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    ids = torch.tensor([[1, 7, 9, 8, 2]])
    with torch.no_grad():
        expected = model.bert(ids).last_hidden_state
        torch.testing.assert_close(run.model.encoder(ids), expected, atol=1e-4, rtol=1e-4)
    assert len(run.tag(["a film with Ann Lee"])) == 1


@pytest.mark.parametrize("suffix", ["jsonl", "conll"])
def test_killed_run_resumes_bit_for_bit(suffix, directory):
    assert_resumes(lambda name, **train: task_recipe(directory, f"{suffix}-{name}", suffix=suffix, **train))


def open_task(directory, **options):
    config = task_recipe(directory, "unused", {"name": "token-classification", **options})
    TASK.get("token-classification").check(config)
    tokenizer = train_tokenizer(
        TASK.get("token-classification").iter_texts(config), config.tokenizer.kind, 300
    )
    notes = Notes()
    return TASK.get("token-classification").open(config, tokenizer, notes), notes


def test_weights_and_focal_loss_are_those_of_torch(directory):
    task, notes = open_task(directory, class_weights={"B-PER": 3.0}, loss="focal", focal_gamma=1.5)
    assert any(line.startswith("2 classes: LOC: ") for line in notes.lines)
    torch.manual_seed(1)
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[0, 3, IGNORE_INDEX], [3, IGNORE_INDEX, 1]])
    known = labels != IGNORE_INDEX
    weights = torch.ones(5)
    weights[3] = 3.0
    counts = torch.bincount(torch.from_numpy(task.train.targets(range(len(task.train)))[:, 0]), minlength=5)
    weights *= counts.sum() / (counts * weights).sum()
    log_p = logits[known].log_softmax(-1).gather(1, labels[known][:, None])[:, 0]
    expected = -(weights[labels[known]] * (1 - log_p.exp()) ** 1.5 * log_p).sum()
    loss = task.objective.loss(logits, labels, 0.0)
    assert (float(loss.total), loss.count) == (pytest.approx(float(expected)), 4)


def test_baseline_predicts_word_by_word(directory):
    task, _ = open_task(directory)
    counts = task.count_training_tokens(task.tokenizer)
    baselines = task.compute_baselines(counts, None, "valid")
    # names are always names here; only the second words of names follow a B
    assert baselines["micro_f1"].value == baselines["accuracy"].value == 1.0
    assert len(counts.words) == 7 and sum(counts.labels.values()) == len(
        task.train.targets(range(len(task.train)))
    )


def test_unsuitable_recipes_are_refused(directory):
    config = task_recipe(directory, "unused")
    pairs = config.model_copy(update={"data": config.data.model_copy(update={"text": ["text", "spans"]})})
    with user_error("labels single texts: data.text must be one column"):
        TASK.get("token-classification").check(pairs)
    with user_error("unknown label in class_weights 'PER'"):
        open_task(directory, class_weights={"PER": 3.0})
