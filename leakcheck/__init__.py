"""leakcheck finds out whether any request's content reaches another request's answer.

The package is read from left to right: `scenario` makes a plan, `runner` sends it through
`backends`, `history` reads back what was observed, `analyzer` judges it with `checks` and
`evidence`, `report` renders the judgement. `engine` is the embedded target: a process of its own
that shares no code with the harness.
"""

__version__ = "0.1.0"
