"""A report as text: what a person reads in a terminal when a test fails."""

from __future__ import annotations

import re
import textwrap
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import TracebackType

from pytest_resume_audit.reports.drawing import drawing, stream_length
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.verdict import AuditReport, Finding

_MOST_REASONS = 8
_LISTED = 60
"""Characters that a list of ordinals may take in a sentence."""

_ASIDES = {
    "failed": "failed for good",
    "dropped": "dropped by the collector",
    "structural": "not trained by an uninterrupted run either",
    "excused": "skipped or repeated as is allowed here",
    "rolled_back": "rolled back by a restart, so to be trained again",
    "regenerated": "answered again though an answer was saved (regenerated)",
}
"""Ordinals that say something about a run, if nothing against it."""

_EXACT = ("proc", "calls", "")
"""Ways of looking for rest that give the same run every time; the last: nothing was played."""

_PACKAGE = Path(__file__).parents[1]
_COLLECTORS = _PACKAGE / "collectors"


def headline(report: AuditReport) -> str:
    """What came of a run in one line: the worst finding, or how many prompts were trained.

    Example:
        >>> from pytest_resume_audit import LiveCursorCollector, run
        >>> headline(run(LiveCursorCollector, "mid-flight"))
        '4 of 16 prompts skipped: 5, 8, 9, 11'
    """
    total = stream_length(report)
    if not report.findings:
        return _lossless(report, total)
    first, *second = _first(report)
    return "; ".join(
        [_sentence(first, report), *(_sentence(also, report, whole=False) for also in second)]
    )


def render(report: AuditReport, *, color: bool = False, width: int = 100) -> str:
    """Everything there is to say about a run.

    Args:
        report: of the run.
        color: whether to use ANSI colours in the drawing.
        width: of a line; the timeline and a traceback are never broken.

    Returns:
        The headline; the drawing; why prompts were lost or repeated; what else was found; what
        was played; the traceback of an exception.

    Example:
        >>> from pytest_resume_audit import LiveCursorCollector, run
        >>> print(render(run(LiveCursorCollector, "mid-flight")))  # doctest: +ELLIPSIS
        4 of 16 prompts skipped: 5, 8, 9, 11
        ...
        5, 8, 9, 11: in flight at save 1, and life 2 restarted the loader at 12, behind it
        ...
    """
    paragraphs = [
        [headline(report)],
        [drawing(report, color=color, width=width)],
        [line for text in _why(report) for line in _wrapped(text, width)],
        [line for text in _remarks(report) for line in _wrapped(text, width)],
        list(_points(report)),
        list(_played(report)),
        [_traceback(report.error)] if report.error is not None else [],
    ]
    return "\n\n".join(text for lines in paragraphs if (text := "\n".join(lines)))


# --- sentences ----------------------------------------------------------------------------------


def listed(ordinals: Collection[int], room: int = _LISTED, *, beyond: int = 0) -> str:
    """Ordinals in words, three or more in a row as a range; what has no room is counted.

    Args:
        ordinals: to be listed.
        room: for so many signs.
        beyond: how many more there are, above all of these.

    Example:
        >>> listed([5, 8, 9, 11, 12, 13])
        '5, 8, 9, 11-13'
        >>> listed(range(0, 99, 2), room=12)
        '0, 2, 4, 6, ... (46 more)'
    """
    words: list[str] = []
    said = 0
    for first, last in _ranges(sorted(ordinals)):
        word = f"{first}-{last}" if last > first else f"{first}"
        if words and len(", ".join([*words, word])) > room:
            break
        words.append(word)
        said += last - first + 1
    rest = len(ordinals) + beyond - said
    return ", ".join(words) + f", ... ({rest} more)" * bool(rest)


