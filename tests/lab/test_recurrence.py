from polyhead_lab import recurrence


def test_item_position_is_that_of_its_key():
    batch = recurrence.RECALL_TASK.batch(1, 0, 5)
    positions = recurrence.find_item_positions(batch).tolist()
    rows = zip(batch.source.tolist(), batch.target.tolist(), positions, strict=True)
    for source, target, positions in rows:
        assert [(source[pos] - 2) // 4 for pos in positions] == [key - 2 - 8 * 4 for key in target]
