"""The audits of a whole session: which are run, what came of them, and whether that is enough.

It is registered when the first marked test is collected or the first option of the session is
given. With pytest-xdist each worker runs its part, and puts what came of a test on its report; the
process that started them collects nothing, and learns of audits by these reports.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_resume_audit import known
from pytest_resume_audit.assertions import AuditFailed
from pytest_resume_audit.catalogue import NAMED, NamedTimeline
from pytest_resume_audit.marker import CUSTOM, Case
from pytest_resume_audit.options import Options, is_worker
from pytest_resume_audit.plugin import AUDIT
from pytest_resume_audit.replay import node_id, replay
from pytest_resume_audit.reports import json as as_json, markdown, summary_text
from pytest_resume_audit.reports.text import headline
from pytest_resume_audit.selection import seeded
from pytest_resume_audit.summary import Outcome, Record, Summary
from pytest_resume_audit.timeline import Timeline

if TYPE_CHECKING:
    from pytest_resume_audit.fixture import ResumeAudit

NAME = "resume_audit_session"
"""The name of the plugin, for the plugin manager."""

FIELD = "resume_audit"
"""Of a test report: the record of its audit."""

EMPTY = "resume_audit_is_empty_part"
"""In what a worker of pytest-xdist tells: whether its shard has nothing in it."""

SPENT = "not run: the budget of {budget} was spent"
TOO_FEW = (
    "{option} {least}: {found} timelines were audited. Was a test renamed, deselected or skipped? "
    "What is unreached, undetermined, died or was not run does not count"
)
CHANGED = (
    "the known loss has changed: {how}\n"
    "mend the collector, or record the loss as it is now, by running the test with\n"
    "--resume-audit-known {path} --resume-audit-update-known"
)
GONE = (
    "the known loss is gone ({loss}): remove its line from {path}, by running the test with "
    "--resume-audit-known {path} --resume-audit-update-known"
)
STALE = "{path} knows a loss of {test}, and there is no such test any more: remove its lines"
UNWRITTEN = "{path} can't be written: {why}"


def session_of(config: pytest.Config) -> AuditSession:
    """The plugin of this session, registered now if it is not yet.

    Args:
        config: of pytest.

    Raises:
        pytest.UsageError: for an option that can't be.
    """
    manager = config.pluginmanager
    if not manager.has_plugin(NAME):
        manager.register(AuditSession(config), NAME)
    return cast("AuditSession", manager.get_plugin(NAME))


class AuditSession:
    """Hooks of a session in which something is audited, or has to be.

    Args:
        config: of pytest.

    Raises:
        pytest.UsageError: for an option that can't be.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._options = options = Options.of(config)
        self._records: dict[str, Record] = {}
        self._collected: set[str] = set()
        self._spent = 0.0
        self._is_empty_part = False
        self._summary: Summary | None = None
        self._known: dict[str, known.Loss] = {}
        if options.known and (options.known.exists() or not options.update_known):
            try:
                self._known = known.read(options.known)
            except known.KnownError as error:
                raise pytest.UsageError(f"--resume-audit-known: {error}") from None

    # -- what is run -------------------------------------------------------------------------

    def pytest_report_header(self) -> str | None:
        """Say what was chosen; with it the same session can be run again."""
        options = self._options
        chosen = {
            "matrix": self._config.getoption("resume_audit_matrix", None),
            "shard": options.shard,
            "budget": options.budget and options.budget.text,
            "seed": options.budget and options.seed,
        }
        said = [f"{name} {value}" for name, value in chosen.items() if value is not None]
        return f"resume-audit: {', '.join(said)}" if said else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Take the shard, and the order of a budget; last, so that no other order undoes it."""
        shard = self._options.shard
        if shard is not None:
            audits = [item for item in items if _case(item)]
            ours = shard.of(node_id(item) for item in audits)
            others = [item for item in audits if node_id(item) not in ours]
            self._is_empty_part = bool(audits) and not ours
            if others:
                self._config.hook.pytest_deselected(items=others)
                out = set(others)
                items[:] = [item for item in items if item not in out]
        if self._options.budget is not None:
            audits = [item for item in items if _case(item)]
            # Each test without a marker keeps its place.
            ordered = iter(self._by_sample(audits))
            items[:] = [next(ordered) if _case(item) else item for item in items]

    def _by_sample(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """What somebody chose by name, then a sample of what was generated."""
        sampled = {node_id(item): item for item in items if _is_generated(item)}
        return [
            *(item for item in items if not _is_generated(item)),
            *(sampled[one] for one in seeded(sampled, self._options.seed)),
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Count what an audit takes of the budget, its fixtures included."""
        if self._options.budget is None or _case(item) is None:
            return (yield)
        begun = monotonic()
        try:
            return (yield)
        finally:
            self._spent += monotonic() - begun

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip an audit when the budget is spent: none is stopped half way."""
        if self._is_spent() and _case(item) is not None:
            pytest.skip(self._why_not())

    def _is_spent(self) -> bool:
        budget = self._options.budget
        return budget is not None and self._spent >= budget.seconds

    def _why_not(self) -> str:
        assert self._options.budget is not None
        return SPENT.format(budget=self._options.budget.text)

    # -- what came of it ---------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put on the report of a test what came of its audit."""
        case = _case(item)
        if case is None or call.when == "teardown":
            return (yield)
        audit = item.stash.get(AUDIT, None) if call.when == "call" else None
        if audit is not None and audit.report is not None:
            item.user_properties += [
                ("resume_audit_verdict", audit.report.verdict),
                ("resume_audit_skipped", len(_without(audit, audit.report.skipped))),
                ("resume_audit_duplicated", len(_without(audit, audit.report.duplicated))),
                ("resume_audit_timeline", audit.report.timeline.text),
            ]
        report = yield
        record = _begun(item, case)
        if audit is not None and audit.report is not None:
            record = self._judged(record, audit, report, call)
            # An item lives as long as the session, and thousands of histories are too much.
            audit.report = None
        elif call.when == "setup" and report.skipped and self._is_spent():
            record = replace(record, headline=self._why_not())
            # As of the test: our own line says nothing to anybody.
            report.longrepr = (str(item.path), (item.location[1] or 0) + 1, self._why_not())
        # A field of its own: pytest-xdist sends it along with all others.
        vars(report)[FIELD] = asdict(replace(record, failed=report.failed))
        return report

    def _judged(
        self,
        record: Record,
        audit: ResumeAudit,
        report: pytest.TestReport,
        call: pytest.CallInfo[None],
    ) -> Record:
        """The record of an audit that was played; a known loss passes as one."""
        run = audit.report
        assert run is not None
        unreached = run.unreached is not None and run.verdict == "lossless"
        outcome: Outcome = "unreached" if unreached else run.verdict
        raised = None if call.excinfo is None else call.excinfo.value
        by_audit = isinstance(raised, AuditFailed) and raised.report is run
        loss = None
        said = headline(run)
        if report.failed and not by_audit:
            said += "; the test failed by itself"
        if self._options.known is not None and record.id != CUSTOM:
            if report.failed and by_audit and run.verdict in known.KNOWABLE:
                loss = known.Loss.of(run)
            was = self._known.get(record.node_id)
            if self._pass_if_known(was, loss, report, unreached):
                outcome = "known"
            elif loss is not None and was is not None:
                said += f" (the known loss was {was})"
            elif isinstance(report.longrepr, str):
                said = report.longrepr
        return replace(
            record,
            timeline=run.timeline.text,
            outcome=outcome,
            expected=audit.expect is not None,
            skipped=_without(audit, run.skipped),
            duplicated=_without(audit, run.duplicated),
            states=sorted(run.states),
            headline=said,
            loss=None if loss is None else loss.as_json(),
        )

    def _pass_if_known(
        self,
        was: known.Loss | None,
        loss: known.Loss | None,
        report: pytest.TestReport,
        unreached: bool,
    ) -> bool:
        """Let a known loss pass as one, and fail the test of one that has changed or is gone.

        Args:
            was: the loss that is known of it, if any.
            loss: that it failed with; None: it did not, or in another way.
            report: of the test.
            unreached: whether its run proved nothing.

        Returns:
            Whether it was known.
        """
        update = self._options.update_known
        path = self._config.getoption("resume_audit_known")
        if loss is not None and (update or loss == was):
            if self._config.getoption("runxfail", False):
                return False
            report.outcome = "skipped"
            report.wasxfail = f"known: {loss}"
            return True
        if loss is not None and was is not None:
            how = CHANGED.format(how=was.changed_to(loss), path=path)
            report.sections.append(("known loss", how))
        elif was is not None and report.passed and not (update or unreached):
            report.outcome = "failed"
            report.longrepr = GONE.format(loss=was, path=path)
        return False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what came of an audit, here or in a worker."""
        found = vars(report).get(FIELD)
        if found is not None:
            self._records[report.nodeid] = Record(**found)
        elif report.when not in ("setup", "call", "teardown"):
            # Of pytest-xdist: the worker is dead that was playing it.
            begun = self._records.get(report.nodeid)
            if begun is not None and begun.outcome == "not run":
                self._records[report.nodeid] = replace(
                    begun, outcome="died", failed=True, headline=str(report.longrepr)
                )

    # -- the end -----------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember which tests there are."""
        self._collected |= known.functions_of(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        """Remember which tests there are."""
        self._collected |= known.functions_of(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn of pytest-xdist's worker whether there was anything for it to run."""
        told = getattr(node, "workeroutput", None) or {}
        self._is_empty_part = self._is_empty_part or told.get(EMPTY, False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Sum up, write what is to be written, and fail the session when too little was done."""
        options = self._options
        if is_worker(self._config):
            self._config.workeroutput[EMPTY] = self._is_empty_part  # type: ignore[attr-defined]
        if is_worker(self._config) or self._config.getoption("collectonly"):
            return
        records = self._records.values()
        self._summary = summary = Summary(
            records, settings=self._settings(records), warnings=self._stale()
        )
        if options.require is not None and summary.audited < options.require[1]:
            option, least = options.require
            summary.failures.append(
                TOO_FEW.format(option=option, least=least, found=summary.audited)
            )
        if options.known is not None and options.update_known:
            self._write(options.known, lambda path: known.write(path, self._updated()))
        if options.json is not None:
            text = as_json.render(summary)
            self._write(options.json, lambda path: path.write_text(text, encoding="utf-8"))
        if options.markdown is not None:
            added = markdown.render(summary)
            self._write(options.markdown, lambda path: _append(path, added))
        if self._is_empty_part and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            # There are more shards than audits: that is no mistake of this one.
            session.exitstatus = pytest.ExitCode.OK
        if summary.failures and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary, if something was audited or should have been."""
        summary = self._summary
        if summary is None or not (summary.run or summary.failures or summary.settings):
            return
        terminalreporter.write_sep("=", "resume audit")
        width = self._config.get_terminal_writer().fullwidth
        for line in summary_text.render(summary, width):
            terminalreporter.write_line(line)
        for line in summary.warnings:
            terminalreporter.write_line(f"warning: {line}", yellow=True)
        for line in summary.failures:
            terminalreporter.write_line(f"failed: {line}", red=True, bold=True)

    def _settings(self, records: Iterable[Record]) -> list[str]:
        budget = self._options.budget
        if budget is None:
            return []
        ran = [record.outcome != "not run" for record in records]
        return [
            f"budget {budget.text}, seed {self._options.seed}: "
            f"{sum(ran):,} of {len(ran):,} timelines"
        ]

    def _updated(self) -> dict[str, known.Loss]:
        """The known losses, as far as this session has seen them, and as they were where not."""
        losses = dict(self._known)
        for record in self._records.values():
            if record.loss is not None:
                losses[record.node_id] = known.Loss.read(record.loss)
            elif record.outcome in known.KNOWABLE or record.outcome == "lossless":
                losses.pop(record.node_id, None)
        return losses

    def _stale(self) -> list[str]:
        """Say which known losses are those of tests that are no more.

        A test that was not collected may only have been left out, unless its file is gone, or was
        collected without any choice.
        """
        files = {test.partition("::")[0] for test in self._collected}
        filtered = _is_filtered(self._config)
        return [
            STALE.format(path=self._config.getoption("resume_audit_known"), test=test)
            for test in sorted(known.functions_of(self._known) - self._collected)
            if not (self._config.rootpath / (file := test.partition("::")[0])).exists()
            or (file in files and not filtered)
        ]

    def _write(self, path: Path, write: Callable[[Path], object]) -> None:
        """Write a file, or fail the session with a sentence."""
        assert self._summary is not None
        try:
            write(path)
        except OSError as error:
            self._summary.failures.append(UNWRITTEN.format(path=path, why=error.strerror))


def _case(item: pytest.Item) -> Case | None:
    """What an item plays; None for one that is no audit."""
    callspec = getattr(item, "callspec", None)
    case = None if callspec is None else callspec.params.get("resume_audit")
    return case if isinstance(case, Case) else None


def _is_generated(item: pytest.Item) -> bool:
    """Whether its timeline is one of thousands, that nobody has chosen by name.

    A marker may have some of a matrix by themselves: those whose sizes its collector has.
    """
    case = _case(item)
    return (
        case is not None
        and isinstance(case.timeline, NamedTimeline)
        and case.timeline.name not in NAMED
    )


def _begun(item: pytest.Item, case: Case) -> Record:
    """The record of an item before anything came of it."""
    own = node_id(item)
    timeline = case.timeline
    test = own.removesuffix(f"[{case.id}]")
    if test == own and own.endswith(f"-{case.id}]"):
        test = f"{own.removesuffix(f'-{case.id}]')}]"
    return Record(
        node_id=own,
        test=test,
        id=case.id,
        of=case.of,
        matrix=case.matrix,
        timeline=timeline.text if isinstance(timeline, Timeline) else timeline.script,
        replay=replay(item, case),
    )


def _without(audit: ResumeAudit, ordinals: Iterable[int]) -> list[int]:
    """Ordinals of a report, without those that are allowed to be among them."""
    assert audit.report is not None
    excused = set(audit.report.excused)
    return [ordinal for ordinal in ordinals if ordinal not in excused]


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _is_filtered(config: pytest.Config) -> bool:
    """Whether a file may have tests that were left out by a choice."""
    return any("::" in argument for argument in config.args) or any(
        config.getoption(name, None)
        for name in ("keyword", "markexpr", "deselect", "lf", "stepwise", "resume_audit_shard")
    )
