"""A Python function of yours as a target: `--target module:function`, called in the lane's process.

It gets one dict (`_plain.document`) and gives a text, a dict (`_plain`), or an iterator of such
pieces, synchronous or not. A synchronous function runs in a thread of its lane, so that it holds up
no other lane; one that is given up while it runs keeps its thread until it returns, and the lane
gets another. What it raises makes an answer Broken; `leakcheck.backends.Refused` says that nothing
was generated.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import queue
import sys
import threading
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import orjson

from leakcheck.backends import Address, Broken, Refused, Turns
from leakcheck.backends import _probe as probing
from leakcheck.backends._plain import FIELDS, Answer, document
from leakcheck.backends._probe import Dialect
from leakcheck.errors import UsageError
from leakcheck.records import Chunk, Request, Target
from leakcheck.redact import inherited, one_line, redact, secrets

_T = TypeVar("_T")
_RIGHT = "module:function"
_END = object()
_OF_MODULES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What a module raises, beside ImportError, that cannot be run."""


def find(text: str) -> Callable[[dict[str, Any]], Any]:
    """The function that `module:function` names; modules of the working directory are found too.

    Raises UsageError, one sentence, for what is none.
    """
    module, _, path = text.partition(":")
    if not (path and all(part.isidentifier() for part in (*module.split("."), *path.split(".")))):
        raise UsageError(f"{text!r} names no function; write it as {_RIGHT}")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"the module of {text!r} cannot be imported: {error}") from None
    except _OF_MODULES as error:
        why = redact(one_line(f"{type(error).__name__}: {error}"), inherited())
        raise UsageError(f"the module of {text!r} cannot be imported: {why}") from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(f"there is no function {path!r} in the module {module}")
    return found  # type: ignore[no-any-return]  # what it takes and gives shows when it is called


def name(function: Callable[..., Any]) -> str:
    """What to write as target for a function of a module, for use from Python.

    Raises UsageError for one that no worker process could import: a lambda, a nested function.
    """
    text = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', '<it>')}"
    if "<" in text or text.startswith("__main__:") or find(text) is not function:
        raise UsageError(
            f"{text} cannot be imported by name, which worker processes have to; define it at the "
            "top of a module that is not the script itself"
        )
    return text


def _check(text: str) -> None:
    find(text)


ADDRESS = Address(right=_RIGHT, check=_check, key_env=None, model="callable")


def connect(target: Target) -> Callables:
    """A backend for one lane; call it inside a running event loop. Raises UsageError as `find`."""
    return Callables(target)


DIALECT = Dialect(
    protocol="function",
    key_env="OPENAI_API_KEY",
    always=("temperature",),
    some=FIELDS,
    also=frozenset({"tools"}),
)


def meet(target: Target, turns: Turns) -> tuple[Target, tuple[str, ...]]:
    """The target with what it refuses, and no models.

    Raises TargetError or UsageError, one sentence each.
    """
    return probing.meet(target, turns, DIALECT, connect)


