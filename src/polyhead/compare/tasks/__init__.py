"""The tasks that designs are compared by, a file each."""
