"""Read text files: plain text, parallel and labeled text, conversations; CSV, JSONL, Parquet."""
