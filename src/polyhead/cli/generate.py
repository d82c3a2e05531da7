"""``polyhead generate``: continue texts with a language model."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from polyhead.cli.line_io import (
    UnansweredLines,
    escape_terminal,
    print_warning,
    read_lines,
    report_unknown_outputs,
    stdin_has_data,
)
from polyhead.cli.options import (
    Device,
    Dtype,
    EnsembleOption,
    TrainedRun,
    check_kind,
    config_options,
    drop_none,
    load_run,
)
from polyhead.config.generation_config import GenerationConfig, verb_settings
from polyhead.core.i18n import tr
from polyhead.data.readers.files import is_table


@config_options(GenerationConfig, *verb_settings("generate"), heading="Decoding")
def run(
    directory: TrainedRun,
    prompt: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="prompt; - reads one prompt from each line of standard input"),
    ] = "",
    *,
    beam_size: Annotated[
        int | None,
        typer.Option(
            help="use beam search with this number of beams instead of sampling", show_default="none"
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="number of continuations of the prompt")] = 1,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="random seed; the same seed gives the same text", show_default="0"),
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="stop string that ends the output; may be repeated")
    ] = None,
    others: EnsembleOption = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
    **settings: Any,
) -> None:
    """Generate text with a language model, printed as it is generated.

    Several texts are printed one after another, each when it is complete; a text of several lines is followed
    by a line of dashes. Without a prompt, the model starts a new text. A prompt of standard input that is too
    long for the model, or that allows no output of the minimum length or the grammar, gets a blank line and
    is named on standard error.

    \b
    polyhead generate runs/shakespeare "ROMEO:" --max-new-tokens 200 --temperature 0.8
    polyhead generate runs/shakespeare "To be" -n 3 --seed 7
    polyhead generate runs/shakespeare "To be" --beam-size 5 --max-new-tokens 40
    polyhead generate runs/shakespeare "To be" --speculative draft,run=runs/small
    polyhead generate runs/forms "Ann is 33." --grammar json,schema=person.json
    """
    changes = settings | drop_none(beam_size=beam_size, seed=seed) | {"stop": stop or []}
    check_kind(directory, "decoder")
    prompts = list(read_lines("-")) if prompt == "-" else [prompt]
    if not prompt and stdin_has_data():
        command = f"polyhead generate {shlex.quote(str(directory))} -"
        print_warning(f"standard input is ignored; to read lines from it: {command}")
    if os.path.isfile(prompt):
        packed = is_table(Path(prompt)) or Path(prompt).suffix.lower() == ".gz"  # not a file of text lines
        lines = "" if packed else f"; to read lines from the file: - < {shlex.quote(prompt)}"
        print_warning(f"{prompt!r} is used as the prompt text{lines}")
    model = load_run(directory, others, dtype, device, "decoder")
    unknown_rows = set[int]()
    if n == len(prompts) == 1:
        # invalid options fail before the prompt is printed
        for i, delta in enumerate(model.stream(prompts, unknown_rows=unknown_rows, **changes)):
            print(escape_terminal(delta.text if i else prompts[0] + delta.text), end="", flush=True)
        print()
        report_unknown_outputs(len(unknown_rows))
        return
    long_prompts, unanswered = model.find_long_prompts(prompts) if prompt == "-" else {}, UnansweredLines()
    message, most = "{count:,} tokens, the model's maximum is {most:,}", model.config.max_len
    reasons = {i: tr(message, count=count, most=most) for i, count in long_prompts.items()}
    rows, refusals = [i for i in range(len(prompts)) if i not in reasons], dict[int, str]()
    from polyhead.generation.text_generation import collect_texts

    changes |= {"refusals": refusals if prompt == "-" else None, "unknown_rows": unknown_rows}
    deltas = model.stream([prompts[i] for i in rows], n=n, **changes)
    texts = dict(zip(rows, collect_texts(deltas, len(rows), n), strict=True))
    reasons |= {rows[i]: reason for i, reason in refusals.items()}
    unanswered.report({i + 1: reason for i, reason in reasons.items()})
    unanswered.close()
    report_unknown_outputs(len(unknown_rows))
    for i, text in enumerate(prompts):
        if i in reasons:
            print("\n" * n, end="")
        for continuation in () if i in reasons else texts[i]:
            print(escape_terminal(text + continuation))
            if "\n" in text + continuation:
                print("-" * 8)
