"""What the workers of a run have written since somebody looked last."""

from __future__ import annotations

from pathlib import Path

import msgspec

from leakcheck.errors import RunFolderError
from leakcheck.records import Observation
from leakcheck.runfolder import Invocation, ShardLine, Shards, shard_files


class Tail:
    """A place in each shard of a run folder; only whole lines behind it are read."""

    def __init__(self, folder: Path) -> None:
        """Begin at the start of every shard, those to come included."""
        self._folder = folder
        self._places: dict[Path, int] = {}
        self._decoder = msgspec.json.Decoder(ShardLine)

    def read(self) -> Shards:
        """What is new. A last line without its end waits for the next time.

        Raises RunFolderError, which names file and byte, for a line that is none.
        """
        invocations: list[Invocation] = []
        observations: list[Observation] = []
        for path in shard_files(self._folder):
            at = self._places.get(path, 0)
            with path.open("rb") as file:
                file.seek(at)
                whole, end, _ = file.read().rpartition(b"\n")
            self._places[path] = at + len(whole) + len(end)
            for raw in whole.splitlines() if end else ():
                line = self._decoded(raw, path, at)
                if line.invoke is not None:
                    invocations.append(line.invoke)
                elif line.observe is not None:
                    observations.append(line.observe)
                at += len(raw) + 1
        return Shards(invocations=tuple(invocations), observations=tuple(observations))

    def _decoded(self, raw: bytes, path: Path, at: int) -> ShardLine:
        try:
            line = self._decoder.decode(raw)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{path}, at byte {at}: {error}") from None
        if line.invoke is None and line.observe is None:
            raise RunFolderError(f"{path}, at byte {at}: neither an invocation nor an observation")
        return line
