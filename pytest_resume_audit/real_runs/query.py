"""What the ledgers of a run say: which prompts its weights have missed or seen twice, and why.

The weights are the truth: what counts is the lineage of the last life, each life up to the save
that the next one has gone on from. A prompt is skipped when the loader has come past it in there
and no step has trained it, unless it is still out in the last life. Where the loader has gone on
after a restart is found by laying what it hands out then beside what it handed out before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_resume_audit.real_runs import lives, logs
from pytest_resume_audit.real_runs.database import Database
from pytest_resume_audit.real_runs.events import Events
from pytest_resume_audit.real_runs.lineage import Life, Piece, Save, lineage
from pytest_resume_audit.real_runs.report import LISTED, Loss, Restart, RunReport
from pytest_resume_audit.real_runs.sources import LedgerFile, Sources, UnreadableSource, runs

_HEAD = 256
"""Prompts of a life's beginning by which its place in the stream is found."""


@dataclass
class Part:
    """What a life has handed out, as a part of the stream of the run.

    Args:
        life: its number.
        stream: of the loader, where several ranks have one each.
        start: the ordinal of the first prompt of it.
        begin: how many of its first prompts were handed out by a life before.
        end: how many of its prompts belong to the stream.
    """

    life: int
    stream: int
    start: int
    begin: int
    end: int


def judge(
    database: Database,
    sources: Sources,
    *,
    restarts: Sequence[int] | None = None,
    prompts: int | None = None,
    complete: bool = False,
) -> RunReport:
    """Judge a run by its ledgers.

    Args:
        database: to do it in.
        sources: with the ledgers.
        restarts: the step that each restart has gone on from, 0 for afresh; by default what the
            ledgers say.
        prompts: how many rows the run was to train by now, from row 0 on.
        complete: whether the run has ended. Then, and with ``prompts``, what is still out counts
            as skipped.

    Raises:
        UnreadableSource: for two runs, or when ``restarts`` doesn't fit.
    """
    return _Query(database, sources, restarts, prompts, complete).judge()


