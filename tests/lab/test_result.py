import json

from tests.lab.page_helpers import RESULT


def test_json_has_everything_and_no_nan():
    found = json.loads(json.dumps(RESULT.to_json(), allow_nan=False))
    assert [claim["is_supported"] for claim in found["claims"]] == [True, False, None, None]
    assert [claim["verdict"] for claim in found["claims"]] == [
        "held",
        "did not hold",
        "undecided",
        "undecided",
    ]
    assert [figure["kind"] for figure in found["figures"]] == ["plot", "dots", "table"]
    assert found["figures"][0]["curves"][0] == {"name": "<x>", "points": [[1, 4.0], [2, None], [3, 2.0]]}
    assert found["figures"][1]["rows"]["two <b>"] == [None, 3.0]
    assert found["figures"][2]["rows"] == [["<i>", 12000], ["b", 0.03125]]
