"""Plays one script on one collector, life after life."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_resume_audit.collector import Collector, SelfDrivenCollector
from pytest_resume_audit.control import NO_LIMIT, Control, Generation, LifeEnded, WouldBlock
from pytest_resume_audit.frames import current_frames
from pytest_resume_audit.history import History, LifeRecord, Progress, SaveRecord, in_order
from pytest_resume_audit.lives.kinds import LifeKind
from pytest_resume_audit.lives.local import Call, InlineLife, ThreadedLife, let_go, place_of
from pytest_resume_audit.lives.nursery import NurseryError
from pytest_resume_audit.lives.overheard import Overheard
from pytest_resume_audit.lives.process import LifeDied, ProcessLife
from pytest_resume_audit.lives.snapshot import snapshot
from pytest_resume_audit.lives.spawned import SpawnedLife
from pytest_resume_audit.numbering import Numbering
from pytest_resume_audit.rest import NotAtRest, has_proc
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.savepoints import Image, Images, SavePoints
from pytest_resume_audit.setup import Setup, widest
from pytest_resume_audit.style import AnyCollector, Make, Style, WrongStyle, can_downgrade, pulls
from pytest_resume_audit.timeline import (
    Crash,
    Death,
    Downgrade,
    Drain,
    Fail,
    Finish,
    HandOut,
    Ordinals,
    Position,
    Race,
    Restart,
    Save,
    Step,
    Stop,
    Timeline,
    Train,
)
from pytest_resume_audit.verdict import Missed, Played, Reference

Life = InlineLife | ThreadedLife | ProcessLife

PATIENCE = 3.0
"""Seconds, if the deadline is not shorter, that a life at rest is given before it hangs."""


class Over(Exception):
    """The run ends here: the collector raised, refused, or stands still."""


class Raised(Over):
    """The collector raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Refused(Raised):
    """The collector refused to resume."""


