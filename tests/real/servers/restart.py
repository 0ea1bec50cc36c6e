"""End what runs under a file with a process id, start a command in its place, and return.

    restart.py PID_FILE LOG COMMAND ...

For `leakcheck run --restart`. The command leads a process group of its own and keeps running.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ASIDE_S = 10.0


def end(pid_file):
    """The group of that process, politely at first; nothing where there is none."""
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(pid, how)
        deadline = time.monotonic() + ASIDE_S
        while time.monotonic() < deadline and alive(pid):
            time.sleep(0.05)
    pid_file.unlink()


def alive(pid):
    """Whether a process runs; one that ended and that nobody waits for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def start(pid_file, log, command):
    """Start a command, and write down who leads its group; the process."""
    with log.open("ab") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    pid_file.write_text(str(process.pid))
    return process


def main():
    pid_file, log, *command = sys.argv[1:]
    end(Path(pid_file))
    start(Path(pid_file), Path(log), command)


if __name__ == "__main__":
    main()
