from polyhead.lab import heads


def test_the_closed_form_of_the_cache():
    assert [heads.kv_bytes(*heads.HEAD_DESIGNS[name]) for name in heads.HEAD_DESIGNS] == [
        1024,
        1024,
        512,
        256,
    ]
