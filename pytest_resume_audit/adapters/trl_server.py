"""What stands for the inference server of TRL's asynchronous GRPO: it answers when it is let.

TRL's rollout worker, a child process, asks a server for answers over HTTP. This one is in the
trainer's process, on 127.0.0.1, and takes its answers from the rig, so that the timeline says when
each one ends. Nothing here needs TRL.

Prompts and answers are words that stand for numbers, one token each. A prompt is the word for its
row; an answer has the words for row, generation and ticket, which the trainer can read out of what
it trains.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pytest_resume_audit.control import GenerationFailed
from pytest_resume_audit.fakes.prompts import Rollout
from pytest_resume_audit.rig import Rig

PAD, EOS, FILLER = "<pad>", "<eos>", "<filler>"

NUMBERS = 4096
"""Words for numbers; so many rows and generations there may be."""

WORDS = [PAD, EOS, FILLER, *map(str, range(NUMBERS))]
"""The vocabulary: the token of a word is its place in here."""

_FIRST = WORDS.index("0")

SETTLES = 30.0
"""Seconds that the rollout worker may take to ask again, or to hand on what was answered."""


def tokens_of(rollout: Rollout) -> list[int]:
    """The tokens of an answer.

    Example:
        >>> from pytest_resume_audit import Prompt
        >>> [WORDS[token] for token in tokens_of(Rollout(Prompt(7), 1, 0, ticket=4100))]
        ['7', '1', '1', '4', '<eos>']
    """
    high, low = divmod(rollout.ticket, NUMBERS)
    numbers = rollout.prompt.row, rollout.generation, high, low
    return [*(_FIRST + number for number in numbers), WORDS.index(EOS)]


def rollout_of(rig: Rig, tokens: Sequence[int]) -> Rollout | None:
    """The answer that tokens stand for; None for one that only fills up a step.

    Args:
        rig: where the prompts are.
        tokens: those of an answer, as far as a loss is taken over them.

    Raises:
        ValueError: for tokens that no answer of this server has.
    """
    if WORDS[tokens[0]] == FILLER:
        return None
    numbers = [token - _FIRST for token in tokens]
    if len(numbers) != 5 or min(numbers[:4]) < 0 or WORDS[tokens[4]] != EOS:
        raise ValueError(f"not an answer of the audit's server: {[WORDS[t] for t in tokens]}")
    row, generation, high, low, _ = numbers
    return Rollout(rig.prompts[row], generation, 0, ticket=high * NUMBERS + low)


class AnswersWhenLet:
    """An inference server that answers when the timeline lets it.

    It is told where the worker begins in the data, and knows from there on what it asks for: the
    rows in order, ``group_size`` generations of each, again from the first behind the last. A row
    counts as handed out when it is asked for first, and the timeline lets it.

    What lies behind the last prompt of the setup, as the worker asks for ever, is answered only
    when all that comes before has arrived, without the rig: it fills up the last steps, and is not
    counted.

    Args:
        rig: of this life.
        slots: requests that the worker has out at once.
        filler: answers behind the last prompt that are given at the most.

    Attributes:
        url: where it listens.
    """

    def __init__(self, rig: Rig, *, slots: int, filler: int) -> None:
        self._rig = rig
        self._slots = slots
        self._filler = filler
        self._changed = threading.Condition()
        self._start = 0
        self._asked: Counter[int] = Counter()
        self._known: dict[int, tuple[int, int]] = {}
        self._requests = 0
        self._responses = 0
        self._answered: Counter[int] = Counter()
        self._handed_out = 0
        self._arrived = 0
        self._over = False
        self._loader = rig.watch(_Rows(rig.setup.prompts), key=lambda row: [row])
        server = self

        class Handler(_Handler):
            owner = server

        self._http = _Http(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread("serves", self._serve)

    # -- what the trainer's side says ------------------------------------------------------------

    def begin(self, start: int) -> None:
        """The worker is about to ask for what comes from this place in the stream on."""
        self._start = self._handed_out = start
        self._loader.load_state_dict(start)
        self._thread("hands out", self._hand_out)
        self._thread("waits for the worker", self._await_worker)

    def arrived(self) -> None:
        """An answer has come through the worker, into the trainer's queue."""
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Answer nobody any more; who waits for an answer gets none."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        # Whoever waits for a request is woken: closing alone does not.
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._http.server_port)):
            pass
        self._http.server_close()

    # -- what the worker asks for ----------------------------------------------------------------

    def asked(self, row: int, seed: int) -> tuple[int, int]:
        """Take a request. Of several for a row, the one that is taken first is of the first pass.

        Args:
            row: of the prompt.
            seed: of the request: one that is made again, after a failure, has the same.

        Returns:
            Its place in the stream, and which generation it is.
        """
        setup = self._rig.setup
        with self._changed:
            self._requests += 1
            if seed not in self._known:
                rounds, generation = divmod(self._asked[row], setup.group_size)
                first = self._start + (row - self._start) % setup.prompts
                self._known[seed] = first + rounds * setup.prompts, generation
                self._asked[row] += 1
            self._changed.notify_all()
            return self._known[seed]

    def complete(self, place: int, generation: int) -> list[int] | None:
        """Answer one request; blocks until the timeline lets the answer end.

        Args:
            place: in the stream, of its prompt.
            generation: which one of that.

        Returns:
            The tokens; None when there will be none.

        Raises:
            GenerationFailed: when the timeline says so.
        """
        setup = self._rig.setup
        with self._changed:
            if place >= setup.total:
                return self._fill(place)
            self._wait(lambda: place < self._handed_out)
            if self._over:
                return None
        rollout = self._rig.engine.generate(self._rig.prompts[place % setup.prompts], generation)
        with self._changed:
            self._answered[place] += 1
        return tokens_of(rollout)

    def _fill(self, place: int) -> list[int] | None:
        """Answer what lies behind the last prompt. The lock is held."""
        group, most = self._rig.setup.group_size, self._filler
        self._wait(lambda: self._is_through() and place < self._rig.setup.total + most // group)
        if self._over:
            return None
        self._answered[place] += 1
        return [WORDS.index(FILLER), WORDS.index(EOS)]

    def _is_through(self) -> bool:
        """Whether all prompts of the setup have arrived."""
        total, group = self._rig.setup.total, self._rig.setup.group_size
        return self._arrived >= max(0, total - self._start) * group

    def _expected(self) -> int:
        """Answers that have arrived when the worker has handed on what is complete."""
        group = self._rig.setup.group_size
        if self._is_through():
            return max(0, self._rig.setup.total - self._start) * group + self._filler
        return sum(group for count in self._answered.values() if count == group)

    def settle(self, *, failed: bool = False) -> None:
        """Wait until the worker has handed on what it was given, and asks for more."""
        with self._changed:
            self._responses += 1
            self._wait(
                lambda: (
                    self._requests >= self._responses + self._slots
                    and self._arrived >= self._expected()
                ),
                SETTLES,
            )

    # -- its threads -----------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Hand out rows in their order, each when it has been asked for."""
        setup, rows = self._rig.setup, iter(self._loader)
        while self._handed_out < setup.total:
            row = self._handed_out % setup.prompts
            first = self._start + (row - self._start) % setup.prompts
            rounds = (self._handed_out - first) // setup.prompts
            with self._changed:
                self._wait(lambda: self._asked[row] > rounds * setup.group_size)  # noqa: B023
            if self._over:
                return
            # So that the audit knows this place again, when a life begins there.
            self._loader.state_dict()
            next(rows)
            with self._changed:
                self._handed_out += 1
                self._changed.notify_all()

    def _await_worker(self) -> None:
        """Nothing is at rest before the worker has come up."""
        with self._rig.working(), self._changed:
            self._wait(lambda: self._requests >= self._slots, SETTLES)

    def _wait(self, ready: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait for something to come true; the lock is held."""
        if not self._changed.wait_for(lambda: self._over or ready(), seconds):
            raise TimeoutError(
                f"TRL's rollout worker stands still: for {seconds:g} s it has neither asked again "
                "nor handed on what it was given"
            )

    def _serve(self) -> None:
        while not self._over:
            self._http.handle_request()

    def _thread(self, name: str, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name=f"resume-audit {name}", daemon=True).start()


class _Rows:
    """The rows of the data set, over and over: where it is, is its state."""

    def __init__(self, prompts: int) -> None:
        self._prompts = prompts
        self._place = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self._place += 1
            yield (self._place - 1) % self._prompts

    def state_dict(self) -> int:
        return self._place

    def load_state_dict(self, state: int) -> None:
        self._place = state


class _Http(ThreadingHTTPServer):
    """Reads requests in the order in which they were connected for, whichever thread runs first.

    The worker connects in the order of its groups. That is all by which two requests for one row,
    of two passes, can be told apart.
    """

    daemon_threads = True
    timeout = None
    request_queue_size = 256

    def __init__(self, *args: Any) -> None:
        self._unread: list[Any] = []
        self._changed = threading.Condition()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._unread.append(client_address)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_read(client_address)

    def await_turn(self, client_address: Any) -> None:
        """Wait until all that have connected before have been read, or are gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._unread[0] == client_address)

    def has_read(self, client_address: Any) -> None:
        """Let the next one be read."""
        with self._changed:
            if client_address in self._unread:
                self._unread.remove(client_address)
                self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that is killed leaves its connections: that is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            raise


class _Handler(BaseHTTPRequestHandler):
    """The three addresses that TRL asks."""

    # A connection for each request: behind its answer the handler waits for what the worker asks
    # next, which must not come in by the same.
    protocol_version = "HTTP/1.0"
    owner: AnswersWhenLet
    server: _Http

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._reply(200, {"data": [{"id": "audited", "max_model_len": 64}]})
        else:
            self._reply(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            self._reply(404, {})
            return
        (token,) = asked["prompt"]
        self.server.await_turn(self.client_address)
        place, generation = self.owner.asked(token - _FIRST, asked["seed"])
        self.server.has_read(self.client_address)
        failed = False
        try:
            tokens = self.owner.complete(place, generation)
        except GenerationFailed as error:
            failed = True
            answer: dict[str, Any] = {"error": str(error)}
        else:
            if tokens is None:
                return
            text = " ".join(WORDS[token] for token in tokens)
            scores = {"token_logprobs": [-1.0] * len(tokens)}
            answer = {"choices": [{"text": text, "token_ids": tokens, "logprobs": scores}]}
        with self.owner._rig.working():
            self._reply(500 if failed else 200, answer)
            self.owner.settle()

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what is asked for is in the history."""
