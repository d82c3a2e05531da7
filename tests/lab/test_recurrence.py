from polyhead.lab import recurrence


def test_the_place_of_an_asked_item_is_where_its_key_stands():
    batch = recurrence.RECALL_TASK.batch(1, 0, 5)
    for source, target, places in zip(
        batch.source.tolist(),
        batch.target.tolist(),
        recurrence.find_item_positions(batch).tolist(),
        strict=True,
    ):
        assert [(source[at] - 2) // 4 for at in places] == [key - 2 - 8 * 4 for key in target]
