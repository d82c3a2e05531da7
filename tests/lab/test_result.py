import json

from tests.lab.page_helpers import RESULT


def test_json_is_complete_and_without_nan():
    result = json.loads(json.dumps(RESULT.to_json(), allow_nan=False))
    assert [claim["is_supported"] for claim in result["claims"]] == [True, False, None, None]
    verdicts = ["held", "did not hold", "undecided", "undecided"]
    assert [claim["verdict"] for claim in result["claims"]] == verdicts
    plot, dots, table = result["figures"]
    assert [plot["kind"], dots["kind"], table["kind"]] == ["plot", "dots", "table"]
    assert plot["curves"][0] == {"name": "<x>", "points": [[1, 4.0], [2, None], [3, 2.0]]}
    assert dots["rows"]["two <b>"] == [None, 3.0]
    assert table["rows"] == [["<i>", 12000], ["b", 0.03125]]
