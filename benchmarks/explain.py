"""How soon the page of `polyhead explain` shows its first screen, and how long the browser works for it.

./dev bench explain                        # a base translator with random weights, 20 tokens of each text
./dev bench explain runs/mine/explain.html
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

# milliseconds since the page was asked for: of the frame after the drawing was put in, and after all was done
WATCH = """new MutationObserver((_, watcher) => {
  if (!window.glanceDrawnAt && document.querySelector("svg.glance")) requestAnimationFrame(() => setTimeout(() => { window.glanceDrawnAt ??= performance.now(); }));
  if (document.documentElement.dataset.ready !== undefined) watcher.disconnect();
}).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-ready"] });"""  # noqa: E501


def main() -> None:
    """Measure pages and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="times that each page is opened")
    parser.add_argument("--layers", type=int, default=6, help="of the model with random weights")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        pages = options.pages or [write_base_page(Path(directory), options.layers)]
        print(f"{'page':<24} {'MB':>5} {'parsed':>8} {'drawn':>8} {'working':>8}   seconds, medians")
        for path in pages:
            parsed, drawn, busy = (
                median(values) for values in zip(*open_page(path, options.rounds), strict=True)
            )
            size = path.stat().st_size / 1e6
            print(f"{path.name:<24} {size:5.2f} {parsed:8.2f} {drawn:8.2f} {busy:8.2f}")


def open_page(path: Path, rounds: int) -> list[tuple[float, float, float]]:
    """Seconds until the document was parsed and the first drawing shown, and seconds of the main thread."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        for _ in range(rounds):
            page = browser.new_page(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
            page.add_init_script(WATCH)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            page.goto(path.resolve().as_uri())
            while not page.evaluate("window.glanceDrawnAt"):
                page.wait_for_timeout(20)
            parsed = page.evaluate("performance.getEntriesByType('navigation')[0].domInteractive")
            metrics: dict[str, Any] = {
                one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]
            }
            found.append((parsed / 1000, page.evaluate("glanceDrawnAt") / 1000, metrics["TaskDuration"]))
            page.close()
        browser.close()
    return found


def write_base_page(directory: Path, layers: int) -> Path:
    """The page of a translator of base size: d_model 512, 8 heads, 6 + 6 layers."""
    from polyhead import Choice, ModelConfig, build
    from polyhead.config.generation_config import GenerationConfig
    from polyhead.explain.chapters import load_chapters
    from polyhead.explain.document import explain
    from polyhead.explain.walk_page import render_walk_page
    from polyhead.run.run import Run
    from polyhead.tokenizers.train_tokenizer import train_tokenizer
    from polyhead.viz.html_page import save_page

    text = "a text of 19 signs."
    tokenizer = train_tokenizer([text], Choice("char"), 100)
    config = ModelConfig(d_model=512, n_layers=layers, n_heads=8, max_len=64, vocab_size=tokenizer.vocab_size)
    run = Run(build(config, seed=0).eval(), tokenizer, GenerationConfig(beam_size=1))
    chapters = {language: load_chapters(language) for language in ("en", "zh")}
    return save_page(directory / "base.html", render_walk_page(explain(run, text, text), chapters=chapters))


if __name__ == "__main__":
    main()
