"""Chat templates as checkpoints publish them, and look-alikes: variants near a known format."""

from pathlib import Path

from polyhead.core.choice import Choice


def read_templates(directory: str) -> dict[str, str]:
    paths = sorted((Path(__file__).parent / "templates" / directory).glob("*.jinja"))
    return {path.stem: path.read_bytes().decode() for path in paths}


PUBLISHED_TEMPLATES, LOOKALIKES = read_templates("published"), read_templates("lookalikes")
# the format whose special tokens a family has, where it is not the detected format
TOKENS_OF = {
    **dict.fromkeys(("qwen2", "smollm2", "openhermes"), "chatml"),
    **dict.fromkeys(("llama3", "llama3.1"), "llama3"),
    **dict.fromkeys(("phi3", "phi3.5"), "phi3"),
    "mistral-v1": "mistral",
}


def format_choice(name: str) -> Choice:
    """A format with its defaults; ``jinja`` with a published template."""
    return Choice(name, template=PUBLISHED_TEMPLATES["openhermes"]) if name == "jinja" else Choice(name)
