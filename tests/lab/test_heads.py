from polyhead_lab import heads


def test_cache_bytes_of_designs():
    assert [heads.kv_bytes(*design) for design in heads.HEAD_DESIGNS.values()] == [1024, 1024, 512, 256]
