import json
from pathlib import Path

import numpy as np
import torch

from polyhead.cli import main
from polyhead.compare.plan import make_plan
from polyhead.compare.sweep import read_budget
from polyhead.compare.tasks.base import get_compared_task
from polyhead.core.registry import TASK
from polyhead.models import build
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.loggers import Reporters

WORDS = {"ein": "a", "zwei": "two", "hund": "dog", "katze": "cat", "rot": "red", "und": "and", "hier": "here"}
MODEL = "d_model: 16, n_layers: 1, n_heads: 2, d_ff: 32, position: learned"
TRAIN = "lr: 1e-2, precision: fp32, threads: 1"
TOY_RECIPE = f"""
data: {{train: [train.de, train.en], valid: [valid.de, valid.en], test: [test.de, test.en], target_lang: en}}
tokenizer: {{vocab_size: 280}}
model: {{{MODEL}, max_len: 32}}
train: {{steps: 24, max_tokens: 48, {TRAIN}, schedule: {{name: inverse_sqrt, warmup: 4}}}}
generation: {{beam_size: 1, max_length_ratio: 1.0, max_length_extra: 0}}
"""
TASK_RECIPE = """
task: %s
data: {train: train.%s, valid: valid.%s, test: test.%s, %s}
tokenizer: {kind: char}
model: {%s, max_len: %d}
train: {steps: %d, max_tokens: %d, %s, schedule: {name: inverse_sqrt, warmup: 1}}
"""
# task -> extension of its files, settings of its data, max_len of its model
OTHER_TASKS = {
    "chat": ("jsonl", "max_len: 80", 80),
    "classification": ("tsv", "text: text, label: label, max_len: 16", 24),
    "denoising": ("en", "document_separator: line, max_len: 16", 24),
    "masked-lm": ("en", "document_separator: line, max_len: 12", 24),
}


def write_toy_files(directory):
    """Sentences of one to seven words, as translations, labeled texts and conversations, and the recipes."""
    rng = np.random.default_rng(3)
    for split, count in (("train", 30), ("valid", 12), ("test", 8)):
        rows = [rng.choice(list(WORDS), rng.integers(1, 8)).tolist() for _ in range(count)]
        lines = [" ".join(WORDS[word] for word in row) for row in rows]
        labels = ["long" if len(line) > 14 else "cat" if "cat" in line else "other" for line in lines]
        turns = [(("user", line[:6]), ("assistant", line[6:12] or "!")) for line in lines]
        chats = [{"messages": [{"role": r, "content": text} for r, text in pair]} for pair in turns]
        for extension, content in {
            "de": [" ".join(row) for row in rows],
            "en": lines,
            "tsv": ["label\ttext", *map("\t".join, zip(labels, lines, strict=True))],
            "jsonl": map(json.dumps, chats),
        }.items():
            (directory / f"{split}.{extension}").write_text("".join(f"{line}\n" for line in content))
    (directory / "toy.yaml").write_text(TOY_RECIPE)
    for task, (extension, data, max_len) in OTHER_TASKS.items():
        recipe = TASK_RECIPE % (task, *[extension] * 3, data, MODEL, max_len, 12, 96, TRAIN)
        (directory / f"{task}.yaml").write_text(recipe)
    recipe = TASK_RECIPE % ("language-model", *["en"] * 3, "max_len: 8", MODEL, 12, 24, 24, TRAIN)
    (directory / "lm.yaml").write_text(recipe)


def make_toy_plan(
    *axes, designs=(), changes=(), grid=False, budget="20steps", seeds=2, recipe="toy.yaml", out=None
):
    options = {"budget": read_budget(budget), "seeds": seeds, "match": False}
    return make_plan(Path(recipe), changes, axes, designs, full_grid=grid, out=out, **options)


def compare(name, *options, budget="1steps"):
    assert main(["compare", f"{name}.yaml", *(["--budget", budget] if budget else []), *options]) == 0
    return read_rows(name)


def read_rows(name="toy"):
    rows = json.loads(Path(f"runs/compare-{name}/compare.json").read_text())["rows"]
    return {row["name"]: row for row in rows}


class UntrainedTask:
    """A recipe, its task and an untrained model; ``noise`` is added to the weights, for wrong outputs."""

    def __init__(self, name, *changes, noise=0.0):
        self.recipe = load_recipe(f"{name}.yaml", [*changes, "data.cache_dir=cache"])
        task = TASK.get(self.recipe.task.name)
        self.tokenizer = train_tokenizer(task.iter_texts(self.recipe), self.recipe.tokenizer.kind, 280)
        self.task = task.open(self.recipe, self.tokenizer, Reporters())
        config = self.recipe.model.with_vocabulary(self.tokenizer.vocab_size, self.task.labels)
        self.model = build(config, 1).eval()
        torch.manual_seed(5)
        with torch.no_grad():
            for p in self.model.parameters():
                p.add_(noise * torch.randn_like(p))
        self.run = Run(self.model, self.tokenizer, self.recipe.generation, self.recipe)
        self.compared = get_compared_task(self.recipe.task.name)

    def eval_batches(self):
        return (self.compared.make_batch(batch) for _, batch in self.task.eval_batches("valid"))

    def evaluate(self):
        return self.compared.evaluate(self.run, self.recipe, self.task)