class Hangs(Over):
    """Nothing moves any more, or everything for ever."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Play:
    """One run of a script.

    Args:
        make: makes a collector from a rig.
        timeline: the script.
        setup: the sizes.
        root: an empty directory; each life gets a checkpoint root of its own below it.
        overheard: hears what goes on outside of calls.
        reference: what the uninterrupted run did; None while that is played.
        gated: whether the loader waits for the script.
        patient: whether a call is waited for that stands still while its gate may be in the way.
        style: how the collector is driven.
        deadline: seconds without progress.
        life: the kind of life.

    Attributes:
        history: what happened so far.
        held: prompts that were finished and held by the collector, and calls that waited.
        in_the_way: what stood still while a thread stood at the loader's gate: the gate may be
            the cause.
        images: what each point of a save has left, where the script goes on from all of them:
            this run ends there, and has a :meth:`branch` for each.
        past_the_end: whether the save that a point was asked of has fewer; None: no such save
            came to its end.
    """

    def __init__(
        self,
        make: Make,
        timeline: Timeline,
        setup: Setup,
        root: Path,
        overheard: Overheard,
        *,
        reference: Reference | None,
        gated: bool,
        patient: bool = False,
        style: Style,
        deadline: float,
        life: LifeKind = "local",
    ) -> None:
        self.life_kind = life
        self.past_the_end: bool | None = None
        self.make = make
        self.timeline = timeline
        self.setup = setup
        self.counted = widest(setup, timeline.changes)
        self.root = self.life_root = root
        self.overheard = overheard
        self.reference = reference
        self.gated = gated
        self.patient = patient
        self.style = style
        self.deadline = deadline
        self.numbering = Numbering()
        if reference is not None:
            self.numbering = Numbering(reference.rows, reference.failed, reference.retried)
        self.history = History()
        self.missed: list[Missed] = []
        self.in_the_way: set[str] = set()
        self.held: set[str] = set()
        self.images: list[Image] = []
        self.rest_name = ""
        self._steps = deque(timeline.steps)
        self._saved = False
        self._kind: type[AnyCollector] | None = None
        self._is_made = False
        self._past_roots: list[Path] = []
        self._control: Control | None = None

    # -- the run -------------------------------------------------------------------------------

    def play(self) -> Played:
        """Play the script to its end, or to where it can't go on."""
        error: BaseException | None = None
        refusal: BaseException | None = None
        hang: str | None = None
        counts: tuple[int, ...] | None = None
        try:
            if not self.history.lives:
                self._begin_life(None)
            while self._steps and not self.images:
                self._do(self._steps.popleft())
            if not self.images:
                self._check_tasks()
                _, counts = self.life.weights()
        except Refused as over:
            refusal = over.error
        except Raised as over:
            error = over.error
        except Hangs as over:
            hang = over.why
        except WouldBlock:
            raise self._needs_threads() from None
        except LifeDied as died:
            error = died
        except NotAtRest:
            hang = self._stands(f"no rest within {self.deadline:g} s")
        finally:
            try:
                if hang is None:
                    self._tidy_up()
                self._end_life("end")
            finally:
                # Also where that is broken off, by Ctrl-C or a directory that can't be copied.
                if self._control is not None and not self._control.over:
                    self.life.end()
        self.history.rows = tuple(self.numbering.rows)
        return Played(
            history=self.history,
            counts=counts,
            missed=tuple(self.missed),
            error=error,
            refusal=refusal,
            hang=hang,
            gated=self.gated,
            rest=self.rest_name,
        )

    @property
    def control(self) -> Control:
        """Of the life that is played, for whoever has to end it from outside."""
        if self._control is None:
            raise LookupError("no life has begun")
        return self._control

    @property
    def kind(self) -> type[AnyCollector]:
        """The class of the collector, once one has been made."""
        if self._kind is None:
            raise LookupError("no collector has been made")
        return self._kind

    @property
    def made(self) -> bool:
        """Whether a collector has been made, in whatever life."""
        return self._kind is not None

    @property
    def activity(self) -> int:
        """Grows with everything that happens."""
        return 0 if self._control is None else self._control.activity + len(self.history.lives)

    def give_up(self) -> None:
        """End the life from outside, for good: what still runs in it is on its own."""
        if self._control is not None:
            self._control.end()

    def given_up(self, thread: threading.Thread) -> Played:
        """The run as it is, when a call in this thread has not returned within the deadline."""
        where = place_of(current_frames().get(thread.ident or 0))
        self.give_up()
        let_go(thread, self.control)
        # One that works on ends at once; one that waits for what never comes can't be ended.
        thread.join(0.1)
        self.overheard.left_behind = thread.is_alive()
        hang = f"a call does not return within {self.deadline:g} s: it is in {where}"
        self.history.rows = tuple(self.numbering.rows)
        return Played(self.history, None, tuple(self.missed), hang=hang, rest=self.rest_name)

    def _do(self, step: Step) -> None:
        if isinstance(step, HandOut):
            self._hand_out(step)
        elif isinstance(step, Finish | Fail):
            self._finish(step, failed=isinstance(step, Fail))
        elif isinstance(step, Train):
            self._train(step)
        elif isinstance(step, Save):
            saves = len(self.history.saves)
            self._save(step)
            self._saved = len(self.history.saves) > saves
        elif isinstance(step, Downgrade):
            self._downgrade()
        elif isinstance(step, Crash):
            if step.in_save is None:
                self._crash()
            else:
                self._die_in_save(step, step.in_save)
        elif isinstance(step, Stop):
            self._stop()
        elif isinstance(step, Restart):
            self._begin_life(step)
        elif isinstance(step, Drain):
            self._drain()

    # -- lives -----------------------------------------------------------------------------------

    def _begin_life(self, restart: Restart | None) -> None:
        if restart is not None:
            self.setup = self.setup.changed(restart.changes)
        number = len(self.history.lives) + 1
        self.record = LifeRecord(number, data_set=self.setup.data_set)
        self.history.lives.append(self.record)
        self._control = control = self._new_control()
        self.life = self._new_life(control)
        self.rest_name = self.life.rest_name
        self.progress = Progress(self.setup.group_size)
        rig = Rig(self.setup, control)
        if self.record.number > 1:
            self._past_roots = [self.life_root, *self._past_roots]
        self.life_root = self.root / f"life-{number}"
        self.life_root.mkdir(exist_ok=True)
        self.overheard.warned = False
        self._pulls_on = True
        self._is_made = False
        try:
            made = self.life.make(self.make, rig)
        except NurseryError as error:
            raise Raised(error) from None
        self._know(self._returned(made))
        self._is_made = True
        checkpoint = None if restart is None else self._choose(restart)
        self._take_origin(checkpoint)
        self._start(checkpoint, load_replay_buffer=restart is None or restart.buffer)
        self._rest()
        self.record.start_place = control.numbers.place
        self.record.start_version, self.record.start_counts = self.life.weights()
        self.record.start_buffer = self.progress.standing(0).buffered

    def _new_life(self, control: Control) -> Life:
        if self.life_kind != "local":
            return _KINDS[self.life_kind]()(
                control,
                self.deadline,
                self.root,
                self.overheard,
                loop=self.style.loop,
                everything=self.timeline.legacy,
            )
        if self.style.threaded:
            return ThreadedLife(control, self.deadline, loop=self.style.loop)
        return InlineLife(control)

    def _new_control(self) -> Control:
        return Control(self.setup, self.numbering, gated=self.gated, counted=self.counted)

    def _know(self, kind: type[Any]) -> None:
        """See that what was made is a collector, and of the style it is driven in."""
        if not issubclass(kind, Collector | SelfDrivenCollector):
            raise TypeError(
                f"the factory must make a Collector or a SelfDrivenCollector, not {kind.__name__}"
            )
        style = Style.of(kind)
        if (style.self_driven, style.loop) != (self.style.self_driven, self.style.loop):
            raise WrongStyle(style)
        self.overheard.pattern = re.compile(kind.legacy_warning)
        self._kind = kind

    def _needs_threads(self) -> WrongStyle:
        return WrongStyle(replace(self.style, threaded=True))

    def _choose(self, restart: Restart) -> Path | None:
        """The checkpoint that a restart goes back to."""
        published = [save for save in self.history.saves if save.published]
        self.record.load_buffer = restart.buffer
        if restart.source == "afresh":
            return None
        if restart.source == "latest":
            self.record.wanted = published[-1].number if published else None
            latest = self._call("latest", self.life_root, resume=True)
            return None if latest is None else self.life_root / self._name_of(latest)
        if restart.source >= len(published):
            self._miss(restart.text, "that checkpoint has not been written", throttled=False)
            return None
        save = published[restart.source]
        checkpoint = self.life_root / save.checkpoint
        newest = max(s.number for s in self.history.saves if s.checkpoint == save.checkpoint)
        if newest != save.number or not checkpoint.exists():
            self._miss(restart.text, "the collector has not kept that checkpoint", throttled=True)
            return None
        self.record.wanted = save.number
        return checkpoint

    def _take_origin(self, checkpoint: Path | None) -> None:
        """Note which save a life descends from, and what is settled in its weights."""
        if checkpoint is None:
            return
        name = self._name_of(checkpoint)
        save = self._save_named(name)
        self.record.origin = save.number
        standing = save.standing
        self.progress = Progress(self.setup.group_size, standing.done, standing.unsettled)
        lineage = self.history.lineage()
        failed = {o for life, until in lineage for o in life.ordinals("failed", until=until)}
        self.control.numbers.go_on_from(save, failed, load_buffer=self.record.load_buffer)
        self._note("restored", save.number)

    _chosen_by = "latest chose"
    """What a name of a checkpoint comes from, in errors."""

    _how_to_write = (
        "only a step of the script saves; a collector that saves by itself, in its stop() for one, "
        "is a SelfDrivenCollector, or passes that over in its latest()"
    )
    """What to do about one that no save has written."""

    def _save_named(self, name: str) -> SaveRecord:
        saves = [save for save in self.history.saves if save.checkpoint == self._own_name(name)]
        if saves:
            return saves[-1]
        # What a save that died has left goes by another name, if by any; and what was staged
        # when a save returned may have got its name since.
        others = [s for s in self.history.saves[-1:] if s.died_at] or [
            s for s in self.history.saves if not (self.life_root / s.checkpoint).exists()
        ]
        if not others or not (self.life_root / name).exists():
            raise Raised(
                LookupError(
                    f"{self._chosen_by} {name!r}, which no save of this run has written: "
                    + self._how_to_write
                )
            )
        if not others[-1].died_at:
            others[-1].checkpoint = name
        return others[-1]

    def _own_name(self, name: str) -> str:
        """The name that a save has given a checkpoint, if it is reached by a link."""
        real, root = os.path.realpath(self.life_root / name), os.path.realpath(self.life_root)
        known = {save.checkpoint for save in self.history.saves}
        below = os.path.relpath(real, root)
        return below if name not in known and below in known else name

    def _name_of(self, checkpoint: Path | str) -> str:
        # For a run that is restarted the root is where it was: a path that was written down names
        # the same checkpoint.
        with contextlib.suppress(TypeError):
            for root in (self.life_root, *self._past_roots):
                with contextlib.suppress(ValueError):
                    return Path(checkpoint).relative_to(root).as_posix()
        raise Raised(
            ValueError(f"{self._chosen_by} {checkpoint}, which is not below {self.life_root}")
        )

    def _end_life(self, how: str, next_root: Path | None = None) -> None:
        """End the life that is played, if it has not ended yet."""
        if self._control is None or self._control.over:
            return
        record, control = self.record, self.control
        self._commit()
        self._note({"crash": "crashed", "stop": "stopped", "end": "ended"}[how])
        self._commit()
        if next_root is not None:
            # What survives is this copy: whatever the old life still tidies up, it tidies
            # into a directory that nobody looks at.
            snapshot(self.life_root, next_root)
        record.ended = how
        record.final = self.progress.standing(control.numbers.place)
        record.warned = self.overheard.warned
        record.most_in_flight = control.most_in_flight
        record.doubtful = frozenset(control.numbers.doubtful)
        if control.first_place is not None:
            record.start_place = control.first_place
        record.left_behind = self.life.end()
        # What a thread makes of its life's end is not the next life's.
        self.overheard.forget()
        self.overheard.left_behind = self.overheard.left_behind or bool(record.left_behind)

    def _crash(self) -> None:
        self._end_suddenly(self._next_root())

    def _next_root(self) -> Path:
        return self.root / f"life-{self.record.number + 1}"

    def _end_suddenly(self, next_root: Path | None) -> None:
        if self._ends_more_than_the_rig():
            self._call("crash")
        self._end_life("crash", next_root)

    def _ends_more_than_the_rig(self) -> bool:
        own = (Collector.crash, SelfDrivenCollector.crash)
        return self._is_made and self.kind.crash not in own

    def _tidy_up(self) -> None:
        """After the last life: end what the rig cannot end, such as child processes."""
        if self._control is not None and not self._control.over and self._ends_more_than_the_rig():
            with contextlib.suppress(NotAtRest):
                self.life.call("crash")

    # -- what every step goes through --------------------------------------------------------

    def _call(self, method: str, *args: Any, resume: bool = False, **kwargs: Any) -> Any:
        """Call a method of the collector, and wait for it to return."""
        return self._returned(self.life.call(method, *args, **kwargs), resume=resume)

    def _returned(self, call: Call, *, resume: bool = False) -> Any:
        """What a call comes to, once it has returned."""
        self._until_returned(call)
        self._commit()
        self._check()
        if call.error is not None:
            refused = resume and self._is_refusal(call.error)
            raise (Refused if refused else Raised)(call.error)
        return call.result

    def _is_refusal(self, error: BaseException) -> bool:
        """Whether an exception at a restart is a refusal.

        It is where it is declared, where an older checkpoint was passed over, and where a file is
        torn: then it is enough that the run stops, and says so.
        """
        published = [save.number for save in self.history.saves if save.published]
        chosen = self.record.origin or self.record.wanted or 0
        torn = any(save.torn for save in self.history.saves)
        declared = isinstance(error, self.kind.refuses)
        return declared or torn or any(n < chosen for n in published)

    def _until_returned(self, call: Call) -> None:
        """A call that waits for answers gets them, the oldest first."""
        while not call.done:
            self._rest()
            if call.done:
                return
            self.held.add(call.what)
            if self._stands_at_loader():
                # Perhaps the gate is in the way; perhaps it waits for answers all the same.
                self.in_the_way.add(call.what)
            self._rest(conclude=True)
            if call.done:
                return
            waiting = self._in_flight()
            if waiting:
                self._release(waiting[0], failed=False)
            elif (self._stands_at_loader() and not self.patient) or self._in_vain(
                lambda: call.done
            ):
                raise Hangs(self._stands(f"{call.what} does not return"))

    def _in_vain(self, done: Callable[[], bool]) -> bool:
        """Wait for anything to move, before standing still is called a hang for good."""
        before, end = self.control.activity, time.monotonic() + min(self.deadline, PATIENCE)
        while time.monotonic() < end:
            if done() or self.control.activity != before:
                return False
            time.sleep(0.01)
        return True

    def _rest(self, *, conclude: bool = False) -> None:
        self.life.rest(conclude=conclude)
        self._commit()
        self._check()

    def _commit(self) -> None:
        """Write what happened since the last rest into the history, in its order."""
        with self.control.lock:
            records, self.control.records = self.control.records, []
        if not records:
            return
        for event in in_order(records):
            self.record.events.append(event)
            self.progress.apply(event)

    def _check(self) -> None:
        """End the run where the collector has raised somewhere outside of a call of ours."""
        if self.overheard.errors:
            raise Raised(self.overheard.errors[0])
        died = self.life.died()
        if died is not None:
            raise Raised(died)
        if self.control.runaway:
            raise Hangs(f"the collector goes on for ever: {self.control.runaway}")
        if not self.style.threaded and self.life.needs_threads:
            raise self._needs_threads()

    def _check_tasks(self) -> None:
        """At the end nobody can ask any more what became of a task."""
        errors = self.control.unseen_errors()
        if errors:
            raise Raised(errors[0])

    def _note(self, kind: str, number: int | None = None) -> None:
        self.control.note(kind, number=number)

    def _miss(self, step: str, why: str, *, throttled: bool) -> None:
        self.missed.append(Missed(step, why, throttled))

    def _asks_for_more(self) -> bool:
        """Whether the collector would take another batch: it is only the script that holds it."""
        return self._pulls_on if pulls(self.kind) else self._stands_at_loader()

    def _stands_at_loader(self) -> bool:
        return any(w.thread is not None for w in self.control.standing_at("loader"))

    def _in_flight(self) -> list[Generation]:
        with self.control.lock:
            flying = [g for group in self.control.in_flight.values() for g in group]
        return sorted(flying, key=lambda g: (g.ordinal, g.generation))

    def _stands(self, what: str) -> str:
        """A hang in words: what stands still, each prompt's state, what each thread waits for."""
        standing = self.progress.standing(self.control.numbers.place)
        states = [
            f"{name.replace('_', ' ')}: {', '.join(map(str, sorted(ordinals)))}"
            for name in ("handed_out", "in_flight", "held", "buffered", "failed")
            if (ordinals := getattr(standing, name))
        ]
        where = f"life {self.record.number}, the loader at {standing.place}"
        return "; ".join([f"{what} ({where})", *states, *self.life.whereabouts()])

    # -- hand_out, finish, fail ---------------------------------------------------------------

    def _hand_out(self, step: HandOut) -> None:
        until = step.until if isinstance(step.until, int) else None
        limit = self._drain_limit() if until is None else until
        self._let_out(limit, pauses=step.until is None)
        place = self.control.numbers.place
        short = until is not None and place < until
        ended = self.control.pass_ended or place >= self._drain_limit()
        if short or (step.until == "end" and not ended):
            self._rest(conclude=True)
            place = self.control.numbers.place
            if until is not None and place >= until:
                return
            asks = self._asks_for_more()
            why = "the loader has ended" if self.control.pass_ended else "it does not ask for more"
            self._miss(step.text, f"the loader's place is {place}: {why}", throttled=not asks)

    def _let_out(self, limit: float, *, pauses: bool = True) -> None:
        """Let the loader hand out until its place reaches the limit, or nobody asks.

        Args:
            limit: the place.
            pauses: whether it is enough that a collector that is pulled wants nothing more now,
                though it has gone on: such as between two passes.
        """
        control = self.control
        if pulls(self.kind):
            control.place_limit = NO_LIMIT
            # Whoever calls it stands in the save meanwhile.
            while control.numbers.place < limit and not control.standing_at("point"):
                before = len(self.record.events) + control.batches
                took = self._call("pull", resume=self._still_resumes())
                # Whatever it says: where nothing has happened, nothing would the next time.
                went_on = len(self.record.events) + control.batches > before
                self._pulls_on = took and went_on
                if not went_on or (pauses and not took):
                    break
            return
        control.place_limit = limit if self.gated else NO_LIMIT
        control.open_gates()
        self._rest()
        if self.gated:
            control.place_limit = min(limit, control.numbers.place)

    def _still_resumes(self) -> bool:
        """Whether the life was restored, and has not come to anything since: it may yet refuse."""
        return self.record.origin is not None and not self.record.ordinals("handed_out")

    def _finish(self, step: Finish | Fail, *, failed: bool) -> None:
        for ordinal, generation in self._targets(step.which):
            chosen = self._chosen(ordinal, generation)
            if not chosen and self.progress.where(ordinal) in (None, "handed_out"):
                self._rest(conclude=True)
                chosen = self._chosen(ordinal, generation)
            if not chosen:
                self._note_not_in_flight(step.text, ordinal)
            whole = generation is None and not failed
            for _ in range(self.setup.group_size if whole else 1):
                for begun in chosen:
                    if not begun.ended:
                        self._release(begun, failed=failed)
                # A group may be answered one generation after the other.
                chosen = self._chosen(ordinal, generation)

    def _chosen(self, ordinal: int, generation: int | None) -> list[Generation]:
        with self.control.lock:
            flying = list(self.control.in_flight.get(ordinal, ()))
        flying = [g for g in flying if generation in (None, g.generation)]
        return sorted(flying, key=lambda g: g.generation)

    def _note_not_in_flight(self, step: str, ordinal: int) -> None:
        where = self.progress.where(ordinal)
        if where not in (None, "handed_out"):
            return  # it has ended already, in this life or in the weights it started from
        if ordinal >= self.setup.total:
            why = f"does not exist: there are {self.setup.total}"
            self._miss(step, f"prompt {ordinal} {why}", throttled=False)
            return
        why = "has not been handed out" if where is None else "waits to be dispatched"
        self._miss(step, f"prompt {ordinal} {why}", throttled=not self._asks_for_more())

    def _targets(self, which: Ordinals | Position) -> Iterable[tuple[int, int | None]]:
        if isinstance(which, Ordinals):
            return [(target.ordinal, target.generation) for target in which.targets]
        flying = sorted({g.ordinal for g in self._in_flight()})
        if which.kind == "every":
            assert isinstance(which.count, int)
            chosen = flying[:: which.count]
        elif which.kind == "all":
            chosen = flying
        elif which.count == "hand_out":
            batch = self.setup.batch_size
            edge = min(flying, default=0) if which.kind == "oldest" else max(flying, default=0)
            chosen = [ordinal for ordinal in flying if ordinal // batch == edge // batch]
        else:
            assert isinstance(which.count, int)
            chosen = flying[: which.count] if which.kind == "oldest" else flying[-which.count :]
        if not chosen:
            self._miss(which.text, "nothing is in flight", throttled=not self._asks_for_more())
        return [(ordinal, None) for ordinal in chosen]

    def _release(self, begun: Generation, *, failed: bool) -> None:
        """One generation ends; everything that follows from it happens."""
        try:
            self.control.end_generation(begun, failed=failed)
        except (SystemExit, KeyboardInterrupt) as error:
            if self.style.threaded or isinstance(error, LifeEnded):
                raise
            # Of a callback: its future lets these through, and logs the others.
            raise Raised(error) from None
        self._rest()
        held = self.progress.held()
        if held:
            names = {f"prompt {ordinal} of life {self.record.number}" for ordinal in held}
            self.held |= names
            if self._stands_at_loader():
                self.in_the_way |= names

    # -- train, save, stop, drain ----------------------------------------------------------------

    def _start(self, checkpoint: Path | None, *, load_replay_buffer: bool) -> None:
        if checkpoint is not None:
            self._call("restore", checkpoint, load_replay_buffer=load_replay_buffer, resume=True)
        self._call("start", resume=checkpoint is not None)
        if isinstance(self.life, InlineLife) and self.life.has_threads():
            raise self._needs_threads()

    def _train(self, step: Train) -> None:
        for number in range(step.steps):
            if not self._train_once():
                buffered = len(self.progress.standing(0).buffered)
                held = self.progress.held()
                why = f"step {number + 1} of {step.steps} has not enough: {buffered} buffered"
                if held:
                    why += f", {len(held)} finished and held by the collector"
                by_rule = bool(held) or self.kind.order == "stream"
                throttled = by_rule or bool(self.missed and self.missed[-1].throttled)
                self._miss(step.text, why, throttled=throttled)
                return

    def _train_once(self) -> bool:
        before = self.control.steps_taken
        self._call("train_step")
        self._rest()
        # Whatever it says: a step is one that went into the weights.
        return self.control.steps_taken > before

    def _save(self, step: Save) -> None:
        if step.race is not None and not self.style.threaded:
            self.past_the_end = True
            self._miss(step.text, "single-threaded: nothing comes between", throttled=True)
            step = Save()
        before = self._entries()
        save = self._begin_save()
        if step.race is None:
            self._call("save", self.life_root, save.weight_version)
        else:
            self._save_raced(step, step.race, save)
        self._end_save(save, before)

    def _save_raced(self, step: Save, race: Race, save: SaveRecord) -> None:
        """A save that stops at one of its points, while other things happen."""
        assert race.at is not None  # of those that go through all, each is played by itself
        points = self.life.points(self.life_root, race.at, None)
        with points.watched():
            call = self.life.call("save", self.life_root, save.weight_version, points=points)
            while not (points.stopped or call.done):
                # It may only be asleep for a while, and go on to the point then.
                self._rest(conclude=True)
                waiting = self._in_flight()
                if points.stopped or call.done or not waiting:
                    break
                self._release(waiting[0], failed=False)
            self._race_at(points, race, save)
            self._returned(call)
        self._after_race(points, step, save)

    def _race_at(self, points: SavePoints, race: Race, save: SaveRecord) -> None:
        """What a race does while the save stands at its point, if it came to it."""
        self.past_the_end = not points.stopped
        if points.stopped:
            save.raced_at = points.stopped_at
            for inner in race.steps:
                self._race(inner, save)
        points.go_on()

    def _after_race(self, points: SavePoints, step: Save, save: SaveRecord) -> None:
        save.unseen = points.unseen
        if self.past_the_end:
            many = f"only {len(points.seen)} points" if points.seen else "no point"
            self._miss(step.text, f"the save has {many}", throttled=True)

    def _race(self, step: Step, save: SaveRecord) -> None:
        """A step inside of a save: a lock may rightly keep it out until the save has ended."""
        missed, in_the_way, held = list(self.missed), set(self.in_the_way), self.progress.held()
        events = len(self.record.events)
        self._do(step)
        kept_out = len(self.missed) > len(missed) or self.progress.held() > held
        if kept_out or len(self.record.events) == events:
            save.kept_out += (step.text,)
        else:
            save.raced += (step.text,)
        # The save is what held it, neither the script nor the loader's gate.
        self.missed, self.in_the_way = missed, in_the_way

    def _die_in_save(self, step: Crash, death: Death) -> None:
        """A save that dies before one of its file operations: the next life finds what was done."""
        images = self.life.images(self.life_root, self.root, self._next_root().name, death)
        before = self._entries()
        save = self._save_watched(step, images)
        if save is not None:
            save.unseen = images.unseen
            if save.checkpoint.split("/")[0] in before:
                save.overwrote = save.checkpoint
        if not images.taken:
            self.past_the_end = save is None or (death.at or 1) > len(images.seen)
            if save is not None:
                self._miss(step.text, _no_image(images, death), throttled=True)
            self._crash()
            return
        self.past_the_end = False
        self._end_suddenly(None)
        if death.at is None or death.torn == "each":
            self.images = images.taken
        else:
            self._go_on_from(images.taken[0])

    def branch(self, image: Image) -> Play:
        """The run as it goes on from one of its images."""
        other = copy.copy(self)
        other.timeline = self.timeline.at(image.at, image.torn)
        other.images, other._steps = [], self._steps.copy()
        other.numbering = self.numbering.branch()
        other.history = self.history.branch(replace(self.history.saves[-1]))
        other.missed = list(self.missed)
        other.in_the_way, other.held = set(self.in_the_way), set(self.held)
        other._go_on_from(image)
        return other

    def _go_on_from(self, image: Image) -> None:
        """What survives is this image of the checkpoint root."""
        self.root = image.path
        save = self.history.saves[-1]
        save.died_at = image.before
        if image.torn is not None:
            save.torn = f"{image.cut} cut to {'nothing' if image.torn == 'empty' else 'half'}"
        # Written to its end, and torn, it still is what a restart is expected to find.
        save.published = not image.before
        if image.before and save.overwrote:
            save.checkpoint = ""

    def _save_watched(self, step: Step, images: Images) -> SaveRecord | None:
        """A save to its end, while its file operations are seen; None when none came."""
        before = self._entries()
        save = self._begin_save()
        with images.watched():
            self._call("save", self.life_root, save.weight_version)
        if self.life.killed:
            self._name_dead(save, before)
        else:
            self._end_save(save, before)
        return save

    def _name_dead(self, save: SaveRecord, before: set[str]) -> None:
        """What a save has been writing that nobody can be asked about any more."""
        new = sorted(self._entries() - before)
        older = [s.checkpoint for s in self.history.saves[:-1] if s.published]
        save.checkpoint = new[-1] if new else (older or [""])[-1]

    def _begin_save(self) -> SaveRecord:
        version, counts = self.life.weights()
        save = SaveRecord(
            number=len(self.history.saves) + 1,
            life=self.record.number,
            position=len(self.record.events),
            standing=self.progress.standing(self.control.numbers.place),
            weight_version=version,
            counts=counts,
            answers=self.control.numbers.answers(),
        )
        self.history.saves.append(save)
        self._note("saving", save.number)
        self._commit()
        return save

    def _end_save(self, save: SaveRecord, before: set[str]) -> None:
        newest = self._call("latest", self.life_root)
        name = None if newest is None else self._name_of(newest)
        new = sorted(self._entries() - before)
        if name is not None and (not new or name.split("/")[0] in new):
            # Without a new entry it was written in the place of an older one.
            save.checkpoint, save.published = name, True
        elif new:
            save.checkpoint, save.published = new[-1], True
        else:
            why = (
                "nothing was there below the checkpoint root when save returned: it has to return "
                "when the checkpoint is complete"
            )
            self._miss(Save().text, why, throttled=False)
        save.end = len(self.record.events)
        self._note("saved", save.number)
        self._commit()

    def _entries(self) -> set[str]:
        return set(os.listdir(self.life_root))

    def _downgrade(self) -> None:
        if not self._saved:
            self._miss(Downgrade().text, "there was no save", throttled=True)
            return
        save = self.history.saves[-1]
        if not can_downgrade(self.kind):
            self._miss(Downgrade().text, "the collector has no downgrade", throttled=True)
            return
        if not save.published:
            return
        self._call("downgrade", self.life_root / save.checkpoint)
        save.legacy = True

    def _stop(self) -> None:
        control = self.control
        call = self.life.stop()
        while not call.done and self._stands_at_loader():
            # A thread that is waited for gets its batch, and with it sees that it should end.
            control.place_limit = control.numbers.place + 1
            control.open_gates()
            self._rest()
        self._returned(call)
        self._end_life("stop", self._next_root())

    def _drain(self) -> None:
        control = self.control
        while True:
            events = len(self.record.events)
            self._let_out(self._drain_limit())
            while flying := self._in_flight():
                for begun in flying:
                    if not begun.ended:
                        self._release(begun, failed=False)
            while self._train_once():
                pass
            if len(self.record.events) > events:
                continue
            self._rest(conclude=True)
            if len(self.record.events) > events:
                continue
            at_the_end = control.pass_ended or control.numbers.place >= self.setup.total
            if at_the_end and not control.data_over and not self._stands_at_loader():
                # The loader has no more, and nobody asks again.
                control.data_over = True
                continue
            break
        self._check_drained()

    def _drain_limit(self) -> float:
        endless = self.kind.stream == "endless"
        return self.setup.total if endless else NO_LIMIT

    def _check_drained(self) -> None:
        """A life that stopped asking, while the loader has more, and is still there: it hangs."""
        if pulls(self.kind):
            return  # it has been asked, and has said that there is nothing
        place = self.control.numbers.place
        end = self.setup.total if self.reference is None else len(self.reference.rows)
        idle_by_rule = self.reference is None and self.kind.structural
        if place < end and not self.control.pass_ended and self.life.alive() and not idle_by_rule:
            self._hang_or_drain("the collector stopped asking for prompts")

    def _hang_or_drain(self, what: str) -> None:
        if self._in_vain(lambda: False):
            raise Hangs(self._stands(what))
        self._drain()


def _in_ray(name: str) -> type[ProcessLife]:
    # Imported where it is used: Ray is an extra.
    from pytest_resume_audit.lives import ray

    kind: type[ProcessLife] = getattr(ray, name)
    return kind


def _in_a_process() -> type[ProcessLife]:
    return ProcessLife if hasattr(os, "fork") and has_proc() else SpawnedLife


_KINDS: dict[LifeKind, Callable[[], type[ProcessLife]]] = {
    "process": _in_a_process,
    "ray": lambda: _in_ray("RayLife"),
    "ray-driver": lambda: _in_ray("RayDriverLife"),
}
"""The lives that are not objects of this process."""


def _no_image(images: Images, death: Death) -> str:
    """Why a save could not die where it should."""
    if not images.seen:
        return "the save has no file operation"
    if death.torn is not None:
        return f"of the {len(images.seen)} file operations of the save, none leaves a file to tear"
    return f"the save has only {len(images.seen)} file operations"
