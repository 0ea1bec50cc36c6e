"""A table of what each run against a real engine took, at the end; and the user's own cache."""

import pytest

COLUMNS = ("engine", "what", "verdict", "requests", "seconds", "server CPU s")


@pytest.fixture(autouse=True)
def cache_of_its_own():
    """In place of an empty one for each test: the converted model is in that of the user."""


def pytest_terminal_summary(terminalreporter):
    rows = [
        row
        for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        if report.when == "call"
        for name, row in report.user_properties
        if name == "run"
    ]
    if not rows:
        return
    table = [COLUMNS, *rows]
    widths = [max(len(str(row[place])) for row in table) for place in range(len(COLUMNS))]
    terminalreporter.section("runs against real engines")
    for row in table:
        cells = (str(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        terminalreporter.write_line("  ".join(cells).rstrip())
