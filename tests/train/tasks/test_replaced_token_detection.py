import math
import re

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
import transformers
from tests.train.conftest import Notes
from tests.train.tasks.test_masked import N_SPECIAL
from tests.train.tasks.test_masked import corpus_dir as corpus_dir
from tests.train.tasks.test_masked import open_task as open_masked_task
from tests.train.tasks.test_masked import recipe as masked_recipe

import polyhead as ph
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.models import Classifier
from polyhead.run.run import Run
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]
TASK_NAME = "replaced-token-detection"


def recipe(directory, out, **changes) -> Recipe:
    model = {"generator_layers": 1} | changes.pop("model", {})
    return masked_recipe(directory, out, **{"task": TASK_NAME, "model": model} | changes)


def train(recipe) -> list[str]:
    notes = Notes()
    run_training(recipe, report=notes)
    return notes.lines


def open_task(recipe):
    task, tokenizer = open_masked_task(recipe)
    return task, ph.build(recipe.model.with_vocabulary(tokenizer.vocab_size), 1).eval()


def encode_row(run, text):
    return torch.tensor([[run.tokenizer.bos_id, *run.tokenizer.encode([text])[0], run.tokenizer.eos_id]])


def start_from(run_recipe, **sections) -> Recipe:
    fields = run_recipe.model_dump(exclude={"tokenizer", "model", "out", "task"}, exclude_unset=True)
    return Recipe.model_validate(fields | {"init_from": {"run": str(run_recipe.out)}, **sections})


def sample_replacements(model, batch):
    """The text, and the generator's samples in place of masked tokens, drawn one by one."""
    tokens, pos, labels = batch.masked
    text, sampled_tokens = torch.where(labels == -100, tokens, labels), tokens.clone()
    p = model.generator(tokens, pos).double().softmax(-1)
    for row, i in (labels != -100).nonzero().tolist():
        total, token = 0.0, -1
        while total <= float(batch.uniform_draws[row, i]):
            token += 1
            total += float(p[row, i, token])
        sampled_tokens[row, i] = token
    return text, sampled_tokens


@pytest.mark.parametrize("width", [16, 32])
@torch.no_grad()
def test_loss_is_that_of_the_paper(width, corpus_dir):
    choice = {"name": TASK_NAME, "weight": 20.0, "mask": 0.3}
    task, model = open_task(recipe(corpus_dir, "x", task=choice, data={"max_len": width}))
    batch = task.collate(task.epoch_batches(0)[0])
    text, sampled_tokens = sample_replacements(model, batch)
    tokens, pos, labels = batch.masked
    is_token = torch.ones_like(tokens, dtype=torch.bool) if pos is None else pos >= 0
    scores = model.generator(tokens, pos).flatten(0, 1)
    masked = F.cross_entropy(scores, labels.flatten(), reduction="sum", ignore_index=-100)
    logits = model(sampled_tokens, pos)
    right = torch.where(sampled_tokens == text, torch.sigmoid(-logits), torch.sigmoid(logits))
    loss = task.loss(model, batch)
    assert loss.count == int((labels != -100).sum())
    assert loss.nll.item() == pytest.approx(masked.item(), rel=1e-5)
    expected = masked - 20.0 * 0.3 * right[is_token].log().sum()
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    # with the actual fraction of masked tokens, the mean of both is that of the equation
    fraction = loss.count / int((text[is_token] >= N_SPECIAL).sum())
    assert fraction == pytest.approx(0.3, abs=0.03)


