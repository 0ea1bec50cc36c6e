"""OpenVINO GenAI behind an OpenAI API: `serve_openvino.py GGUF PORT [options]`.

It runs in the environment of the engine, with the standard library only. One thread owns the
pipeline and steps it; each request has a thread, a job and a queue of its own, which nothing else
touches. What OpenVINO cannot do is left out or ignored, as many servers do: `logit_bias`, more than
one logprob a token, cached tokens in `usage`.
"""

import argparse
import itertools
import json
import queue
import select
import socket
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import openvino_genai

EOS = 2
IDLE_S = 0.01


@dataclass(slots=True, kw_only=True)
class Job:
    """One request. `said`: (tokens, logprobs, reason) as they come; only the last has a reason."""

    ids: object
    config: object
    said: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    gone: bool = False


class Pipeline(Thread):
    """The engine: whoever wants something puts a job into `jobs`."""

    def __init__(self, gguf, options):
        super().__init__(daemon=True)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.max_num_seqs = options.slots
        scheduler.max_num_batched_tokens = options.batched_tokens
        scheduler.enable_prefix_caching = options.prefix_caching
        settings = {"INFERENCE_NUM_THREADS": 1}
        if options.precision:
            settings["INFERENCE_PRECISION_HINT"] = options.precision
        self.pipe = openvino_genai.ContinuousBatchingPipeline(gguf, scheduler, "CPU", settings)
        self.tokenizer = self.pipe.get_tokenizer()
        self.jobs = queue.SimpleQueue()

    def run(self):
        """Step for as long as there is something to compute."""
        running = {}
        for number in itertools.count():
            self.admit(running, number)
            if self.pipe.has_non_finished_requests():
                self.pipe.step()
            for name in [name for name, each in running.items() if self.over(*each)]:
                del running[name]

    def admit(self, running, number):
        """Every job that waits; with nothing to compute, wait for one."""
        while not running or not self.jobs.empty():
            job = self.jobs.get()
            name = len(running) + number * 4096
            running[name] = job, self.pipe.add_request(name, job.ids, job.config)

    def over(self, job, handle):
        """Pass on what came of a job; whether that was the end of it."""
        if job.gone:
            handle.cancel()
            return True
        over = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
        if not handle.can_read():
            if over:
                job.said.put(([], [], "length"))
            return over
        (output,) = handle.read().values()
        reason = {"STOP": "stop", "LENGTH": "length"}.get(output.finish_reason.name)
        job.said.put((output.generated_ids, output.generated_log_probs, reason))
        return reason is not None


def config(fields):
    """The sampling of one request."""
    asked = openvino_genai.GenerationConfig()
    asked.eos_token_id = EOS
    asked.max_new_tokens = fields.get("max_tokens") or 64
    temperature = fields.get("temperature", 1.0)
    asked.do_sample = temperature > 0
    if asked.do_sample:
        asked.temperature = temperature
        asked.top_p = fields.get("top_p") or 1.0
        asked.rng_seed = fields.get("seed") or time.monotonic_ns() % 2**31
    asked.logprobs = int(bool(fields.get("logprobs")))
    asked.apply_chat_template = False
    stop = fields.get("stop") or []
    asked.stop_strings = {stop} if isinstance(stop, str) else set(stop)
    return asked


class Handler(BaseHTTPRequestHandler):
    """One connection: its requests come one after the other."""

    protocol_version = "HTTP/1.1"
    engine = None
    model = "smollm2"

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        """Health, and the one model."""
        if self.path == "/health":
            self.reply(200, {"status": "ok"})
        elif self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        else:
            self.reply(404, {"error": {"message": f"no such path: {self.path}"}})

    def do_POST(self):
        """Completions, of a chat or not."""
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path not in ("/v1/chat/completions", "/v1/completions"):
            self.reply(404, {"error": {"message": f"no such path: {self.path}"}})
            return
        try:
            fields = json.loads(raw)
            chat = self.path == "/v1/chat/completions"
            job = self.job(fields, chat=chat)
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            self.reply(400, {"error": {"message": f"{type(error).__name__}: {error}"}})
            return
        self.engine.jobs.put(job)
        said = Answer(self.engine.tokenizer, fields, chat=chat, prompt=job.ids.shape[1])
        (self.stream if fields.get("stream") else self.whole)(job, said)

    def job(self, fields, *, chat):
        """The tokens and sampling of one request."""
        tokenizer = self.engine.tokenizer
        if chat:
            prompt = tokenizer.apply_chat_template(fields["messages"], add_generation_prompt=True)
        else:
            prompt = fields["prompt"]
        ids = tokenizer.encode(prompt, add_special_tokens=False).input_ids
        return Job(ids=ids, config=config(fields))

    def said(self, job):
        """What comes of a job; ends when it does, or when the client hangs up."""
        reason = None
        while reason is None:
            try:
                tokens, logprobs, reason = job.said.get(timeout=0.25)
            except queue.Empty:
                if hung_up(self.connection):
                    raise BrokenPipeError from None
                continue
            yield tokens, logprobs, reason

    def whole(self, job, answer):
        """The reply in one piece."""
        try:
            for piece in self.said(job):
                answer.add(*piece)
            self.reply(200, answer.whole())
        except OSError:
            self.leave(job)

    def stream(self, job, answer):
        """The reply as server-sent events."""
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in self.said(job):
                answer.add(*piece)
                document = answer.piece()
                if document is not None:
                    self.event(json.dumps(document))
            self.event(json.dumps(answer.last()))
            self.event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.leave(job)

    def event(self, text):
        """One event, as one chunk."""
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def leave(self, job):
        """Nobody listens any more."""
        job.gone = True
        self.close_connection = True

    def reply(self, status, document):
        """A whole JSON document."""
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def hung_up(connection):
    """Whether the other side has closed."""
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)


