"""What `polyhead eval` measures: a file for each kind of run, and one table of them."""
