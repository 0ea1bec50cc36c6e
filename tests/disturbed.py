"""The embedded engine with a fault that shows nobody's content, as a stale buffer may have it: what
a request is answered from its fifth token on is disturbed by the longest other prompt of its batch.

Run as a process (`python disturbed.py`); it prints the engine's READY line and ends with its input.
"""

from dataclasses import replace
from zlib import crc32

import torch

from leakcheck.engine import __main__ as command
from leakcheck.engine import faults, lifetimes
from leakcheck.engine.faults.fault import patch

FROM, NATS = 4, 10.0


def disturbed(seams, _rate, _rng):
    """Add noise of up to `NATS` to logits, the same for the same longest prompt."""

    def wrap(original):
        def forward(batch):
            logits = original(batch)
            for index, row in enumerate(row for row in batch.rows if row.last):
                own = row.sequence.request
                others = [
                    r.sequence.request.prompt for r in batch.rows if r.sequence.request != own
                ]
                if others and row.sequence.generated >= FROM:
                    longest = max(others, key=lambda prompt: (len(prompt), prompt))
                    numbers = torch.Generator().manual_seed(crc32(repr(longest).encode()))
                    noise = torch.rand(logits.shape[1:], generator=numbers) * 2 - 1
                    logits[index] = logits[index] + NATS * noise
            return logits

        return forward

    patch(seams.engine, "forward", wrap)


if __name__ == "__main__":
    given = command.checked(command.parser().parse_args(["--port=0", "--exit-with-stdin"]))
    fault = replace(faults.find("batch-noise"), name="disturbed", install=disturbed)
    lifetimes.serve(replace(given, fault=fault), lambda _flags: given, watch_stdin=True)
