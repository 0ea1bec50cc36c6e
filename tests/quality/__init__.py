"""What leakcheck's statistics promise, held against simulation: `python -m quality` (make quality).

Every claim is a function of a random generator and an effort, and goes through leakcheck's own
functions. The short effort is part of the ordinary tests; the long one writes docs/quality.md.
"""
