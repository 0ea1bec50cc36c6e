"""Every exception of leakcheck.

::

    LeakcheckError            one sentence that names the thing, the value and what would be right
    +-- UsageError            what was asked for cannot be done              -> exit code 2
    |   +-- ScenarioError     a scenario file is wrong: file, key, nearest valid name
    +-- TargetError           the target cannot be reached or used at all    -> exit code 4
    +-- HarnessError          leakcheck itself went wrong: no verdict        -> exit code 4
        +-- RunFolderError    a run folder is damaged: file and line

A target that breaks *during* a run is no exception: it is an observation. Whatever a backend's
stream raises ends as the outcome `failed` or `unknown` of that one request.
"""

from __future__ import annotations


class LeakcheckError(Exception):
    """Base of all: the message is one sentence for the user, without a traceback."""

    exit_code = 4


class UsageError(LeakcheckError):
    """Wrong flag, value, file or combination; nothing was sent."""

    exit_code = 2


class ScenarioError(UsageError):
    """A scenario file is not valid; the message starts with `file: key`."""


class TargetError(LeakcheckError):
    """The target refused or broke before the experiment could start, or for good during it."""


class HarnessError(LeakcheckError):
    """leakcheck could not do its own work (a worker died at start, a disk is full)."""


class RunFolderError(HarnessError):
    """A run folder holds something else than what leakcheck wrote there."""
