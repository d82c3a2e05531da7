"""``polyhead generate``: a language model goes on."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.lines import harmless, read_lines, waiting
from polyhead.cli.options import (
    AS_TRAINED,
    CacheName,
    Device,
    Dtype,
    Form,
    FrequencyPenalty,
    MinP,
    NoRepeat,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    With,
    opened,
    parts,
    typed,
)
from polyhead.data.files import is_table


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="how it begins; - takes a prompt from each line of standard input"
        ),
    ] = "",
    max_new_tokens: Annotated[
        int | None, typer.Option(help="longest continuation, in tokens", show_default=AS_TRAINED)
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    presence_penalty: PresencePenalty = None,
    beam_size: Annotated[
        int | None,
        typer.Option(
            help="draw nothing: the likeliest text found with so many hypotheses", show_default="none"
        ),
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="with beams: above 0 favours longer texts", show_default=AS_TRAINED)
    ] = None,
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="continuations of the prompt")] = 1,
    seed: Annotated[
        int | None, typer.Option(min=0, help="the same seed gives the same text", show_default="0")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="text that ends it; may be given again")] = None,
    no_repeat_ngram_size: NoRepeat = None,
    form: Form = None,
    cache: CacheName = None,
    speculate: Annotated[
        str | None,
        typer.Option(
            help="who guesses tokens, e.g. lookup or draft,run=runs/small,tokens=4", show_default=AS_TRAINED
        ),
    ] = None,
    others: With = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Let a language model go on from a text, and show it as it comes.

    Several texts are shown one after another, when they are complete; a line of dashes ends one that has lines.
    Without a text the model begins one.

    \b
    polyhead generate runs/shakespeare "ROMEO:" --max-new-tokens 200 --temperature 0.8
    polyhead generate runs/shakespeare "To be" -n 3 --seed 7
    polyhead generate runs/shakespeare "To be" --beam-size 5 --max-new-tokens 40
    polyhead generate runs/shakespeare "To be" --speculate draft,run=runs/small
    polyhead generate runs/forms "Ann is 33." --form json,schema=person.json
    """
    changes = typed(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        beam_size=beam_size,
        seed=seed,
        length_penalty=length_penalty,
    ) | {"stop": stop or []}
    changes |= parts(form=form, cache=cache, speculate=speculate)
    prompts = list(read_lines("-")) if prompt == "-" else [prompt]
    if not prompt and waiting():
        print(
            "polyhead: what is piped in is not read; for the lines of it: polyhead generate RUN -",
            file=sys.stderr,
        )
    if os.path.isfile(prompt):
        packed = is_table(Path(prompt)) or Path(prompt).suffix.lower() == ".gz"  # has no lines of text
        lines = "" if packed else f"; for the lines of the file: - < {shlex.quote(prompt)}"
        print(f"polyhead: {prompt!r} is read as a text{lines}", file=sys.stderr)
    model = opened(directory, others, dtype, device)
    if n == len(prompts) == 1:
        # a mistake in them is told before the prompt is shown
        for i, new in enumerate(model.stream(prompts, **changes)):
            print(harmless(new.text if i else prompt + new.text), end="", flush=True)
        print()
        return
    for text, said in zip(prompts, model.generate(prompts, n=n, **changes), strict=True):
        for one in said:
            print(harmless(text + one))
            if "\n" in text + one:
                print("-" * 8)
