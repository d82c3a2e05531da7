"""Draws docs/demo.svg from a run of the demo: how the loss fell, and what one head looks at while it
translates a text.

python docs/demo.py runs/demo "a text"
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyhead.core.errors import UserError
from polyhead.introspect.attention_map import AttentionMap
from polyhead.run.load import load
from polyhead.train.loggers import read_metrics
from polyhead.viz.attention_page import heat_map_svg
from polyhead.viz.html_page import save_page
from polyhead.viz.plot import line_chart
from polyhead.viz.run_page import metric_curves

HERE = Path(__file__).parent
CHART_WIDTH, MARGIN, HEAD = 460, 24, 62


def write_figure(
    path: Path | str,
    metrics: Sequence[Mapping[str, Any]],
    attention: AttentionMap,
    *,
    layer: int | None = -1,
    head: int | None = None,
) -> Path:
    """Draw loss curve and attention map side by side into an SVG file that suits white and dark pages."""
    loss = metric_curves(metrics, "loss")
    if not loss:
        raise UserError("no row of the metrics has a loss: there is nothing to draw")
    heat = heat_map_svg(attention, layer, head)
    heat_width, heat_height = size(heat)
    height = max(heat_height, 300)
    chart = line_chart(loss, "step", "loss", CHART_WIDTH, height)
    total = CHART_WIDTH + heat_width + 3 * MARGIN, height + HEAD + MARGIN
    right = CHART_WIDTH + 2 * MARGIN
    legend = "".join(
        f'<g transform="translate({MARGIN + 14 + 110 * i} 52)"><line class="curve c{i}" x2="14" y1="-4" '
        'y2="-4"/>'
        f'<text class="label" x="20">{escape(curve.name)}</text></g>'
        for i, curve in enumerate(loss)
    )
    svg = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" \
width="{total[0]}" height="{total[1]}" role="img" aria-label="Loss by step, and {escape(attention.kind)}">
<style>{(HERE / "demo.css").read_text(encoding="utf-8")}</style>
<rect class="ground" x="0.5" y="0.5" width="{total[0] - 1}" height="{total[1] - 1}" rx="12"/>
<text class="title" x="{MARGIN + 14}" y="32">Loss</text>{legend}
<text class="title" x="{right}" y="32">{escape(attention.kind.capitalize())}</text>
{placed(chart, MARGIN, HEAD, CHART_WIDTH, height)}
{placed(heat, right, HEAD + (height - heat_height) // 2, heat_width, heat_height)}
</svg>
"""
    return save_page(path, svg)


def size(svg: str) -> tuple[int, int]:
    """Width and height of an SVG element, from its view box."""
    box = re.search(r'viewBox="0 0 (\d+) (\d+)"', svg)
    assert box is not None, "our own SVG elements have a view box"
    return int(box[1]), int(box[2])


def placed(svg: str, x: int, y: int, width: int, height: int) -> str:
    """An SVG element as a part of a larger one."""
    bare = re.sub(r' (width|height)="\d+"', "", svg[: svg.index(">")])
    return (
        bare.replace("<svg", f'<svg x="{x}" y="{y}" width="{width}" height="{height}"', 1)
        + svg[svg.index(">") :]
    )


if __name__ == "__main__":
    run, text = Path(sys.argv[1]), sys.argv[2]
    print(
        write_figure(
            HERE / "demo.svg", read_metrics(run / "metrics.jsonl"), load(run).attention_maps(text)["cross"]
        )
    )
