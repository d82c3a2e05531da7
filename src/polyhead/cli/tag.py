"""``polyhead tag``: find labeled spans in texts."""

from __future__ import annotations

from polyhead.cli.options import Device, Dtype, OutputFile, ReadBatch, TextSource, TrainedRun
from polyhead.cli.output_file import open_output
from polyhead.cli.text_lines import open_texts, to_json_lines


def run(
    directory: TrainedRun,
    source: TextSource = "-",
    output: OutputFile = None,
    read_batch: ReadBatch = 512,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Find the labeled spans of texts, such as names: one JSON object per input line.

    It has the text and its spans: text, label, start and end in characters, and score, the mean probability
    of its words. These lines can be corrected and trained on. Long texts are read in windows that overlap.

    \b
    polyhead tag runs/dates "We meet on May 3, 2024."
    polyhead tag runs/names articles.txt --output names.jsonl
    polyhead tag runs/names articles.txt | jq -r '.spans[] | [.label, .text] | @tsv'
    """
    tagger, texts, counter = open_texts(directory, source, output, None, dtype, device, "token classifier")
    with open_output(output, "spans") as add:
        for lines in counter.iter_batches(texts, source, read_batch):
            spans = [[span._asdict() for span in row] for row in tagger.tag(lines)]
            rows = ({"text": line, "spans": row} for line, row in zip(lines, spans, strict=True))
            add(to_json_lines(rows), len(lines))