class Callables:
    """One lane's calls of a function."""

    def __init__(self, target: Target) -> None:
        """As `connect`."""
        self._target = target
        self._function = find(target.base_url)
        self._thread = _Thread()
        self._left: _Thread | None = None
        self._keys = secrets(target)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """See `leakcheck.backends.Backend`."""
        answer, size = Answer(), 0
        async with aclosing(self._pieces(document(self._target, request))) as pieces:
            async for piece, alone in pieces:
                raw, altered = self._encoded(piece, alone=alone)
                size += len(raw)
                if size > self._target.max_reply_bytes:
                    raise Broken(
                        f"the reply is longer than {self._target.max_reply_bytes} bytes: "
                        "reading was stopped"
                    )
                for chunk in answer.read(raw):
                    yield chunk
                if altered:
                    raise Broken("the answer holds half a surrogate pair; U+FFFD is kept for it")
        if not answer.begun:
            raise Broken("the function ended without an answer")

    async def close(self) -> None:
        """Let the thread go."""
        self._thread.leave()

    async def _pieces(self, asked: dict[str, Any]) -> AsyncGenerator[tuple[object, bool], None]:
        """What the function gives, piece by piece, and whether that is all of it."""
        try:
            async with aclosing(self._given(asked)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            if self._left is not None:
                self._left.leave()
                self._left = None

    async def _given(self, asked: dict[str, Any]) -> AsyncGenerator[tuple[object, bool], None]:
        function = self._function
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            given: Any = function(asked)
        else:
            given = await self._told(self._run(function, asked))
        if inspect.isawaitable(given):
            given = await self._told(given)
        if isinstance(given, AsyncIterator):
            try:
                while (piece := await self._told(_anext(given))) is not _END:
                    yield piece, False
            finally:
                if isinstance(given, types.AsyncGeneratorType):
                    await given.aclose()
        elif isinstance(given, Iterator):
            async with aclosing(self._stepped(given)) as pieces:
                async for piece in pieces:
                    yield piece, False
        else:
            yield given, True

    async def _stepped(self, given: Iterator[object]) -> AsyncGenerator[object, None]:
        """An iterator, stepped in the thread: no faster than its pieces are taken."""
        thread = self._thread
        try:
            while (piece := await self._told(self._run(next, given, _END))) is not _END:
                yield piece
        finally:
            if isinstance(given, types.GeneratorType):
                thread.submit(given.close)  # nobody waits for it

    async def _run(self, function: Callable[..., _T], *values: Any) -> _T:
        """Call it in the lane's thread; the lane leaves that behind if it is given up meanwhile."""
        try:
            return await asyncio.wrap_future(self._thread.submit(function, *values))
        except asyncio.CancelledError:
            self._left, self._thread = self._thread, _Thread()
            raise

    async def _told(self, work: Awaitable[_T]) -> _T:
        """What the function gives; Broken, with type and first line, for what it raises."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task}, timeout=0.5)
            raise
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, Refused | Broken):
            raise error
        first = one_line((str(error).splitlines() or [""])[0])
        words = redact(f"{type(error).__name__}: {first}".rstrip(": "), self._keys)
        raise Broken(f"the function raised {words}") from None

    def _encoded(self, piece: object, *, alone: bool) -> tuple[bytes, bool]:
        """A piece as JSON, and whether something of it is no text."""
        if isinstance(piece, str):
            piece = {"text" if alone else "piece": piece}
        try:
            return orjson.dumps(piece), False
        except TypeError as error:
            if "surrogates" not in str(error):
                raise Broken(
                    f"the function gave {type(piece).__name__}, which is no text and no JSON object"
                ) from None
        return orjson.dumps(_mended(piece)), True


def _mended(piece: Any) -> Any:
    """Half surrogates replaced in all texts of an object."""
    if isinstance(piece, dict):
        return {key: _mended(value) for key, value in piece.items()}
    if isinstance(piece, list):
        return [_mended(value) for value in piece]
    if isinstance(piece, str):
        return piece.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return piece


async def _anext(given: AsyncIterator[object]) -> object:
    return await anext(given, _END)


class _Thread:
    """One thread that does one thing after the other, and ends no process that is waiting for it.

    (`ThreadPoolExecutor` joins its threads at exit: a function that hangs would hang the worker.)
    """

    def __init__(self) -> None:
        """It starts with the first thing to do."""
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = False

    def submit(self, function: Callable[..., _T], *values: Any) -> Future[_T]:
        """Call it in the thread; the future has what it gives or raises."""
        future: Future[_T] = Future()
        self._queue.put(lambda: _work(future, function, *values))
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, name="leakcheck-callable", daemon=True).start()
        return future

    def leave(self) -> None:
        """Nothing more is to be done: the thread ends once it has done what it was given."""
        self._queue.put(None)

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


def _work(future: Future[_T], function: Callable[..., _T], *values: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*values)
    except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits, as executors do
        # what ends iterators and processes would end ours: asyncio lets it through, or refuses it
        plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
        future.set_exception(error if plain else RuntimeError(f"{type(error).__name__} {error}"))
    else:
        future.set_result(result)
