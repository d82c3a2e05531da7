"""What a chat template may use to write one conversation."""

CPU_SECONDS = 2.0
MAX_BYTES = 1 << 29  # of memory
MAX_OPEN_FILES = 16
MAX_TEMPLATE_CHARS = 1 << 18


def max_chars(num_chars: int) -> int:
    """The length of a rendered text, by that of the texts in it; JSON writes some characters as six."""
    return (1 << 20) + 8 * num_chars
