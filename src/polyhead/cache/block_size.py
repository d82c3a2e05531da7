"""Default block size: large blocks waste slots at the end of a row, small ones need larger tables."""

MAX_WASTE = 0.04  # maximum share of wasted slots for the default block size
BLOCK_SIZES = (32, 16, 8, 4, 2)


def estimate_waste(block_size: int, length: float) -> float:
    """Expected share of empty slots: half a block less half a slot at the end of each row, on average."""
    return (block_size - 1) / 2 / (length + (block_size - 1) / 2)


def choose_block_size(length: float) -> int:
    """The largest block size that wastes less than 4 % of the slots for rows of ``length`` tokens."""
    return next((block for block in BLOCK_SIZES if estimate_waste(block, length) < MAX_WASTE), 1)