def _ranges(ordinals: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of every three or more in a row; the others one by one."""
    for _, run in groupby(enumerate(ordinals), key=lambda pair: pair[1] - pair[0]):
        row = [ordinal for _, ordinal in run]
        if len(row) >= 3:
            yield row[0], row[-1]
        else:
            yield from ((ordinal, ordinal) for ordinal in row)


def _lossless(report: AuditReport, total: int) -> str:
    apart = {
        "excused": report.excused,
        "failed": report.failed,
        "dropped": report.dropped,
        "missed by an uninterrupted run too": report.structural,
    }
    trained = total - len(set().union(*apart.values()))
    counts = "".join(f", {len(those)} {what}" for what, those in apart.items() if those)
    return f"lossless: {trained} of {total} prompts trained once{counts}"


def _first(report: AuditReport) -> tuple[Finding, ...]:
    """The findings of the headline: the worst one, or the two if both name prompts."""
    two = report.findings[:2]
    return two if all(finding.ordinals for finding in two) else two[:1]


def _sentence(finding: Finding, report: AuditReport, *, whole: bool = True) -> str:
    """A finding in one line, with its ordinals.

    Args:
        finding: one of the report.
        report: it says how many prompts there are, and in which life a run ended.
        whole: whether to say of how many prompts: once a line is enough.
    """
    text = finding.text.partition("\n")[0].rstrip(": ")
    if finding.ordinals:
        what, _, aside = text.partition(": ")
        count = f"{len(finding.ordinals)}"
        if whole:
            count += f" of {stream_length(report)} prompts"
        return f"{count} {what}: {listed(finding.ordinals)}" + (f" ({aside})" if aside else "")
    if finding.verdict in ("error", "hang"):
        # A run ends where it raises or stands still: in the last life that was begun.
        where = f"{finding.verdict} in life {len(report.history.lives)}"
        return f"{where}: {text.partition('; ')[0] if finding.verdict == 'hang' else text}"
    if finding.verdict == "undetermined":
        return f"undetermined: {text}"
    return text


# --- paragraphs ---------------------------------------------------------------------------------


def _why(report: AuditReport) -> Iterator[str]:
    """The reasons: totals by kind, then the ordinals that share a sentence."""
    totals = Counter(reason.kind for reason in report.reasons.values())
    if len(totals) > 1:
        yield "reasons: " + "; ".join(f"{count} {kind}" for kind, count in totals.most_common())
    same: dict[str, list[int]] = {}
    for ordinal, reason in sorted(report.reasons.items()):
        allowed = " (allowed here)" if ordinal in report.excused else ""
        same.setdefault(reason.text + allowed, []).append(ordinal)
    sentences = sorted(same.items(), key=lambda item: -len(item[1]))
    for sentence, ordinals in sentences[:_MOST_REASONS]:
        yield f"{listed(ordinals)}: {sentence}"
    if rest := sentences[_MOST_REASONS:]:
        prompts = sum(len(ordinals) for _, ordinals in rest)
        yield f"... {len(rest)} more reasons, for {prompts} prompts"


def _remarks(report: AuditReport) -> Iterator[str]:
    """Everything else that a reader has to know."""
    for finding in report.findings[len(_first(report)) :]:
        yield _sentence(finding, report)
    for finding in report.findings:
        if finding.verdict == "hang":
            yield from _whereabouts(finding.text.split("; ")[1:])
    for missed, times in Counter(report.missed).items():
        whose = " (the collector's own way of working)" if missed.throttled else ""
        again = f" ({times} times)" if times > 1 else ""
        yield f"not done: {missed.step}: {missed.why}{whose}{again}"
    yield from _rows(report)
    named = [set(finding.ordinals) for finding in report.findings]
    for name, what in _ASIDES.items():
        ordinals = getattr(report, name)
        if ordinals and set(ordinals) not in named:
            yield f"{what}: {listed(ordinals)}"
    for life in report.history.lives:
        for where in _whereabouts(life.left_behind):
            yield f"left behind by life {life.number}: {where}"
    if not report.gated:
        yield (
            "the loader's gate was left open: a thread that waited at it held up everything "
            "else, so the collector decided itself how much was handed out"
        )
    for save in report.history.saves:
        if save.unseen:
            yield (
                f"files changed in save {save.number} that no operation was seen for, so no death "
                f"or race between them was played: {', '.join(save.unseen)}"
            )
    if report.rest not in _EXACT:
        yield f"at rest was found out by {report.rest}: the same run may go differently next time"
    if report.unreached:
        yield f"unreached: {report.unreached}"


def _rows(report: AuditReport) -> Iterator[str]:
    """Which rows they are that were skipped or repeated, where that is not the same number."""
    rows = report.history.rows
    for what in ("skipped", "duplicated"):
        ordinals = getattr(report, what)
        named = {rows[ordinal] for ordinal in ordinals if ordinal < len(rows)}
        if named and named != set(ordinals):
            yield f"rows of the data set, {what}: {listed(named)}"


def _whereabouts(parts: Iterable[str]) -> Iterator[str]:
    """Where prompts and threads are; of threads that stand at the same place, one."""
    same: dict[str, list[str]] = {}
    for part in parts:
        thread = re.fullmatch(r"thread (['\"].*?['\"]) (.+)", part)
        same.setdefault(thread[2] if thread else part, []).append(thread[1] if thread else "")
    for where, names in same.items():
        alike = f" (and {len(names) - 1} like it)" if len(names) > 1 else ""
        yield f"thread {names[0]}{alike} {where}" if names[0] else where


def _points(report: AuditReport) -> Iterator[str]:
    """What came of each point of a save."""
    if not report.points:
        return
    ends = Counter(point.verdict for point in report.points)
    came_to = ", ".join(f"{count} {verdict}" for verdict, count in ends.items())
    yield f"points of the save: {len(report.points)}, {came_to}"
    for point in report.points:
        late = f", race not taken: {', '.join(point.kept_out)} not before the save's end"
        yield f"{point.verdict:12} {point.where}{late if point.kept_out else ''}"


def _played(report: AuditReport) -> Iterator[str]:
    """What was played, and what it asks for."""
    name = f"  ({report.name})" if report.name else ""
    yield f"collector: {report.collector}"
    yield f"timeline:  {report.timeline}{name}"
    if report.setup != Setup():
        yield f"setup:     {report.setup}"
    if report.demand != "lossless":
        yield f"demand:    {report.demand}"


def _traceback(error: BaseException) -> str:
    """A traceback from the first frame that is not the audit's own machinery."""
    frames = error.__traceback__
    while frames is not None and _is_machinery(frames):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _is_machinery(frames: TracebackType) -> bool:
    file = Path(frames.tb_frame.f_code.co_filename)
    return _PACKAGE in file.parents and _COLLECTORS not in file.parents


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
