"""The lives of a run by what its ledgers say, and what each has gone on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_resume_audit.real_runs.database import Database
from pytest_resume_audit.real_runs.events import Events
from pytest_resume_audit.real_runs.lineage import Life, Process, Save, find_save, gather
from pytest_resume_audit.real_runs.report import RunReport
from pytest_resume_audit.real_runs.sources import LedgerFile, UnreadableSource

FOREVER = (1 << 63) - 1


class Unknowable(Exception):
    """The lineage can't be known, so nothing can; says why."""


def find(
    database: Database,
    events: Events,
    ledgers: Sequence[LedgerFile],
    restarts: Sequence[int] | None,
    report: RunReport,
) -> list[Life]:
    """Find the lives, one after the other, each with its cause.

    Args:
        database: with table ``deed``.
        events: that have been read.
        ledgers: their files.
        restarts: the step that each restart has gone on from, 0 for afresh; None: as they say.
        report: is told how many there are, and what is remarkable or in doubt.

    Raises:
        Unknowable: when they can't be told from one another, or not what one has gone on from.
        UnreadableSource: when ``restarts`` doesn't fit.
    """
    finder = _Finder(database, ledgers, restarts, report)
    finder.find_lives(events.times())
    finder.find_causes()
    return finder.lives


class _Finder:
    def __init__(
        self,
        database: Database,
        ledgers: Sequence[LedgerFile],
        restarts: Sequence[int] | None,
        report: RunReport,
    ) -> None:
        self.db = database
        self.ledgers = ledgers
        self.restarts = restarts
        self.report = report
        self.lives: list[Life] = []

    def find_lives(self, times: dict[int, tuple[int, int]]) -> None:
        headers = [ledger.header for ledger in self.ledgers]
        processes = [
            Process(file, headers[file]["id"], headers[file]["parent"], first, last)
            for file, (first, last) in times.items()
        ]
        if not processes:
            raise Unknowable("nothing has happened yet, by these ledgers")
        rare = self.db.rows(
            "SELECT t, file, event, text FROM deed "
            "WHERE event IN ('saving', 'saved', 'restored', 'ended') ORDER BY t, rowid"
        )
        for group in gather(processes):
            self._look_for_two_runs(group, rare)
            self._divide(group, rare)
        for life, after in zip(self.lives, self.lives[1:], strict=False):
            life.stop = after.start
        self.report.lives = len(self.lives)
        for t, file, event, text in rare:
            life = next(life for life in reversed(self.lives) if life.start <= t)
            if event == "saving":
                life.saves.append(Save(life.number, text, t, file))
            elif event == "saved":
                begun = [s for s in life.saves if (s.file, s.name) == (file, text)]
                if not begun or begun[-1].complete:
                    life.saves.append(Save(life.number, text, t, file))
                life.saves[-1 if not begun else life.saves.index(begun[-1])].complete = True
            elif event == "ended":
                life.ended = True

    def _look_for_two_runs(self, group: list[Process], rare: list[tuple[Any, ...]]) -> None:
        files = [process.file for process in group]
        saving = {file for _, file, event, _ in rare if event == "saving" and file in files}
        if len(saving) < 2:
            return
        both = self.db.rows(
            "SELECT DISTINCT file FROM deed WHERE event = 'handed_out' "
            f"AND file IN ({', '.join(map(str, saving))}) ORDER BY file"
        )
        if len(both) > 1:
            one, two = (self.ledgers[file].path.name for (file,) in both[:2])
            raise Unknowable(
                f"{one} and {two} were written at the same time, and both hand out prompts and "
                "save: give each run RESUME_AUDIT_RUN or a directory of its own; of one run, let "
                "one rank report its saves"
            )

    def _divide(self, group: list[Process], rare: list[tuple[Any, ...]]) -> None:
        """A process may go back to a checkpoint without being started again."""
        files = [process.file for process in group]
        among = ", ".join(map(str, files))
        life = Life(len(self.lives) + 1, group[0].first, FOREVER, files)
        self.lives.append(life)
        at_work = self._at_work(among, life.start)
        gone_back: set[int] = set()
        for t, file, event, text in rare:
            if event != "restored" or file not in files:
                continue
            begun = at_work.get(file, FOREVER) < t or file in gone_back
            others = min(at_work.values(), default=FOREVER) < t
            if begun or (others and text != life.restored):
                life = Life(len(self.lives) + 1, t, FOREVER, files)
                self.lives.append(life)
                at_work = self._at_work(among, t)
                gone_back = set()
            gone_back.add(file)
            life.restored = text

    def _at_work(self, files: str, since: int) -> dict[int, int]:
        return dict(
            self.db.rows(
                "SELECT file, min(t) FROM deed WHERE event IN ('handed_out', 'trained') "
                f"AND file IN ({files}) AND t >= ? GROUP BY file",
                since,
            )
        )

    # -- what each has gone on from ----------------------------------------------------------------

    def find_causes(self) -> None:
        self._find_steps()
        if self.restarts is not None and len(self.restarts) != len(self.lives) - 1:
            raise UnreadableSource(
                f"there are {len(self.lives)} lives, so {len(self.lives) - 1} restarts, and "
                f"--restarts names {len(self.restarts)}"
            )
        first = self.lives[0]
        if first.restored is not None:
            self.report.doubts.append(
                f"the first life has gone on from {first.restored}, which none of these ledgers "
                "has saved: name the ledgers of the lives before as well"
            )
        for life in self.lives[1:]:
            before = [save for one in self.lives[: life.number - 1] for save in one.saves]
            if self.restarts is not None:
                life.cause = self._by_step(life, self.restarts[life.number - 2], before)
            elif life.restored is not None:
                life.cause = find_save(life.restored, before)
                if life.cause is None:
                    raise Unknowable(
                        f"life {life.number} has gone on from {life.restored}, which none of these "
                        "ledgers has saved: name the missing ones as well, or say from which steps "
                        "the lives have gone on with --restarts"
                    )
                if not life.cause.complete:
                    self.report.notes.append(
                        f"life {life.number} has gone on from {life.cause.name}, of which no "
                        "ledger says that it was complete"
                    )
            else:
                self._believe_it_is_afresh(life, before)

    def _find_steps(self) -> None:
        """The step of each save: the last that its process, or else any, has trained by then."""
        for life in self.lives:
            for save in life.saves:
                by_it, by_any = self.db.row(
                    "SELECT max(step) FILTER (file = ?), max(step) FROM deed "
                    "WHERE event = 'trained' AND t BETWEEN ? AND ?",
                    save.file,
                    life.start,
                    save.time,
                )
                save.step = by_any if by_it is None else by_it

    def _by_step(self, life: Life, step: int, saves: list[Save]) -> Save | None:
        if step == 0:
            return None
        found = [save for save in saves if save.step == step]
        if not found:
            steps = sorted({save.step for save in saves if save.step is not None})
            raise UnreadableSource(
                f"--restarts: before life {life.number} nothing was saved at step {step}; there "
                f"are saves at {', '.join(map(str, steps)) or 'no known step'}"
            )
        return found[-1]

    def _believe_it_is_afresh(self, life: Life, saves: list[Save]) -> None:
        """A life that says nothing of a checkpoint: only its steps tell whether it had one."""
        question = "SELECT min(step) FROM deed WHERE event = 'trained' AND t >= ? AND t < ?"
        first = self.db.value(question, self.lives[0].start, self.lives[0].stop)
        step = self.db.value(question, life.start, life.stop)
        if saves and (step is None or first is None or step > first):
            begins = "" if step is None else f", and its first step is {step}"
            raise Unknowable(
                f"life {life.number} doesn't say what it has gone on from{begins}: report "
                "recorder.restored(checkpoint), or say from which steps the lives have gone on "
                "with --restarts (0: afresh)"
            )
        before = self.lives[life.number - 2]
        if before.ended:
            raise Unknowable(
                f"life {before.number} has said that the training is over, and life {life.number} "
                "begins afresh: of two runs, ask about the files of one, and give each "
                "RESUME_AUDIT_RUN or a directory of its own; of one run, say from which steps the "
                "lives have gone on with --restarts (0: afresh)"
            )
        self.report.notes.append(
            f"life {life.number} has begun afresh, and all before it is rolled back; if it is "
            "another run, give each one RESUME_AUDIT_RUN or a directory of its own"
        )
