"""Planted against control windows."""

from shorthand import history

from leakcheck.checks import arms


def table(h):
    (rows,) = arms.check(h).tables.values()
    return {row[0]: row[1:] for row in rows}


def test_windows_of_each_arm_are_counted_with_what_they_show():
    line = "a> b> a=aA b=bA | c> d> c=c d=d | e> f> e=e f=f | g> h> g=gH h=gG"
    found = table(history(line, control="cdef"))
    assert found["arm"] == (
        "windows",
        "with a foreign passphrase",
        "with a foreign ticket",
        "with a withheld passphrase",
    )
    assert found["planted"] == (2, 2, 1, 0)
    assert found["control"] == (2, 0, 0, 0)


def test_a_withheld_passphrase_shows_in_the_table():
    assert table(history("a> b> a=a b=b | c> d> c=c~d d=d", control="cd"))["control"][3] == 1


def test_what_an_earlier_window_left_behind_counts_for_the_control_arm():
    found = table(history("a> b> a=a b=b | c> d> c=cA d=d", control="cd"))
    assert found["control"][1] == 1


def test_the_arms_are_compared_by_fishers_test():
    line = "a> b> a=a b=A | c> d> c=c d=d"
    (note,) = arms.check(history(line, control="cd")).notes
    assert "1 of 1 planted, 0 of 1 control" in note
    assert "p = 0.5" in note


def test_an_empty_arm_is_said_to_be_empty():
    (note,) = arms.check(history("a> b> a=a b=b")).notes
    assert note.endswith("no window was drawn for the control arm")


def test_windows_that_never_ran_are_in_no_arm():
    line = "a> b> a=a b=b | c> d> c=c d=d | e. f. | g> h> g! h-"
    found = table(history(line, control="cdef"))
    assert (found["planted"][0], found["control"][0]) == (1, 1)


def test_replays_are_in_no_arm():
    again = {name: {"replays": "a", "ticket": None, "passphrase": None} for name in "cd"}
    assert table(history("a> b> a=a b=b | c> d> c= d=", changes=again))["planted"][0] == 1
