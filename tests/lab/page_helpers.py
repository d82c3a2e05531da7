import math

from polyhead_lab.registry import Claim, DotPlot, ExperimentResult, LinePlot, ResultTable

NAN = math.nan

RESULT = ExperimentResult(
    "A <title>",
    "Why & what.",
    [
        Claim("a < b", "Somebody, 2020", "1 & 2", True),
        Claim("c > d", "Nobody", "3", False),
        Claim("e = f", "Anybody", "4", None),
        Claim("g", "Anybody", "5", None, "toy task"),
    ],
    [
        LinePlot("Loss", "step", {"<x>": [(1, 4.0), (2, NAN), (3, 2.0)], "lost": [(1, NAN)]}),
        DotPlot("Loss", "nats", {"one": [1.0, 2.0], "two <b>": [NAN, 3.0], "none": [NAN, NAN]}),
        ResultTable("Numbers", ("name", "n"), [("<i>", 12000), ("b", 0.03125)], "About & so on"),
    ],
    "First.\n\nSecond.",
)
