"""What a fault is, and how it is put into one built engine or server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from leakcheck.engine.delivery import Delivery
    from leakcheck.engine.engine import Engine
    from leakcheck.engine.server import Api

Layer = Literal[
    "block lifecycle",
    "prefix cache",
    "attention",
    "batch rows",
    "sampler",
    "output",
    "stores",
    "benign",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """What a fault may patch; without a server there is no `api`."""

    engine: Engine
    delivery: Delivery
    api: Api | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way in which isolation breaks, and how to switch it on.

    `anomalies` are the kinds of finding any of which must report it; none for a benign fault, which
    must never be called a leak. `rate` is the default share of the occasions named in `strength`;
    None: every occasion. `engine_flags` are flags of the engine without which it cannot show.
    """

    name: str
    layer: Layer
    mechanism: str
    trigger: str
    effect: str
    anomalies: tuple[str, ...]
    strength: str
    seam: str
    cases: tuple[str, ...]
    rate: float | None
    install: Callable[[Seams, float, Random], None]
    engine_flags: tuple[str, ...] = ()

    def as_row(self) -> dict[str, Any]:
        """The JSON form for `--list-faults`."""
        names = [name for name in self.__slots__ if name != "install"]
        return {name: getattr(self, name) for name in names}


def patch(owner: object, method: str, replace: Callable[[Any], Callable[..., Any]]) -> None:
    """Put `replace(original)` in the place of one object's method; a missing seam is an error."""
    setattr(owner, method, replace(getattr(owner, method)))