class _Query:
    def __init__(
        self,
        database: Database,
        sources: Sources,
        restarts: Sequence[int] | None,
        prompts: int | None,
        complete: bool,
    ) -> None:
        self.ended = complete or prompts is not None
        self.db = database
        self.ledgers: list[LedgerFile] = sources.ledgers
        self.events = Events(database, sources.ledgers)
        self.restarts = restarts
        self.prompts = prompts
        self.report = RunReport(notes=[*sources.notes], doubts=[*sources.doubts])
        self.lives: list[Life] = []
        self.pieces: list[Piece] = []
        self.parts: list[Part] = []
        self.passes = 0
        self.named = False
        self.found = len(sources.doubts)
        # Whether every line is there that could speak for a prompt.
        self.whole = not sources.doubts

    def judge(self) -> RunReport:
        names = runs(self.ledgers)
        if len(names) > 1:
            raise UnreadableSource(
                f"these are ledgers of several runs ({', '.join(names)}): ask about one with "
                f"--run {names[0]}"
            )
        if not self.ledgers:
            if not self.report.doubts:
                self.report.doubts.append("there is nothing in it")
            return self.report
        self.events.read()
        self.db.doing("finding the lives")
        try:
            self.lives = lives.find(self.db, self.events, self.ledgers, self.restarts, self.report)
        except lives.Unknowable as error:
            self.report.doubts.append(str(error))
            self._read_answers()
            return self.report
        self.ended |= self.lives[-1].ended
        # What a first life hands out that has gone on from another may have been trained by then.
        self.whole &= self.lives[0].restored is None
        self.pieces = lineage(self.lives[-1], self.lives)
        self._sort_out()
        if self.db.value("SELECT count(*) FROM deed WHERE event = 'handed_out'"):
            self._follow_loader()
            self._count()
            self._explain()
        else:
            self._read_answers()
            self._count_without_loader()
        self._waste()
        if not self.whole:
            # What has no line may be in the lines that are not there.
            report = self.report
            report.skipped = report.open = report.trained = report.failed = report.bias = None
            report.duplicated, report.dropped = report.duplicated or None, report.dropped or None
        return self.report

    def _read_answers(self, *, missing: bool = False, each: bool = False) -> None:
        self.events.read_answers(missing=missing, each=each)
        self.report.events = self.events.many()
        doubts = []
        for file, many in self.events.unreadable().items():
            more = many - self.ledgers[file].torn
            if more:
                self.whole = False
                doubts.append(f"{self.ledgers[file].path}: lines that can't be read: {more}")
        self.report.doubts[self.found : self.found] = doubts

    # -- what is in the weights --------------------------------------------------------------------

    def _sort_out(self) -> None:
        """Which trainings are in the lineage, and which restart has taken the others back."""
        self.db.doing("sorting out what was rolled back")
        until = {piece.life.number: piece.until for piece in self.pieces}
        segments: list[tuple[Any, ...]] = []
        bands: list[tuple[Any, ...]] = []
        for life in self.lives:
            cut = until.get(life.number)
            chained = life.number in until
            segments += [
                (
                    life.number,
                    file,
                    life.start,
                    life.stop,
                    chained,
                    cut.time if cut else None,
                    cut.step if cut else None,
                )
                for file in life.files
            ]
            for later in self.lives[life.number :]:
                kept = {p.life.number: p.until for p in lineage(later, self.lives)}
                save = kept.get(life.number)
                if life.number not in kept:
                    bands.append((life.number, later.number, life.start - 1, None))
                elif save is not None:
                    bands.append((life.number, later.number, save.time, save.step))
        self.db.fill(
            "segment",
            "life INTEGER, file INTEGER, start BIGINT, stop BIGINT, chained BOOLEAN, "
            "cut_time BIGINT, cut_step BIGINT",
            segments,
        )
        self.db.fill(
            "band", "life INTEGER, restart INTEGER, cut_time BIGINT, cut_step BIGINT", bands
        )
        # A rank may report a step before another reports the save behind the one before.
        self.db.rows(
            "CREATE TABLE step AS SELECT s.life, l.file, l.t, l.step, l.rows, l.generations, "
            "dense_rank() OVER (ORDER BY s.life, l.step, if(l.step IS NULL, l.t, NULL), "
            "if(l.step IS NULL, l.file, NULL)) AS number, "
            "s.chained AND (s.cut_time IS NULL OR CASE WHEN l.step IS NULL OR s.cut_step IS NULL "
            "THEN l.t <= s.cut_time ELSE l.step <= s.cut_step END) AS kept FROM deed l "
            "JOIN segment s ON s.file = l.file AND l.t >= s.start AND l.t < s.stop "
            "WHERE l.event = 'trained'"
        )
        # Where groups come as so many rows they are made one here; to look for them takes longer.
        groups = self.db.value(
            "SELECT coalesce(bool_or(len(list_distinct(rows)) < len(rows)), false) FROM "
            "(SELECT rows FROM step WHERE generations IS NULL LIMIT 100)"
        )
        rows = "if(generations IS NULL, list_distinct(rows), rows)" if groups else "rows"
        self.db.rows(
            f"CREATE TABLE trained AS SELECT life, file, t, step, number, unnest({rows}) AS row, "
            "unnest(generations) AS generation, kept FROM step"
        )
        parts, wholes = self.db.row(
            "SELECT max(generation) + 1, count(*) FILTER (generation IS NULL) FROM trained"
        )
        self.named = bool(parts)
        # An answer that is named comes as often as it says; rows without are a group, in a step.
        once = "count(DISTINCT number) FILTER (generation IS NULL) + count(generation)"
        # Some of a group is not the group; a row without a place stands for all of it.
        least = f"if(count(*) = {parts}, min(n), 0)" if parts and not wholes else "max(n)"
        self.db.rows(
            f"CREATE VIEW weight AS SELECT row, max(n) AS most, {least} AS least FROM (SELECT row, "
            f"{once} AS n FROM trained WHERE kept GROUP BY row, generation) GROUP BY row"
        )
        for life in self.lives[1:]:
            self._describe_restart(life)

    def _describe_restart(self, life: Life) -> None:
        save = life.cause
        before = self.lives[: life.number - 1]
        last = self.events.last_before(life.start)
        steps, trainings, reached = self.db.row(
            "SELECT count(DISTINCT (life, step)) FILTER (step IS NOT NULL), count(DISTINCT "
            "(life, step, row, if(step IS NULL, t, NULL))), max(step) FROM (SELECT t.life, t.step, "
            "t.row, t.t, min(b.restart) AS restart FROM trained t JOIN band b ON b.life = t.life "
            "AND CASE WHEN t.step IS NULL OR b.cut_step IS NULL THEN t.t > b.cut_time "
            "ELSE t.step > b.cut_step END WHERE NOT t.kept GROUP BY ALL) WHERE restart = ?",
            life.number,
        )
        self.report.restarts.append(
            Restart(
                life=life.number,
                checkpoint=save.name if save else None,
                of_life=save.life if save else None,
                step=save.step if save else None,
                reached=reached if reached is not None else save.step if save else None,
                steps=steps,
                trainings=trainings,
                seconds=(last - (save.time if save else before[0].start)) / 1e9,
            )
        )

    # -- where the loader was ----------------------------------------------------------------------

    def _follow_loader(self) -> None:
        self.db.doing("following the loader")
        self.db.rows(
            "CREATE VIEW hand AS SELECT s.life, l.file, l.t, l.rows, l.rowid AS id "
            "FROM deed l JOIN segment s ON s.file = l.file AND l.t >= s.start AND l.t < s.stop "
            "WHERE l.event = 'handed_out'"
        )
        streams = []
        for piece in self.pieces:
            files = [
                file
                for (file,) in self.db.rows(
                    "SELECT file FROM hand WHERE life = ? GROUP BY file ORDER BY min(t)",
                    piece.life.number,
                )
            ]
            ranks = [self.ledgers[file].header.get("rank") for file in files]
            alike = len(files) == 1 or None in ranks or len({*ranks}) < len(ranks)
            for index, (file, rank) in enumerate(zip(files, ranks, strict=True)):
                streams.append((piece.life.number, file, index if alike else rank))
        self.db.fill("stream", "life INTEGER, file INTEGER, stream INTEGER", streams)
        self.db.rows(
            "CREATE TABLE batch AS SELECT h.life, s.stream, h.t, h.rows, sum(len(h.rows)) OVER "
            "(PARTITION BY h.life, s.stream ORDER BY h.t, h.id ROWS UNBOUNDED PRECEDING) "
            "- len(h.rows) AS k FROM hand h JOIN stream s ON s.life = h.life AND s.file = h.file"
        )
        for stream in sorted({one for *_, one in streams}):
            self._lay_side_by_side(stream)
        self.db.fill(
            "part",
            'life INTEGER, stream INTEGER, start BIGINT, "begin" BIGINT, "end" BIGINT',
            [(p.life, p.stream, p.start, p.begin, p.end) for p in self.parts],
        )
        self.db.rows(
            "CREATE VIEW place AS SELECT b.life, b.stream, b.t, b.row, p.start + b.k AS ordinal, "
            'b.k >= p."begin" AND b.k < p."end" AS counts FROM (SELECT life, stream, t, '
            "unnest(rows) AS row, k + generate_subscripts(rows, 1) - 1 AS k FROM batch) b "
            "JOIN part p ON p.life = b.life AND p.stream = b.stream"
        )

    def _lay_side_by_side(self, stream: int) -> None:
        """The parts of one loader's stream, life by life."""
        before: Piece | None = None
        start = covered = 0
        for piece in self.pieces:
            life = piece.life.number
            many = self.db.value(
                "SELECT coalesce(sum(len(rows)), 0) FROM batch WHERE life = ? AND stream = ?",
                life,
                stream,
            )
            restart = next((one for one in self.report.restarts if one.life == life), None)
            if not many:
                continue  # it has gone no further: the next one is laid beside the one before
            if before is not None:
                assert before.until is not None
                place = self._handed_out(before.life.number, stream, before.until.time)
                at = self._find_place(before.life.number, life, stream, place, start)
                if at is None:
                    self.whole = False
                    self.report.doubts.append(
                        f"life {life} hands out prompts in another order than life "
                        f"{before.life.number}: where its loader has gone on can't be known"
                    )
                    at = place
                part = self.parts[-1]
                if at > place:
                    # The loader has gone on behind what only a rolled back part has handed out.
                    part.end = max(part.end, at)
                    covered = max(covered, start + at)
                if restart is not None and restart.place is None:
                    restart.place, restart.goes_on_at = start + place, start + at
                start += at
            end = many if piece.until is None else self._handed_out(life, stream, piece.until.time)
            self.parts.append(Part(life, stream, start, max(0, covered - start), end))
            covered = max(covered, start + end)
            before = piece

    def _handed_out(self, life: int, stream: int, until: int) -> int:
        many: int = self.db.value(
            "SELECT coalesce(sum(len(rows)), 0) FROM batch "
            "WHERE life = ? AND stream = ? AND t <= ?",
            life,
            stream,
            until,
        )
        return many

    def _find_place(
        self, before: int, life: int, stream: int, place: int, start: int
    ) -> int | None:
        """How many prompts of the life before come before the first one of this life.

        Fewer than none, if it goes back to what an earlier one has handed out.
        """
        flat = (
            "SELECT unnest(rows) AS row, k + generate_subscripts(rows, 1) - 1 AS k FROM batch "
            f"WHERE stream = {stream} AND life = "
        )
        head = f"(SELECT * FROM ({flat}{life} AND k < {_HEAD}) WHERE k < {_HEAD})"
        parts = [part for part in self.parts if part.stream == stream]
        body = " UNION ALL ".join(
            f"SELECT row, k + {part.start - start} AS k FROM ({flat}{part.life}) WHERE k < "
            + str(
                min((later.start for later in parts[i + 1 :]), default=lives.FOREVER) - part.start
            )
            for i, part in enumerate(parts)
        )
        matches: list[int] = [
            at
            for (at,) in self.db.rows(
                f"WITH head AS MATERIALIZED {head}, body AS MATERIALIZED ({body}), "
                "start AS (SELECT k FROM body WHERE row = (SELECT row FROM head WHERE k = 0)) "
                "SELECT s.k FROM start s JOIN head h ON true "
                "JOIN body b ON b.k = s.k + h.k GROUP BY s.k HAVING bool_and(b.row = h.row) "
                "ORDER BY s.k"
            )
        ]
        back = [at for at in matches if at <= place]
        if back and (back[-1] == place or self._goes_back(before, life, stream, back[-1], place)):
            return back[-1]
        known = self.db.value(
            f"SELECT sum(len(rows)) FROM batch WHERE stream = {stream} AND life = {before}"
        )
        return place if known == place else min((at for at in matches if at > place), default=None)

    def _goes_back(self, before: int, life: int, stream: int, at: int, place: int) -> bool:
        """Whether a life that begins like a part of the one before goes back to that.

        A whole pass back it may as well be the next pass, in the same order.
        """
        different = self.db.value(
            "SELECT count(DISTINCT row) FROM (SELECT unnest(rows) AS row FROM batch)"
        )
        if place - at < different:
            return True
        by_then = f"SELECT row FROM trained WHERE kept AND life <= {before}"
        first, any_at_all = self.db.row(
            "SELECT (SELECT count(*) FROM (SELECT unnest(rows) AS row FROM batch "
            f"WHERE stream = {stream} AND life = {life} AND k = 0) WHERE row NOT IN ({by_then})), "
            "(SELECT count(*) FROM (SELECT unnest(rows) AS row, "
            f"k + generate_subscripts(rows, 1) - 1 AS k FROM batch WHERE stream = {stream} "
            f"AND life = {before}) WHERE k < {place} AND row NOT IN ({by_then}))"
        )
        if not first and any_at_all:
            self.whole = False
            self.report.doubts.append(
                f"life {life} begins with the first prompts of a pass, and by then {any_at_all:,} "
                "of that pass were not trained: whether it begins the next pass, or this one "
                "again, can't be known"
            )
        return bool(first)

    # -- which are missing, and which too many -----------------------------------------------------

    def _count(self) -> None:
        self.db.doing("counting")
        self.db.rows(
            "CREATE TABLE prompt AS WITH counted AS MATERIALIZED (SELECT row FROM place "
            "WHERE counts) SELECT row, count(*) - count(number) AS passes, "
            "if(count(number) = 0, 0, 1) AS least, least AS most, "
            "min(number) < max(number) AS again FROM (SELECT row, NULL AS number FROM counted "
            "UNION ALL SELECT row, number FROM trained WHERE kept) GROUP BY row"
        )
        # That is all there is to weigh where a prompt is in one step at most, as a whole.
        if self.named or self.db.value("SELECT bool_or(again) FROM prompt"):
            self.db.rows(
                "CREATE OR REPLACE TABLE prompt AS SELECT p.row, p.passes, "
                "coalesce(w.least, 0) AS least, coalesce(w.most, 0) AS most "
                "FROM prompt p LEFT JOIN weight w ON w.row = p.row"
            )
        strangers = self.db.value(
            "SELECT count(*) FROM prompt WHERE passes = 0 OR row IS NULL AND most > 0"
        )
        if strangers:
            self.whole = False
            self.report.doubts.append(
                f"prompts that were trained, and by no ledger handed out: {strangers:,}; a ledger "
                "is missing, or not every loader reports recorder.handed_out"
            )
            self.db.rows("UPDATE prompt SET passes = 1 WHERE passes = 0")
        if self.prompts is not None:
            self.db.rows(
                "INSERT INTO prompt (row, passes, least, most) SELECT range, 1, 0, 0 FROM range(?) "
                "WHERE range NOT IN (SELECT row FROM prompt)",
                self.prompts,
            )
        prompts, trained, self.passes = self.db.row(
            "SELECT coalesce(sum(passes), 0), coalesce(sum(least(passes, least)), 0), "
            "coalesce(max(passes), 0) FROM prompt"
        )
        self.report.prompts, self.report.trained = int(prompts), int(trained)

    def _explain(self) -> None:
        self.db.rows("CREATE TABLE gap AS SELECT * FROM prompt WHERE least < passes")
        missing = bool(self.db.value("SELECT count(*) FROM gap"))
        self._read_answers(missing=missing, each=self.passes > 1)
        self.db.doing("finding out why")
        self.report.skipped, self.report.duplicated, self.report.dropped = [], [], []
        self.report.failed = self.report.open = 0
        if missing:
            self._explain_gaps()
        self._explain_repeats()

    def _explain_gaps(self) -> None:
        self.db.fill(
            "piece",
            "pos INTEGER, life INTEGER, cut_time BIGINT",
            [(i, p.life.number, p.until.time if p.until else None) for i, p in self._numbered()],
        )
        self.db.rows(
            "CREATE TABLE handed AS SELECT p.stream, p.ordinal, p.row, p.t, p.counts, c.pos "
            "FROM place p JOIN piece c ON c.life = p.life SEMI JOIN gap g ON g.row = p.row"
        )
        # A training is of the latest hand-out before it.
        self.db.rows(
            "CREATE TABLE settled AS SELECT DISTINCT h.stream, h.ordinal FROM "
            "(SELECT t.row, t.t FROM trained t SEMI JOIN gap g ON g.row = t.row WHERE t.kept) t "
            "ASOF JOIN handed h ON h.row = t.row AND t.t >= h.t"
        )
        # What became of prompts that are missing: by what was reported in the lineage of them.
        self.db.rows(
            "CREATE TABLE heard AS SELECT l.row, c.pos, l.t, l.event, l.text, "
            "c.cut_time IS NULL OR l.t <= c.cut_time AS kept FROM told l "
            "JOIN segment s ON s.file = l.file AND l.t >= s.start AND l.t < s.stop "
            "JOIN piece c ON c.life = s.life SEMI JOIN gap g ON g.row = l.row"
        )
        self.db.rows(
            "CREATE TABLE missing AS WITH free AS (SELECT h.stream, h.ordinal, h.row, "
            "row_number() OVER (PARTITION BY h.row ORDER BY s.ordinal IS NOT NULL, h.ordinal) AS n "
            "FROM handed h LEFT JOIN settled s ON s.stream = h.stream AND s.ordinal = h.ordinal "
            "WHERE h.counts), "
            "given_up AS (SELECT row, count(*) AS n, min(text) AS text FROM heard "
            "WHERE kept AND event = 'dropped' AND text <> '' GROUP BY row), "
            "failed AS (SELECT row, count(DISTINCT t) AS n FROM heard "
            "WHERE kept AND event = 'failed' GROUP BY row), "
            "seen AS (SELECT stream, ordinal, max(pos) AS pos, max_by(t, pos) AS t FROM handed "
            "GROUP BY stream, ordinal), "
            "again AS (SELECT row, max(pos) AS pos FROM heard WHERE event = 'buffered' "
            "GROUP BY row) "
            "SELECT g.row, f.stream, f.ordinal, "
            "CASE WHEN f.n <= d.n THEN 'dropped' WHEN f.n <= x.n THEN 'failed' END AS settled, "
            "d.text AS reason, e.t AS handed_out, e.pos AS handed_pos, "
            "if(g.passes = 1 AND e.pos IS NOT NULL, greatest(e.pos, coalesce(a.pos, 0)), e.pos) "
            "AS pos FROM gap g "
            "LEFT JOIN free f ON f.row = g.row LEFT JOIN given_up d ON d.row = g.row "
            "LEFT JOIN failed x ON x.row = g.row LEFT JOIN again a ON a.row = g.row "
            "LEFT JOIN seen e ON e.stream = f.stream AND e.ordinal = f.ordinal "
            "WHERE f.n IS NULL OR f.n <= g.passes - g.least"
        )
        # How far each had come when its last life was saved, or has ended.
        self.db.rows(
            "CREATE TABLE fate AS SELECT m.row, m.stream, m.ordinal, m.settled, m.reason, m.pos, "
            "bool_or(t.event = 'buffered') AS buffered, "
            "bool_or(t.event IN ('finished', 'failed')) AS finished, "
            "bool_or(t.event = 'dropped') AS dropped, any_value(c.cut_time) AS cut_time, "
            "any_value(m.handed_out) AS handed_out, any_value(m.handed_pos) AS handed_pos, "
            "any_value(p.least < p.most) AS in_part "
            "FROM missing m LEFT JOIN piece c ON c.pos = m.pos JOIN gap p ON p.row = m.row "
            "LEFT JOIN heard t ON t.row = m.row AND t.pos = m.pos AND t.kept "
            "AND (m.handed_pos < m.pos OR t.t >= m.handed_out) "
            "GROUP BY m.row, m.stream, m.ordinal, m.settled, m.reason, m.pos"
        )
        last = len(self.pieces) - 1
        numbers = [piece.life.number for piece in self.pieces]
        for stream, at in {part.stream: numbers.index(part.life) for part in self.parts}.items():
            # Whose loader has handed out nothing since may do so yet.
            self.db.rows(
                "UPDATE fate SET pos = ? WHERE stream = ? AND pos = ? AND settled IS NULL",
                last,
                stream,
                at,
            )
        still_out = f"settled IS NULL AND pos = {last} AND {not self.ended}"
        self.report.open = self.db.value(f"SELECT count(*) FROM fate WHERE {still_out}")
        self.report.failed = self.db.value("SELECT count(*) FROM fate WHERE settled = 'failed'")
        self.report.dropped = [
            Loss(reason, many, sorted(named))
            for reason, many, named in self.db.rows(
                f"SELECT reason, count(*), list(row)[:{LISTED}] FROM fate "
                "WHERE settled = 'dropped' GROUP BY reason ORDER BY reason"
            )
        ]
        lost = self.db.rows(
            "SELECT pos, CASE WHEN pos IS NULL THEN 'never handed out' "
            "WHEN dropped THEN 'dropped without a reason' "
            "WHEN buffered THEN 'in the buffer' WHEN finished THEN 'finished' "
            "WHEN handed_pos = pos AND handed_out > cut_time THEN 'handed out later' "
            "ELSE 'in flight' END AS state, in_part, count(*), count(*) FILTER (row IN "
            f"(SELECT row FROM trained WHERE NOT kept)), list(row ORDER BY ordinal)[:{LISTED}] "
            f"FROM fate WHERE settled IS NULL AND NOT coalesce({still_out}, false) "
            "GROUP BY ALL ORDER BY pos, state, in_part"
        )
        self.report.skipped = [
            Loss(self._cause(pos, state, in_part), many, named, rolled_back)
            for pos, state, in_part, many, rolled_back, named in lost
        ]
        self._look_at_lengths(f"settled IS NULL AND NOT coalesce({still_out}, false)")

    def _numbered(self) -> list[tuple[int, Piece]]:
        return list(enumerate(self.pieces))

    def _cause(self, pos: int | None, state: str, in_part: bool) -> str:
        if pos is None:
            return "never handed out"
        piece = self.pieces[pos]
        part = ", and trained in part" if in_part else ""
        if piece.until is None:
            where = "in the buffer" if state == "in the buffer" else state
            return f"{where} when the training has ended{part}"
        then = self.pieces[pos + 1].life.number
        here = f"the save of life {piece.life.number}{_at(piece.until)}"
        if state == "handed out later":
            return (
                f"handed out between {here} and its crash{part}, and life {then} has gone on "
                "behind it"
            )
        if state.startswith("dropped"):
            return f"{state} before {here}"
        return f"{state} at {here}{part}, and never again from life {then} on"

    def _explain_repeats(self) -> None:
        if not self.db.value("SELECT count(*) FROM prompt WHERE most > passes"):
            return
        self.report.duplicated = [
            Loss(
                f"trained in life {lives[0]} and again in life {lives[1]}"
                if len(lives) > 1
                else f"trained again in life {lives[0]}",
                many,
                sorted(named),
            )
            for lives, many, named in self.db.rows(
                f"SELECT lives, sum(extra)::BIGINT, list(row ORDER BY row)[:{LISTED}] FROM "
                "(SELECT p.row, any_value(p.most - p.passes) AS extra, "
                "list_sort(list(DISTINCT t.life))[-2:] AS lives "
                "FROM prompt p JOIN trained t ON t.row = p.row AND t.kept WHERE p.most > p.passes "
                "GROUP BY p.row) GROUP BY lives ORDER BY lives"
            )
        ]

    def _look_at_lengths(self, lost: str) -> None:
        if not self.report.skipped:
            return
        self.report.bias = bias(
            *self.db.row(
                "WITH one AS (SELECT row, sum(length)::DOUBLE / sum(measured) AS length "
                "FROM finished WHERE measured > 0 GROUP BY row), "
                f"lost AS (SELECT DISTINCT row FROM fate WHERE {lost}), "
                "ranked AS (SELECT o.length, l.row IS NOT NULL AS lost, "
                "rank() OVER (ORDER BY o.length) "
                "+ (count(*) OVER (PARTITION BY o.length) - 1) / 2.0 "
                "AS place FROM one o LEFT JOIN lost l ON l.row = o.row) "
                "SELECT (SELECT count(*) FROM lost), count(*) FILTER (lost), "
                "count(*) FILTER (NOT lost), avg(length) FILTER (lost), "
                "avg(length) FILTER (NOT lost), sum(place) FILTER (lost) FROM ranked"
            )
        )

    # -- without hand-outs -------------------------------------------------------------------------

    def _count_without_loader(self) -> None:
        self.db.rows(
            "CREATE VIEW entry AS SELECT row AS key, NULL AS pass, step, life, kept FROM trained"
        )
        stepless = self.db.value("SELECT count(*) FROM trained WHERE step IS NULL")
        if stepless:
            self.report.doubts.append(
                "neither hand-outs nor steps are reported: what is one training can't be known"
            )
            return
        logs.count(self.db, self.report, self.prompts, None)
        if self.prompts is None:
            self.report.notes.append(
                "no ledger says what was handed out: report recorder.handed_out(rows), or say with "
                "--prompts how many the run was to train"
            )

    # -- waste -------------------------------------------------------------------------------------

    def _waste(self) -> None:
        self.report.rolled_back = sum(one.trainings for one in self.report.restarts)
        if self.report.prompts is None or not self.parts:
            return
        # Of a prompt that comes once it is enough to know which of its generations were answered.
        question = "SELECT sum(n - bit_count(places)) FROM finished"
        if self.passes > 1:
            question = (
                "SELECT sum(greatest(0, f.n - greatest(1, coalesce(p.passes, 1)))) FROM "
                "finished f LEFT JOIN prompt p ON p.row = f.row"
            )
        again = self.db.value(question)
        self.report.answered_again = None if again is None else int(again)


