"""Around a run: its target and workers, what is read meanwhile, and the walk from end to end."""
