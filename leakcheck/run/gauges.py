"""What the target says it is doing: its page of Prometheus metrics, read while a run lasts.

Requests that overlap at the client need not overlap in the target: a gateway may let in one at a
time. Servers that can be asked how many requests they compute at this moment are asked, twice a
second at most. Nobody is asked who did not show such a number at the first time, and without
`--metrics` only a target of this machine.
"""

from __future__ import annotations

import ipaddress
import math
import re
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

from prometheus_client.parser import text_string_to_metric_families

from leakcheck import __version__, runfolder
from leakcheck.errors import HarnessError, UsageError
from leakcheck.records import Gauges, Target
from leakcheck.redact import headers

AUTO, OFF = "auto", "off"
EVERY_S = 0.5
_SLOWEST_S = 16.0
_PATIENCE_S = 2.0
_PAGE_BYTES = 4_000_000
_OK = 200
_HTTPS = 443
_HTTP = 80

RUNNING = (
    "vllm_num_requests_running",
    "sglang_num_running_reqs",
    "llamacpp_requests_processing",
    "tgi_batch_current_size",
    "leakcheck_engine_running",
)
"""Names of the one metric that is needed, with `_` for `:`, as some exporters write them."""
WAITING = (
    "vllm_num_requests_waiting",
    "sglang_num_queue_reqs",
    "llamacpp_requests_deferred",
    "tgi_queue_size",
    "leakcheck_engine_waiting",
)
PREEMPTIONS = ("vllm_num_preemptions_total", "leakcheck_engine_preemptions_total")
CACHED_TOKENS = (
    "vllm_prefix_cache_hits_total",
    "vllm_gpu_prefix_cache_hits_total",
    "sglang_cached_tokens_total",
    "llamacpp_prompt_tokens_cached_total",
    "leakcheck_engine_prefix_hits_tokens_total",
)
KV_USAGE = (
    "vllm_kv_cache_usage_perc",
    "vllm_gpu_cache_usage_perc",
    "sglang_token_usage",
    "llamacpp_kv_cache_usage_ratio",
)
_BORN = "process_start_time_seconds"
_USED_BLOCKS = "leakcheck_engine_blocks_used"
_OTHER_BLOCKS = ("leakcheck_engine_blocks_free", "leakcheck_engine_blocks_cached")
_KNOWN = frozenset(
    [*RUNNING, *WAITING, *PREEMPTIONS, *CACHED_TOKENS, *KV_USAGE, _USED_BLOCKS, *_OTHER_BLOCKS]
)
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the metrics of a target are. `headers` are secrets, sent to the target's origin only;
    they are in no text of this object.
    """

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None


# --- where ---------------------------------------------------------------------------------------


def source(target: Target, where: str = AUTO) -> Source | None:
    """The page of metrics of a target: `/metrics` of its host where that is a name or address of
    this machine, or else the URL in `where`; None for no page.

    Raises UsageError for a `where` that is none of them.
    """
    base = urlsplit(target.base_url)
    if where == OFF or (where == AUTO and not _is_local(base)):
        return None
    url = urlunsplit((base.scheme, base.netloc, "/metrics", "", "")) if where == AUTO else where
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise UsageError(
            f"--metrics: {where!r} is not a URL without credentials; write it as "
            f"http://host:port/metrics, or {AUTO} or {OFF}"
        )
    same = _origin(parts) == _origin(base)
    return Source(url=url, headers=headers(target) if same else {}, ca_file=target.ca_file)


def found(target: Target, where: str = AUTO) -> Source | None:
    """The page of metrics of a target if it says how many requests run; asked once.

    Raises UsageError where a URL was named and does not say that.
    """
    page = source(target, where)
    if page is None or look(page) is not None:
        return page
    if where == AUTO:
        return None
    raise UsageError(
        f"--metrics: {page.url} does not say how many requests are running "
        f"(known: {', '.join(RUNNING)}); name the page of the server itself, or {OFF}"
    )


def _is_local(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    usual = _HTTPS if parts.scheme == "https" else _HTTP
    return parts.scheme, parts.hostname or "", parts.port or usual


# --- what it says --------------------------------------------------------------------------------


def read(text: str, at_ns: int) -> Gauges | None:
    """The gauges on a page in the Prometheus text format; None where it does not say how many
    requests run, or is something else.

    Of several engines on one page the busiest counts, their counters are summed.
    """
    values: dict[str, list[float]] = {}
    names: dict[str, str] = {}
    lines = [line for line in text.splitlines() if _plain(line) in _KNOWN]
    try:
        for family in text_string_to_metric_families("\n".join([*lines, ""])):
            for sample in family.samples:
                plain = sample.name.replace(":", "_")
                names[plain] = sample.name
                if math.isfinite(sample.value):
                    values.setdefault(plain, []).append(float(sample.value))
    except ValueError:
        return None
    name = next((each for each in RUNNING if each in values), None)
    if name is None:
        return None
    return Gauges(
        at_ns=at_ns,
        name=names[name],
        running=max(values[name]),
        waiting=_first(WAITING, values, sum),
        preemptions=_first(PREEMPTIONS, values, sum),
        cached_tokens=_first(CACHED_TOKENS, values, sum),
        kv_usage=_first(KV_USAGE, values, max) if _USED_BLOCKS not in values else _used(values),
    )


def _plain(line: str) -> str:
    name = _NAME.match(line)
    return "" if name is None else name[0].replace(":", "_")


def _first(
    names: Iterable[str],
    values: dict[str, list[float]],
    merge: Callable[[list[float]], float],
) -> float | None:
    return next((merge(values[name]) for name in names if name in values), None)


def _used(values: dict[str, list[float]]) -> float | None:
    used = sum(values[_USED_BLOCKS])
    blocks = used + sum(sum(values.get(name, [])) for name in _OTHER_BLOCKS)
    return used / blocks if blocks else None


# --- while a run lasts ---------------------------------------------------------------------------


class Sampler:
    """Reads a page of metrics every half second into a run folder, in a thread of its own.

    A page that does not answer is asked ever more seldom, every 16 s at last.
    """

    def __init__(self, folder: Path, page: Source) -> None:
        """Nothing is asked before `start`."""
        self._folder = folder
        self._asked = page, _opener(page)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leakcheck-gauges", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def aim(self, page: Source) -> None:
        """Go on with another page: the target came back at another address."""
        self._asked = page, _opener(page)

    def stop(self) -> None:
        """Ask no more; wait for the answer that is on its way, if it comes soon."""
        self._over.set()
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        pause_s = EVERY_S
        while not self._over.wait(pause_s):
            seen = _ask(*self._asked)
            pause_s = EVERY_S if seen is not None else min(2 * pause_s, _SLOWEST_S)
            if seen is not None and not self._over.is_set():
                with suppress(HarnessError, OSError):  # a full disk: the workers say so
                    runfolder.append_gauges(self._folder, seen)


@contextmanager
def sampled(folder: Path, page: Source | None) -> Iterator[Sampler | None]:
    """Have a page read into the run folder while the block lasts; nothing for None."""
    if page is None:
        yield None
        return
    sampler = Sampler(folder, page)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def look(page: Source) -> Gauges | None:
    """Ask once; None where nothing of use came back."""
    try:
        return _ask(page, _opener(page))
    except OSError:  # of the file of certificates
        return None


def counters(page: Source) -> dict[str, float] | None:
    """Every counter on the page by its name, those of one name summed, and when the process began
    (`process_start_time_seconds`, the latest). None where the page cannot be read.
    """
    found: dict[str, float] = {}
    try:
        text = _text(page, _opener(page))
        for family in text_string_to_metric_families(text or ""):
            for sample in family.samples:
                if sample.name == _BORN:
                    found[_BORN] = max(found.get(_BORN, 0.0), float(sample.value))
                elif family.type == "counter" and sample.name.endswith("_total"):
                    found[sample.name] = found.get(sample.name, 0.0) + float(sample.value)
    except (OSError, ValueError):
        return None
    return None if text is None else found


def _ask(page: Source, opener: urllib.request.OpenerDirector) -> Gauges | None:
    text = _text(page, opener)
    return None if text is None else read(text, time.monotonic_ns())


def _text(page: Source, opener: urllib.request.OpenerDirector) -> str | None:
    agent = {"User-Agent": f"leakcheck/{__version__}", "Accept": "text/plain"}
    request = urllib.request.Request(page.url, headers=agent | page.headers)  # noqa: S310 - `source` lets only http and https through
    try:
        with opener.open(request, timeout=_PATIENCE_S) as reply:
            if reply.status != _OK:
                return None
            return str(reply.read(_PAGE_BYTES).decode("utf-8", "replace"))
    except (OSError, HTTPException, ValueError):  # refused, cut, late, no HTTP, no certificate
        return None


def _opener(page: Source) -> urllib.request.OpenerDirector:
    """Follows no redirection: a key must not go elsewhere. Uses the proxies of the environment."""
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.ProxyHandler())
    opener.add_handler(urllib.request.HTTPHandler())
    if page.url.startswith("https:"):
        context = ssl.create_default_context(cafile=page.ca_file)
        opener.add_handler(urllib.request.HTTPSHandler(context=context))
    return opener
