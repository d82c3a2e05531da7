"""Draws docs/images/explain-glance.svg and its Chinese twin, in which the text rises through the model: the
first drawing of a page of `polyhead explain`, with the styles that a browser gives it in light and dark.

./dev pages translator && python docs/glance.py
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "build" / "pages" / "translator.html"
RISE, HOLD = 3.5, 7.0  # seconds of each text, and of the whole drawing
# the drawing, and the styles of each of its elements in the theme of the page
READ = """() => {
  const svg = document.querySelector("svg.glance"), names = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "font-size", "font-family", "font-weight", "text-anchor", "text-decoration-line"];
  const styles = [...svg.querySelectorAll("rect, path, circle, text")].filter((one) => !one.closest("clipPath")).map((one) => {
    const style = getComputedStyle(one);
    return names.filter((name) => (one.localName === "text" || !/^(font|text)/.test(name)) && (style.stroke !== "none" || !/^stroke-/.test(name))).map((name) => `${name}:${style.getPropertyValue(name)}`).join(";");
  });
  return { text: new XMLSerializer().serializeToString(svg), styles, width: svg.viewBox.baseVal.width, height: svg.viewBox.baseVal.height, ground: getComputedStyle(document.body).backgroundColor, title: document.querySelector("h1").textContent };
}"""  # noqa: E501


def read_drawings(page: Path) -> dict[str, dict[str, Any]]:
    """The drawing in each language and theme: en-light, en-dark, zh-light and zh-dark."""
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for language in ("en", "zh"):
            for theme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": 1480, "height": 900}, color_scheme=theme, reduced_motion="reduce"
                )
                shown = context.new_page()
                shown.add_init_script(f"localStorage.setItem('polyhead-language', '{language}')")
                shown.goto(page.as_uri())
                shown.wait_for_selector("html[data-ready]", state="attached")
                found[f"{language}-{theme}"] = shown.evaluate(READ)
                context.close()
        browser.close()
    return found


def render_svg(light: dict[str, Any], dark: dict[str, Any]) -> str:
    """One file for both themes. Each text rises after the one before, then the drawing stays for a while."""
    classes = {
        pair: f"s{i}"
        for i, pair in enumerate(dict.fromkeys(zip(light["styles"], dark["styles"], strict=True)))
    }
    body = re.sub(r"^<svg[^>]*>|</svg>$", "", light["text"])
    clips = re.findall(r"<clipPath.*?</clipPath>", body)
    body = re.sub(r"<clipPath.*?</clipPath>", "", body)
    named = iter(zip(light["styles"], dark["styles"], strict=True))
    body = re.sub(
        r' (class|role|tabindex|data-focus|aria-[a-z]+|font-[a-z-]+|stroke-width)="[^"]*"', keep_group, body
    )
    body = re.sub(r"<(rect|path|circle|text)\b", lambda m: f'<{m[1]} class="{classes[next(named)]}"', body)
    body = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), body)
    width, height, total = light["width"] + 40, light["height"] + 76, len(clips) * RISE + HOLD
    rules = "".join(f".{name}{{{pair[0]}}}" for pair, name in classes.items())
    night = "".join(
        f".{name}{{{changed_styles(*pair)}}}" for pair, name in classes.items() if pair[0] != pair[1]
    )
    rising = "".join(animate_clip(clip, i, total) for i, clip in enumerate(clips))
    read, apart = len(clips) * RISE / total, RISE / total
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" \
width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{light["title"]}">
<style>{rules}.ground{{fill:{light["ground"]};stroke:#e2dfd7}}.title{{font:600 21px Georgia,"Noto Serif",\
serif;fill:#1b2027}}.roof{{animation:roof {total}s infinite}}.crossing{{animation:crossing {total}s infinite}}
@keyframes roof{{0%,{read:.1%}{{opacity:0}}{read + 0.04:.1%},100%{{opacity:1}}}}
@keyframes crossing{{0%,{apart:.1%}{{opacity:0}}{apart + 0.04:.1%},100%{{opacity:1}}}}
@media(prefers-color-scheme:dark){{{night}.ground{{fill:{dark["ground"]};stroke:#2d333b}}.title{{fill:#e7e9ec}}}}
@media(prefers-reduced-motion:reduce){{[clip-path]{{clip-path:none}}.roof,.crossing{{animation:none}}}}</style>
{rising}
<rect class="ground" x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="12"/>
<text class="title" x="22" y="38">{light["title"]}</text>
<g transform="translate(20 60)">{body}</g>
</svg>
"""


def keep_group(attribute: re.Match[str]) -> str:
    """The class of a group that is animated; no other class, and no attribute that only the page needs."""
    kept = re.search(r"\b(roof|crossing)\b", attribute[0]) if attribute[1] == "class" else None
    return f' class="{kept[1]}"' if kept else ""


def changed_styles(light: str, dark: str) -> str:
    """The styles of the dark theme that differ."""
    return ";".join(two for one, two in zip(light.split(";"), dark.split(";"), strict=True) if one != two)


def animate_clip(clip: str, i: int, total: float) -> str:
    """What is seen of the text i: nothing before its turn, then from the bottom up, then all of it."""
    low, high, width = (
        float(re.search(rf'{key}="([\d.]+)"', clip)[1]) for key in ("data-low", "data-high", "width")
    )
    name = re.search(r'id="([\w-]+)"', clip)[1]
    start, end = i * RISE / total, (i + 1) * RISE / total
    times = f"0;{start:.4f};{end:.4f};1"
    tops, sizes = f"{low};{low};{high - 20};{high - 20}", f"200;200;{low - high + 220};{low - high + 220}"
    motion = f'keyTimes="{times}" dur="{total}s" repeatCount="indefinite"'
    return (
        f'<clipPath id="{name}"><rect width="{width}" y="{high - 20}" height="{low - high + 220}">'
        f'<animate attributeName="y" values="{tops}" {motion}/>'
        f'<animate attributeName="height" values="{sizes}" {motion}/></rect></clipPath>'
    )


def main(page: Path = PAGE) -> None:
    """Write both files."""
    drawings = read_drawings(page)
    for language, ending in (("en", ""), ("zh", ".zh-CN")):
        path = HERE / "images" / f"explain-glance{ending}.svg"
        path.write_text(
            render_svg(drawings[f"{language}-light"], drawings[f"{language}-dark"]), encoding="utf-8"
        )
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
