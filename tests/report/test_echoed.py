"""The table of what the audition heard."""

from leakcheck.records import Echo
from leakcheck.report import echoed

BEST = Echo(style="digits", phrasing="begun", asked=9, echoed=8, returned=9, both=8, words=5)
NONE = Echo(style="phrase", phrasing="asked", asked=3, words=6, tokens=46.4)
NEVER = Echo(style="phrase", phrasing="begun")


def test_each_cell_that_was_asked_has_a_row_with_its_denominators_the_best_first():
    columns, best, none = echoed.table([NEVER, NONE, BEST])
    assert len(columns) == len(best) == len(none)
    assert best == ("digits", "begun", "8/9", "9/9", "8/9", "5", "")
    assert none == ("phrase", "asked", "0/3", "0/3", "0/3", "6", "46")


def test_there_is_no_table_where_nothing_was_asked():
    assert echoed.table([]) == echoed.table([NEVER]) == ()
