def make_row(name, loss, **changes):
    row = {"name": name, "base": name == "base", "changes": [f"model.{name}"]}
    row |= {"status": "done", "message": "", "note": "", "recipe": "task: <translation>\n"}
    row |= {"tokenizer": "bpe", "split": "test", "signatures": {"bleu": "tok:13a"}}
    row |= {"seeds": 1, "skipped": 0, "fewer": 0, "dead": 0.01}
    row |= {"loss": loss, "ppl": 2.7**loss, "bleu": 40 - 5 * loss, "chrf": 60 - 5 * loss}
    row |= {"parameters": 2.9e6 * loss, "flops_per_token": 7e6, "times_forward": 3}
    row |= {"steps": 3000.0, "seconds": 600.0, "tokens": 3e6, "train_tokens_per_s": 5000.0}
    row |= {"decode_tokens_per_s": 2000.0 * loss, "memory": 8e8}
    row |= {"cache_per_token": 4096.0, "cache_constant": 0.0}
    row["curves"] = [[[200, 40.0, loss + 4], [1000, 200.0, loss + 0.5], [3000, 600.0, loss]]]
    for measure in ("loss", "bleu", "chrf"):
        row |= {f"{measure}_spread": 0.01, f"{measure}_p": None if name == "base" else 0.03}
        row |= {f"{measure}_interval": [row[measure] - 0.5, row[measure] + 0.5]}
    return row | changes


def make_refused_row(name):
    row = dict.fromkeys(make_row("x", 1.0)) | {"name": name, "curves": [], "changes": [], "note": ""}
    return row | {"status": "refused", "message": "no <such> thing", "skipped": 0}


def make_scored_rows(**bleu):
    baselines = {"bleu": {"value": 30.0, "guess": "copied source", "detail": ""}}
    return [
        make_row(name, 3.0 + i, bleu=value, learned=value > 30, baselines=baselines)
        for i, (name, value) in enumerate(bleu.items())
    ]


ROWS = [make_row("norm=rmsnorm", 1.5), make_row("base", 1.6), make_row("a" * 100, 2.5)]
ROWS.append(make_refused_row("<b>bad</b>"))
