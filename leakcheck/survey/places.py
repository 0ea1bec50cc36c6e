"""Which addresses a target has, and what it says of itself there.

An address is asked without content, so that nothing is generated: a server that has it complains of
what is missing, one that has not says 404. A server that answers an address which nobody has in the
same way says nothing with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from yarl import URL

from leakcheck.backends._http import Page
from leakcheck.records import Endpoint
from leakcheck.redact import one_line
from leakcheck.run import gauges
from leakcheck.survey.asking import Asker

_OK = 200
_ABSENT = frozenset({404, 405, 501})
_COMPLAINS = frozenset({400, 409, 413, 415, 422})
_BROKEN = 500
_NOWHERE = "leakcheck-asks-for-a-page-that-nobody-has"
_API = ("chat/completions", "completions", "responses", "messages")
"""Below the base URL."""
_SERVER = ("api/chat", "completion", "tokenize", "generate")
"""Below the root of the server, as are `_PAGES`."""
_PAGES = ("health", "version", "props", "slots", "metrics", "info", "api/version")
_LEAST: dict[str, dict[str, Any]] = {
    "completion": {"n_predict": 1},  # an old llama.cpp would continue an empty prompt for ever
    "tokenize": {"content": ""},
}
_OWNERS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "openvino": "OpenVINO",
    "library": "Ollama",
    "leakcheck": "leakcheck's embedded engine",
}
_METRICS = {
    "vllm:": "vLLM",
    "sglang:": "SGLang",
    "llamacpp:": "llama.cpp",
    "tgi_": "Text Generation Inference",
    "leakcheck_engine": "leakcheck's embedded engine",
}
_CONTEXT = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What the addresses of a target say; `metrics` names the number of requests that run."""

    endpoints: tuple[Endpoint, ...]
    engine: str | None
    context_tokens: int | None
    metrics: str | None
    notes: tuple[str, ...] = ()

    def there(self, path: str) -> bool | None:
        """Whether there is something at this path, the base URL left out."""
        return next((each.there for each in self.endpoints if each.path == path), None)


async def places(asker: Asker, base: URL, listed: Any) -> Places:
    """Ask all addresses. `listed` is the target's list of models, as it came."""
    root, model = _root(base), asker.target.model
    if asker.target.backend != "openai":
        base = root.joinpath("v1")
    alike = {
        method: await asker.page(method, root.joinpath(_NOWHERE)) for method in ("GET", "POST")
    }
    found: list[Endpoint] = []
    pages: dict[str, Page] = {}
    for place, paths in ((base, _API), (root, _SERVER)):
        for path in paths:
            page = await asker.page("POST", place.joinpath(path), _LEAST.get(path, {}))
            found.append(_endpoint("POST", path, page, alike["POST"]))
    for path in _PAGES:
        page = await asker.page("GET", root.joinpath(path))
        found.append(_endpoint("GET", path, page, alike["GET"]))
        if page is not None and found[-1].there and page.status == _OK:
            pages[path] = page
    metrics = pages.get("metrics")
    gauge = None if metrics is None else gauges.read(metrics.text, 0)
    return Places(
        endpoints=tuple(found),
        engine=_engine(pages, listed),
        context_tokens=_context(pages, model, listed),
        metrics=None if gauge is None else gauge.name,
        notes=_notes(alike["POST"]),
    )


def _root(base: URL) -> URL:
    """The root of the server: what stands above `/v1`, or whatever ends like a version."""
    plain = base.with_query(None)
    return plain.parent if plain.name in {"v1", "v2", "v3", "api"} else plain


def _notes(alike: Page | None) -> tuple[str, ...]:
    if alike is None or alike.status in _ABSENT:
        return ()
    what = f"it answers an address that nobody has with status {alike.status}"
    return (f"{what}, so that such an answer says nothing of the others",)


def _endpoint(
    method: Literal["GET", "POST"], path: str, page: Page | None, alike: Page | None
) -> Endpoint:
    if page is None:
        return Endpoint(method=method, path=path, there=None, status=None)
    same = alike is not None and (alike.status, alike.words) == (page.status, page.words)
    there = None if same and page.status not in _ABSENT else _there(page)
    words = "" if page.status == _OK else one_line(page.words, limit=120)
    return Endpoint(method=method, path=path, there=there, status=page.status, words=words)


def _there(page: Page) -> bool | None:
    if page.status in _ABSENT or page.content_type == "text/html":
        return False
    if page.status == _OK or page.status in _COMPLAINS:
        return True
    # an error that speaks of what was sent is that of something which read it
    return True if page.status == _BROKEN and page.document is not None else None


def _engine(pages: dict[str, Page], listed: Any) -> str | None:
    """What it looks like, by its own words."""
    names = [
        name
        for sign, name in _METRICS.items()
        if "metrics" in pages and f"\n{sign}" in f"\n{pages['metrics'].text}"
    ]
    if "props" in pages and "default_generation_settings" in _table(pages["props"].document):
        names.append("llama.cpp")
    if "info" in pages and "max_total_tokens" in _table(pages["info"].document):
        names.append("Text Generation Inference")
    if "api/version" in pages and "version" in _table(pages["api/version"].document):
        names.append("Ollama")
    names += [
        name
        for item in _items(listed)
        for owner, name in _OWNERS.items()
        if str(item.get("owned_by")).lower() == owner
    ]
    if not names:
        return None
    version = _version(pages)
    return f"{names[0]} {version}" if version else names[0]


def _version(pages: dict[str, Page]) -> str | None:
    for path, name in (("version", "version"), ("props", "build_info"), ("info", "version"),
                       ("api/version", "version")):  # fmt: skip
        if path in pages:
            value = _table(pages[path].document).get(name)
            if isinstance(value, str) and value:
                return one_line(value, limit=40)
    return None


def _context(pages: dict[str, Page], model: str, listed: Any) -> int | None:
    """The limit of tokens of a request, where the target names one; that of a slot in llama.cpp."""
    if "props" in pages:
        settings = _table(_table(pages["props"].document).get("default_generation_settings"))
        if found := _count(settings.get("n_ctx")):
            return found
    mine = [item for item in _items(listed) if item.get("id") == model] or _items(listed)[:1]
    for item in mine:
        for table in (item, _table(item.get("meta"))):
            for name in _CONTEXT:
                if found := _count(table.get(name)):
                    return found
    info = _table(pages["info"].document) if "info" in pages else {}
    return _count(info.get("max_total_tokens"))


def _items(listed: Any) -> list[dict[str, Any]]:
    data = _table(listed).get("data")
    return [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
