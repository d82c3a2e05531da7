"""Render chat templates of checkpoints, which are programs, in a process of their own with bounds."""
