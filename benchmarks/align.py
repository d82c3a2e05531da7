"""Word alignments against truth: alignment error rates on dates and lists whose grammar is known.

polyhead init --example dates-en-zh --output dates.yaml && polyhead train dates.yaml
./dev bench align runs/dates             # of the recipe's test text, or of two files: SOURCE TARGET
./dev bench align runs/dates train.en train.zh --write train.align       # links for data.alignments

Each line of the recipe's test text that one of the patterns describes has its links by hand: sure ones, and
possible ones such as 年 with its number. The error rate of links A (Och and Ney, 2003) is
1 - (|A and S| + |A and P|) / (|A| + |S|), where the possible links P include the sure ones S.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import polyhead as ph
from polyhead.config.recipe import has_guided_head
from polyhead.introspect.word_alignment import Alignment, format_alignment
from polyhead.tokenizers.scripts import find_words

Links = set[tuple[int, int]]
# of source and translation: groups of one letter belong together, those with _ possibly
_DAY = r"(?P<m>[A-Z]\w+) (?P<d>\d+), (?P<y>\d+)"
_DAY_ZH = r"(?P<Y>\d+)(?P<Y_>年)(?P<M>\d+)(?P<M_>月)(?P<D>\d+)(?P<D_>日)"
PATTERNS = [
    (_DAY, _DAY_ZH),
    (rf"(?P<w>[A-Z]\w+), {_DAY}", rf"{_DAY_ZH}(?P<W>(?:周|星期).)"),
    (r"(?P<m>[A-Z]\w+) (?P<y>\d{4})", r"(?P<Y>\d+)(?P<Y_>年)(?P<M>\d+)(?P<M_>月)"),
    (r"(?P<a>\w+) (?P<c>and|or) (?P<b>\w+)", r"(?P<A>\w+?)(?P<C>[和或])(?P<B>\w+)"),
    (
        r"(?P<a>\w+), (?P<e>\w+), (?P<c>and|or) (?P<b>\w+)",
        r"(?P<A>\w+)(?P<A_>、)(?P<E>\w+?)(?P<C>[和或])(?P<B>\w+)",
    ),
]


def find_links(source: str, target: str) -> tuple[Links, Links] | None:
    """The sure and the possible links of a pair; None if no pattern describes it."""
    for read, written in PATTERNS:
        one, other = re.fullmatch(read, source), re.fullmatch(written, target)
        if one and other:
            links: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
            for name in other.groupdict():
                words = overlaps(source, one.span(name[0].lower())), overlaps(target, other.span(name))
                links[len(name) == 1] |= {(i, j) for i in words[0] for j in words[1]}
            return links[True], links[True] | links[False]
    return None


def overlaps(text: str, span: tuple[int, int]) -> list[int]:
    """Numbers of the words that a span of characters has a part of."""
    return [i for i, (start, end) in enumerate(find_words(text)) if start < span[1] and end > span[0]]


def error_rate(alignments: Sequence[Alignment], truth: Sequence[tuple[Links, Links]]) -> float:
    """The alignment error rate over all pairs, in percent."""
    pairs = [({*found}, *links) for found, links in zip(alignments, truth, strict=True)]
    hits = sum(len(found & sure) + len(found & possible) for found, sure, possible in pairs)
    return 100 * (1 - hits / sum(len(found) + len(sure) for found, sure, _ in pairs))


def main() -> None:
    """Print the error rates of the attention, from the directory of the recipe's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run of the recipe dates-en-zh")
    parser.add_argument("files", type=Path, nargs="*", help="source and target text")
    parser.add_argument("--write", type=Path, help="write the links, as for data.alignments")
    options = parser.parse_args()
    run = ph.load(options.run)
    assert run.recipe is not None
    files = options.files or run.recipe.data.split_paths("test")
    sides = [path.read_text(encoding="utf-8").splitlines() for path in files]
    if options.write:
        rows = [find_links(*pair) for pair in zip(*sides, strict=True)]
        lines = [format_alignment(sorted(links[1]) if links else []) for links in rows]
        options.write.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return
    pairs = [(*pair, links) for pair in zip(*sides, strict=True) if (links := find_links(*pair))]
    sources, targets, truth = (list(column) for column in zip(*pairs, strict=True))
    print(f"{len(pairs)} pairs, {sum(len(sure) for sure, _ in truth)} sure links; error rate in percent")
    diagonal = []
    for source, target in zip(sources, targets, strict=True):
        n, m = len(find_words(source)), len(find_words(target))
        diagonal.append([(i * n // m, i) for i in range(m)])
    print(f"{'along the diagonal':<28} {error_rate(diagonal, truth):5.1f}")
    for layer in (None, *range(run.config.n_layers)):
        found = [one.alignment for one in run.align_pairs(sources, targets, layer=layer)]
        name = "guided head" if has_guided_head(run.recipe) else "all layers"
        name = name if layer is None else f"layer {layer}"
        print(f"attention of {name:<15} {error_rate(found, truth):5.1f}")


if __name__ == "__main__":
    main()
