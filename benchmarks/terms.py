"""Translations that must say words of the reference, beside those that need not (Post and Vilar, 2018, sec. 5).

python benchmarks/terms.py runs/multi30k test.en test.de

The words are drawn from those of each reference that the plain translation lacks: what a person would correct in it.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from pathlib import Path

import torch
from timing import table

import polyhead as ph
from polyhead.data.readers.parallel_corpus import open_corpus, read_pairs
from polyhead.evaluate.translation_metrics import evaluate_translations
from polyhead.generation.batch_decode import decode_sources, restore_order
from polyhead.generation.constraints.terminology import Term, Terminology
from polyhead.tokenizers.languages import with_languages

WORD = re.compile(r"\w+")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = ph.load(options.run)
    texts, references, _ = read_pairs(open_corpus([options.source, options.target]), options.lines)

    def translated(terms: list[list[Term]]) -> tuple[list[str], float]:
        """The translations, and milliseconds for each."""
        config = run.generation.model_copy(update={"beam_size": options.beam})
        given = run.model, run.tokenizer.encode(texts), config
        begin = time.perf_counter()
        found = decode_sources(
            *given, seq2seq_template=with_languages(run.tokenizer), max_len=run.config.max_len, terms=terms
        )
        best = [outputs[0].tokens for outputs in restore_order(found, len(texts))]
        took = time.perf_counter() - begin
        return run.tokenizer.decode(best), 1000 * took / len(texts)

    plain, usual = translated([[] for _ in texts])
    bleu, _, chrf = evaluate_translations(plain, references).scores
    rows = [
        ["words of the reference", "a line", "said without", "said", "BLEU", "chrF", "ms a line", "times"]
    ]
    rows.append(["none", "", "", "", f"{bleu.value:.2f}", f"{chrf.value:.2f}", f"{usual:.1f}", "1.00"])
    for most in (1, 2, 3, 4, 0):
        draw = random.Random(options.seed)
        words = [
            _lacked(reference, text, draw, most) for reference, text in zip(references, plain, strict=True)
        ]
        names = {f"{i} {word}": word for i, own in enumerate(words) for word in own}
        glossary = Terminology(names, run.tokenizer.target_tokenizer)
        terms = [
            [term for word in own for term in glossary.find_terms(f"{i} {word}")]
            for i, own in enumerate(words)
        ]
        found, took = translated(terms)
        (bleu, _, chrf), wanted = evaluate_translations(found, references).scores, sum(map(len, words))
        said = sum(word in text for own, text in zip(words, found, strict=True) for word in own)
        without = sum(word in text for own, text in zip(words, plain, strict=True) for word in own)
        rows.append([
            f"{most} that it lacks" if most else "any one", f"{wanted / len(texts):.2f}", f"{without / wanted:.1%}",
            f"{said / wanted:.1%}", f"{bleu.value:.2f}", f"{chrf.value:.2f}", f"{took:.1f}", f"{took / usual:.2f}",
        ])  # fmt: skip
    print(table(rows))


def _lacked(reference: str, text: str, draw: random.Random, most: int) -> list[str]:
    """Words of a reference that a translation lacks, so many at most; 0 for any one, whether it has it or not."""
    words = sorted(set(WORD.findall(reference)))
    words = [word for word in words if not most or word not in text]
    return draw.sample(words, min(most or 1, len(words)))


if __name__ == "__main__":
    main()