def _at(save: Save) -> str:
    return "" if save.step is None else f" at step {save.step}"


def bias(
    lost: int,
    measured: int,
    others: int,
    mean: float | None,
    mean_of_others: float | None,
    ranks: float | None,
) -> str:
    """Whether it is long answers that are lost, by a rank test, in a sentence.

    Args:
        lost: how many prompts.
        measured: of them, those that were answered at some time, with a length.
        others: prompts with a length that were not lost.
        mean: length of the lost ones, in tokens, and
        mean_of_others: of the others.
        ranks: sum of the places of the lost ones among all by length, from 1.

    Example:
        >>> bias(9, 0, 90, None, 55.0, None)
        'undetermined: none of the lost prompts has an answer of known length'
        >>> bias(9, 9, 90, 300.0, 50.0, 9 * 95.0)
        'long answers are lost: 300 tokens in the mean, the others 50 (9 of 9 lost are measured)'
    """
    if not measured or not others or mean is None or mean_of_others is None or ranks is None:
        return "undetermined: none of the lost prompts has an answer of known length"
    expected = measured * (measured + others + 1) / 2
    spread = (measured * others * (measured + others + 1) / 12) ** 0.5
    apart = (ranks - expected) / spread
    numbers = (
        f"{mean:,.0f} tokens in the mean, the others {mean_of_others:,.0f} "
        f"({measured:,} of {lost:,} lost are measured)"
    )
    if measured < 8:
        return f"undetermined, of so few: {numbers}"
    if abs(apart) < 3:
        return f"no sign that it goes by length: {numbers}"
    return f"{'long' if apart > 0 else 'short'} answers are lost: {numbers}"