class Answer:
    """One answer in the making, as text, tokens and their logprobs."""

    def __init__(self, tokenizer, fields, *, chat, prompt):
        self.tokenizer, self.chat, self.prompt = tokenizer, chat, prompt
        self.wants_logprobs = bool(fields.get("logprobs"))
        stop = fields.get("stop") or []
        self.stop = [stop] if isinstance(stop, str) else stop
        self.ids, self.logprobs, self.reason = [], [], None
        self.shown, self.reported = 0, 0
        self.name = f"cmpl-{uuid.uuid4().hex}"

    def add(self, tokens, logprobs, reason):
        """What the engine said next."""
        self.ids += tokens
        self.logprobs += logprobs
        self.reason = reason

    def text(self):
        """All that may be shown by now: nothing of a stop string, no half character."""
        text = self.tokenizer.decode(self.ids)
        found = [at for stop in self.stop if (at := text.find(stop)) >= 0]
        if found:
            return text[: min(found)]
        if self.reason is not None:
            return text
        kept = max((len(stop) for stop in self.stop), default=1) - 1
        return text[: len(text) - kept].rstrip("\N{REPLACEMENT CHARACTER}")

    def piece(self):
        """The next event; None while there is nothing to show."""
        text = self.text()
        if len(text) <= self.shown and self.reason is None:
            return None
        fresh, self.shown = text[self.shown :], len(text)
        return self.document(self.choice(fresh, delta=True))

    def whole(self):
        """The reply that is not streamed."""
        return self.document(self.choice(self.text(), delta=False)) | {"usage": self.usage()}

    def last(self):
        """The event with the usage."""
        return self.document(None) | {"usage": self.usage()}

    def usage(self):
        """What it cost."""
        counts = {"prompt_tokens": self.prompt, "completion_tokens": len(self.ids)}
        return counts | {"total_tokens": sum(counts.values())}

    def document(self, choice):
        """The frame of a reply or an event."""
        return {
            "id": self.name,
            "object": "chat.completion" if self.chat else "text_completion",
            "created": int(time.time()),
            "model": Handler.model,
            "choices": [] if choice is None else [choice],
        }

    def choice(self, text, *, delta):
        """The one choice, with the logprobs of tokens that were not reported yet."""
        if self.chat:
            message = {"role": "assistant", "content": text}
            body = {"delta" if delta else "message": message}
        else:
            body = {"text": text}
        finish = {"index": 0, "finish_reason": self.reason}
        return finish | body | {"logprobs": self.tokens() if self.wants_logprobs else None}

    def tokens(self):
        """Logprobs as both APIs write them. OpenVINO knows those of the chosen tokens only."""
        pairs = list(zip(self.ids, self.logprobs, strict=True))[self.reported :]
        self.reported = len(self.ids)
        named = [(self.tokenizer.decode([token]), logprob) for token, logprob in pairs]
        if self.chat:
            return {"content": [{"token": t, "logprob": p, "top_logprobs": []} for t, p in named]}
        return {"tokens": [t for t, _ in named], "token_logprobs": [p for _, p in named]}


def main():
    """Load, then listen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("port", type=int)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--batched-tokens", type=int, default=256)
    parser.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--precision", help="f32, or bf16; by default what OpenVINO likes best here"
    )
    options = parser.parse_args()
    Handler.engine = Pipeline(options.gguf, options)
    Handler.engine.start()
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