@pytest.mark.slow
def test_replaced_tokens_are_detected(corpus_dir):
    """With a generator that is not trained."""
    model = {"d_model": 32, "n_layers": 2, "dropout": 0.0, "position": "rope", "tie_embeddings": "none"}
    options = {"log_every": 50, "eval_every": 150, "save_every": 150, "max_tokens": 512, "lr": 5e-3}
    config = recipe(corpus_dir, "trained", steps=150, model=model, train=options | {"freeze": ["generator"]})
    notes = Notes()
    run_training(config, report=notes)
    row = [row for row in notes.rows if row["split"] == "valid"][-1]
    assert row["f1"] > 0.9
    # the frequency of replaced tokens alone would give 50 times 0.4 nats
    assert row["loss"] - math.log(row["ppl"]) < 50 * 0.1
    assert any(f"valid F1 {row['f1']:.4f} (baseline" in line for line in notes.lines)
    run = ph.load(config.out)
    assert run.model(encode_row(run, "bcdefcha"))[0].argmax() == 1 + "bcdefcha".index("c", 2)


def test_classifier_starts_from_the_encoder(corpus_dir):
    config = recipe(corpus_dir, "encoder", steps=3)
    train(config)
    data = {"train": ["letters.tsv"], "text": "letters", "label": "label", "document_separator": "file"}
    options = config.train.model_dump() | {"steps": 1, "lr": 1e-12, "ema": None}
    sections = {"task": "classification", "train": options, "out": corpus_dir / "classes"}
    lines = train(start_from(config, data=config.data.model_dump() | data, **sections))
    model, expected = ph.load(corpus_dir / "classes").model, ph.load(config.out).model
    assert isinstance(model, Classifier) and model.config.generator_layers == 0
    assert_same_encoder(model, expected)
    end = "; new: classifier, pooler; unused: detector, detector_transform, generator"
    assert any(line.endswith(end) for line in lines)
    out = corpus_dir / "detector"
    lines = train(start_from(config, task=TASK_NAME, model={"generator_layers": 1}, out=out))
    assert any(re.search(r"initialized (\d+) of \1 weights$", line) for line in lines)


def assert_same_encoder(model, expected):
    for name, tensor in expected.encoder.state_dict().items():
        torch.testing.assert_close(model.encoder.state_dict()[name], tensor, atol=1e-6, rtol=0)


@pytest.mark.parametrize("width", [None, 8])
def test_encoder_is_exchanged_with_masked_lm(width, corpus_dir):
    options = {"steps": 2, "model": {"d_embedding": width}, "train": {"lr": 1e-12, "ema": None}}
    masked = masked_recipe(corpus_dir, f"masked{width}", **options)
    detector = recipe(corpus_dir, f"detector{width}", **options)
    for origin, task, n_layers in ((masked, TASK_NAME, 1), (detector, "masked-lm", 0)):
        train(origin)
        out = corpus_dir / f"{task}{width}"
        train(start_from(origin, model={"generator_layers": n_layers}, task=task, out=out))
        assert_same_encoder(ph.load(out).model, ph.load(origin.out).model)


def test_label_smoothing_is_for_the_generator(corpus_dir):
    task, model = open_task(recipe(corpus_dir, "x", train={"label_smoothing": 0.1}))
    batch = task.collate(task.epoch_batches(0)[0])
    task.weight = 0.0
    labels, scores = batch.masked.labels.flatten(), model.generator(*batch.masked[:2]).flatten(0, 1)
    expected = F.cross_entropy(scores, labels, reduction="sum", ignore_index=-100, label_smoothing=0.1)
    assert task.loss(model, batch).total.item() == pytest.approx(expected.item(), rel=1e-5)


