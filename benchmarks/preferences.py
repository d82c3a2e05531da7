"""DPO and KTO of a small language model: a property of its texts before and after, and what is lost.

./dev bench preferences train.txt valid.txt --out runs/preferences

A model of lines continues the first two words of lines with samples. Of two samples of about the same length
for a prompt, the one without the letter o is preferred. Pairs of the training lines are learned. Those of the
validation lines give the reward accuracy, new samples for their prompts the share without the letter, and the
validation text the perplexity. Models that are in ``--out`` already are not trained again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

import polyhead as ph
from polyhead.data.readers.plain_text import open_text
from polyhead.run.recipe import load_recipe
from polyhead.viz.run_record import read_metrics

LETTER, N_SAMPLES, MAX_NEW_TOKENS = "o", 8, 24
MAX_DIFFERENCE = 4  # characters, or the model learns to be short
MODEL = {
    "d_model": 96, "n_layers": 2, "n_heads": 2, "d_ff": 256, "max_len": 64, "position": "rope",
    "norm": "rmsnorm", "feed_forward": "swiglu", "dropout": 0.0, "init": "normal", "scale_embedding": False,
}  # fmt: skip

LORA = {"r": 8, "alpha": 16, "target_modules": ["attn", "ffn"]}
DESIGNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # task, and keys of train
    "dpo 0.1": ({"name": "dpo", "beta": 0.1}, {}),
    "dpo 0.5": ({"name": "dpo", "beta": 0.5}, {}),
    "dpo LoRA": ({"name": "dpo", "beta": 0.5}, {"lora": LORA, "lr": 0}),  # 0: ten times the rate
    "dpo QLoRA": ({"name": "dpo", "beta": 0.5}, {"lora": LORA | {"base": "int4"}, "lr": 0}),
    "kto 0.5": ({"name": "kto", "beta": 0.5}, {}),
}


def train(out: Path, settings: dict[str, Any]) -> ph.Run:
    """The run in ``out``, trained if it is not there."""
    if not (out / "model.safetensors").exists():
        data = {"document_separator": "line", "max_len": 64} | settings.pop("data")
        out.parent.mkdir(parents=True, exist_ok=True)
        path = out.with_suffix(".yaml")
        path.write_text(json.dumps({"data": data, "out": str(out.absolute())} | settings))
        load_recipe(path)
        ph.train(str(path), quiet=True)
    return ph.load(out)


def sample(run: ph.Run, prompts: list[str], n: int) -> list[list[str]]:
    """``n`` continuations of each prompt."""
    return run.generate(prompts, n=n, seed=1, temperature=1.0, max_new_tokens=MAX_NEW_TOKENS)


def find_prompts(path: Path, limit: int) -> list[str]:
    """The first two words of distinct lines, in a fixed random order."""
    lines = [line.split() for line in path.read_text().splitlines()]
    prompts = sorted({" ".join(words[:2]) for words in lines if len(words) > 3})
    random.Random(1).shuffle(prompts)
    return prompts[:limit]


def write_pairs(run: ph.Run, prompts: list[str], path: Path) -> int:
    """Write a pair for each prompt with samples of both kinds; returns their number."""
    rows = []
    for prompt, texts in zip(prompts, sample(run, prompts, N_SAMPLES), strict=True):
        good, bad = (
            [text for text in texts if text.strip() and (LETTER in text) is has] for has in (False, True)
        )
        pairs = [(abs(len(a) - len(b)), a, b) for a in good for b in bad]
        if pairs and min(pairs)[0] <= MAX_DIFFERENCE:
            rows.append({"prompt": prompt, "chosen": min(pairs)[1], "rejected": min(pairs)[2]})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return len(rows)


def main() -> None:
    """Train the models and print a line of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("valid", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=700, help="of the language model")
    parser.add_argument("--prompts", type=int, default=800, help="of the training lines; half as many others")
    parser.add_argument("--epochs", type=int, default=3, help="of the preferences")
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--designs", nargs="+", choices=DESIGNS, default=list(DESIGNS), metavar="NAME")
    options = parser.parse_args()
    texts = {"train": str(options.train.absolute()), "valid": str(options.valid.absolute())}
    schedule = {"name": "cosine", "warmup": max(1, options.steps // 20)}
    training = {"steps": options.steps, "max_tokens": 1024, "optimizer": "muon", "lr": 6e-3}
    training |= {"schedule": schedule, "eval_every": options.steps, "save_every": options.steps}
    base = train(
        options.out / "lines",
        {"task": "language-model", "data": texts, "model": MODEL, "train": training,
         "tokenizer": {"kind": "bpe", "vocab_size": 512}, "generation": {"temperature": 1.0}},
    )  # fmt: skip
    files, counts = {}, {}
    valid_prompts = find_prompts(options.valid, options.prompts // 2)
    for split, prompts in (("train", find_prompts(options.train, options.prompts)), ("valid", valid_prompts)):
        files[split] = str((options.out / f"{split}.jsonl").absolute())
        counts[split] = write_pairs(base, prompts, Path(files[split]))
    print(f"{counts['train']:,} pairs to learn, {counts['valid']:,} held out")
    head = ("model", "loss", "accuracy", "margin", "KL", "without", "length", "ppl")
    print(f"{head[0]:<10}", *(f"{name:>8}" for name in head[1:]))
    designs = {name: DESIGNS[name] for name in options.designs}
    for name, (task, changes) in {"start": ({}, {}), **designs}.items():
        run, measures = base, dict.fromkeys(("loss", "accuracy", "margin", "kl"), math.nan)
        if task:
            training = {"epochs": options.epochs, "max_tokens": 1024, "lr": options.rate}
            training |= {"schedule": {"name": "cosine", "warmup": 10}, "eval_every": 50, "save_every": 50}
            training |= {key: options.rate * 10 if key == "lr" else value for key, value in changes.items()}
            settings = {
                "task": task,
                "data": files,
                "init_from": str(options.out / "lines"),
                "train": training,
            }
            run = train(options.out / name.replace(" ", "-").replace(".", ""), settings)
            rows = read_metrics(run.directory / "metrics.jsonl")
            measures = min((row for row in rows if row["split"] == "valid"), key=lambda row: row["loss"])
        outputs = [text for texts in sample(run, valid_prompts, 4) for text in texts]
        figures = [f"{measures[key]:>8.3f}" for key in ("loss", "accuracy", "margin", "kl")]
        figures.append(f"{sum(LETTER not in text for text in outputs) / len(outputs):>8.1%}")
        figures.append(f"{sum(map(len, outputs)) / len(outputs):>8.1f}")
        figures.append(f"{run.measure_perplexity(open_text([options.valid], 'line')).per_token:>8.2f}")
        print(f"{name:<10}", *figures, flush=True)


if __name__ == "__main__":
    main()
