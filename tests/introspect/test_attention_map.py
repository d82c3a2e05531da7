import numpy as np
import pytest
from rich.cells import cell_len

from polyhead.core.errors import UserError
from polyhead.introspect.attention_map import AttentionMap, attention_text, select_weights

WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 3, 5))
MAP = AttentionMap(["in", " 3", " days", "</s>"], ["3", "天", "后", "。", "</s>"], WEIGHTS)


def test_select_weights_by_head_or_mean():
    for layer, head, expected in (
        (0, 1, WEIGHTS[0, 1]),
        (-1, -1, WEIGHTS[1, 2]),
        (1, None, WEIGHTS[1].mean(0)),
        (None, 2, WEIGHTS[:, 2].mean(0)),
        (None, None, WEIGHTS.mean((0, 1))),
    ):
        for weights in (WEIGHTS, WEIGHTS.tolist()):
            assert np.allclose(select_weights(MAP._replace(weights=weights), layer, head), expected)


def test_text_map_aligns_and_names_maxima():
    lines = attention_text(MAP, 1, 0).splitlines()
    assert lines[0] == "cross-attention, layer 2 of 2, head 0 of 3"
    for line, token, weights in zip(lines[3:8], MAP.target_tokens, WEIGHTS[1, 0], strict=True):
        assert cell_len(line[: line.index(token) + len(token)]) == cell_len("</s>")
        best = int(weights.argmax())
        assert line.endswith(f"{weights[best]:.2f} {MAP.source_tokens[best].strip()}")
    assert lines[-1] == "1 in  2 3  3 days  4 </s>"


def test_shades_follow_the_weights_and_wide_maps_wrap():
    sharp = AttentionMap(["a", "b", "c"], ["x"], [[[[1.0, 0.5, 0.0]]]])
    assert "x   ██ ▒▒     1.00 a" in attention_text(sharp)
    weights = [[[[0.0] * 6 + [0.9, 0.1, 0], [0.1, 0.9] + [0.0] * 7]]]
    wide = AttentionMap([f"s{i}" for i in range(9)], ["甲", "b"], weights)
    assert attention_text(wide, width=25).splitlines() == [
        "cross-attention, layer 1 of 1, mean of 1 heads", "",
        "      1  2  3  4", "甲", " b      ██        0.90 s1", "",
        "      5  6  7  8", "甲         ██     0.90 s6", " b", "",
        "      9", "甲", " b", "",
        "1 s0  2 s1  3 s2  4 s3", "5 s4  6 s5  7 s6  8 s7", "9 s8",
    ]  # fmt: skip
    assert attention_text(wide, width=200) == attention_text(wide)


@pytest.mark.parametrize(
    ("weights", "layer", "head", "message"),
    [
        (np.ones((1, 1, 4, 5)), None, None, r"4 x 5 do not match 5 target and 4 source tokens"),
        (np.ones((1, 0, 5, 4)), None, None, "at least one layer, one head"),
        (np.full((1, 1, 5, 4), np.nan), None, None, "NaN or infinite"),
        (WEIGHTS, 2, 0, "no layer 2: expected 0 to 1"),
        (WEIGHTS, 0, -4, "no head -4: expected 0 to 2"),
    ],
)
def test_invalid_weights_and_heads_are_refused(weights, layer, head, message):
    with pytest.raises(UserError, match=message):
        select_weights(MAP._replace(weights=weights), layer, head)