def test_draws_follow_from_seed_epoch_and_row(corpus_dir):
    def draw(seed, epoch, max_tokens=256):
        task, _ = open_task(recipe(corpus_dir, "x", train={"seed": seed, "max_tokens": max_tokens}))
        draws = {}
        for packed_rows in task.epoch_batches(epoch):
            rows = zip(packed_rows.rows.tolist(), task.collate(packed_rows).uniform_draws, strict=True)
            draws |= {row: draw[:8].numpy().tobytes() for row, draw in rows}
        return draws

    first = draw(1, 0)
    assert first == draw(1, 0, 512) and len(set(first.values())) == len(first) > 8
    for other in (draw(1, 1), draw(2, 0)):
        assert not set(first.values()) & set(other.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"generator_layers": 0}}, f"'{TASK_NAME}' requires it: set it to at most half of"),
        ({"task": "translation"}, "replaces tokens that an encoder learns to detect; this is kind='encoder-"),
        ({"model": {"lm_head": True}}, "lm_head=true and generator_layers cannot be combined: remove one"),
        ({"task": "masked-lm"}, f"is for task {TASK_NAME}; task 'masked-lm' does not use it: remove it"),
        ({"task": {"name": TASK_NAME, "mask": 0.0}}, f"mask of task '{TASK_NAME}' must be a fraction above"),
        ({"task": {"name": TASK_NAME, "weight": -1}}, "weight"),
        ({"train": {"best_metric": "accuracy"}}, "does not measure 'accuracy'; it measures loss, f1"),
        (
            {"distill": {"teacher": ["another"]}},
            f"'{TASK_NAME}' does not support distillation; tasks that do",
        ),
    ],
)
def test_unsuitable_recipe_is_refused(changes, message, corpus_dir):
    with pytest.raises(ValueError, match=re.escape(message)):
        train(recipe(corpus_dir, "refused", **changes))
    assert not (corpus_dir / "refused" / "checkpoints").exists()


def test_eval_equals_final_evaluation(corpus_dir, capsys):
    config = recipe(corpus_dir, "measured", steps=3, data={"test": "letters.txt"})
    train(config)
    card = dict(re.findall(r"\| test (\w+) \| (\S+) \|", (config.out / "README.md").read_text()))
    assert main(["eval", str(config.out)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["loss", "perplexity", "f1"] and list(card) == ["loss", "ppl", "f1"]
    assert [float(line[1]) for line in lines] == pytest.approx(list(map(float, card.values())), abs=6e-4)
    assert main(["eval", str(config.out), "--ensemble", str(config.out)]) == 2
    assert "detects tokens of its own generator: it cannot be in an ensemble" in capsys.readouterr().err


@pytest.mark.slow
def test_exports_to_electra_and_onnx(corpus_dir, capsys):
    model = {"norm_first": False, "position": "learned", "n_segments": 2, "embedding_norm": True}
    model |= {"feed_forward": "gelu", "scale_embedding": False, "lm_head_bias": True}
    config = recipe(corpus_dir, "exported", steps=3, model=model)
    train(config)
    run = ph.load(config.out)
    row = encode_row(run, "abcabc")
    expected = run.model.encoder(row).detach()
    export = ["export", str(config.out)]
    assert main([*export, str(corpus_dir / "hf"), "--to", "hf", "--family", "electra"]) == 0
    assert "without its generator" in capsys.readouterr().out
    electra = transformers.AutoModel.from_pretrained(corpus_dir / "hf").eval()
    torch.testing.assert_close(electra(row).last_hidden_state.detach(), expected, atol=1e-5, rtol=1e-5)
    assert main([*export, str(corpus_dir / "onnx"), "--to", "onnx"]) == 0
    session = onnxruntime.InferenceSession(corpus_dir / "onnx/model.onnx")
    inputs = {"attention_mask": torch.ones_like(row), "token_type_ids": torch.zeros_like(row)}
    inputs = {name: x.numpy() for name, x in ({"input_ids": row} | inputs).items()}
    [hidden] = session.run(["last_hidden_state"], inputs)
    torch.testing.assert_close(torch.from_numpy(hidden), expected, atol=1e-4, rtol=1e-4)


def test_detector_embeds_but_does_not_fill_masks(corpus_dir):
    task, model = open_task(recipe(corpus_dir, "x"))
    run = Run(model, task.masked_lm.tokenizer, GenerationConfig())
    expected = model.encoder(encode_row(run, "abc"))[0].mean(0).detach()
    torch.testing.assert_close(run.embed(["abc"])[0], expected)
    with pytest.raises(ValueError, match="this encoder has no language modelling head"):
        run.fill_mask(["a<mask>c"])
