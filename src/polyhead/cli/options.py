"""Options that many verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

Dtype = Annotated[
    str,
    typer.Option(
        help="fp32; bf16: half the memory, faster where the CPU has it; int8: faster still, a little less exact"
    ),
]
Device = Annotated[
    str, typer.Option(help="cpu, cuda, cuda:1 ...; auto: a GPU where there is one, but the CPU for int8")
]
