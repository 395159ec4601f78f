"""The pytest plugin: hooks and fixtures, which import the audit when a test asks for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_resume_audit.fakes.buffer import ReplayBuffer
    from pytest_resume_audit.fakes.engine import Engine
    from pytest_resume_audit.fakes.loader import Loader
    from pytest_resume_audit.fakes.trainer import Trainer
    from pytest_resume_audit.fixture import ResumeAudit
    from pytest_resume_audit.marker import Override
    from pytest_resume_audit.rig import Rig

_MARKER = (
    "resume_audit(collector=None, *, timelines='smoke', setup=None, life='local', deadline=None): "
    "play each of the timelines on a collector, and prove that it loses and repeats no prompt."
)
_OF_A_SESSION = (
    "matrix",
    "budget",
    "shard",
    "require",
    "known",
    "update_known",
    "json",
    "markdown",
)
"""Options that are about all audits together."""
_NAMES = ("resume_audit", __name__)
AUDIT: pytest.StashKey[ResumeAudit] = pytest.StashKey()
"""The audit of an item, from its setup on."""
_OVERRIDE: pytest.StashKey[Override] = pytest.StashKey()


# --- options ------------------------------------------------------------------------------------


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Take both names the plugin goes by, as an entry point and as a module.

    Under only one of them, pytest would load it again where ``-p`` or ``pytest_plugins`` names
    the module of a plugin that is installed too, and refuse to start.
    """
    if plugin is sys.modules[__name__]:
        for name in _NAMES:
            if not manager.has_plugin(name):
                manager.register(object(), name)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, each with the plugin's name in front."""
    group = parser.getgroup("resume-audit")
    group.addoption(
        "--resume-audit-deadline",
        type=float,
        metavar="SECONDS",
        help="seconds without progress after which an audited run is called a hang "
        "(default: resume_audit_deadline of the configuration file, or 30)",
    )
    group.addoption(
        "--resume-audit-timeline",
        metavar="TEXT",
        help="play this script, or the timeline of this name, on every test with a resume_audit "
        "marker, in the place of its own",
    )
    group.addoption(
        "--resume-audit-matrix",
        metavar="NAME",
        help="play this matrix of timelines on every test with a resume_audit marker that names "
        "no timelines, or a matrix (default: that of the marker, resume_audit_matrix of the "
        "configuration file, or smoke)",
    )
    group.addoption(
        "--resume-audit-life",
        metavar="KIND",
        help="the life of every test with a resume_audit marker that names none: local, objects "
        "of this process; process, a child process that a crash kills; ray, an actor that it "
        "kills; or ray-driver, a driver of a Ray cluster (default: local)",
    )
    group.addoption(
        "--resume-audit-list",
        action="store_true",
        help="print the timelines of the matrix, what each is for and where such a loss was seen, "
        "and run nothing; -v: each of those too that differ in the number of an event alone",
    )
    group.addoption(
        "--resume-audit-budget",
        metavar="TIME",
        help="run audits until this time is spent, such as 90s, 20m or 2h, and skip the others: "
        "named timelines first, then a seeded sample (with pytest-xdist, in each worker)",
    )
    group.addoption(
        "--resume-audit-seed",
        type=int,
        metavar="N",
        help="seed of the sample of a budget (default: 0)",
    )
    group.addoption(
        "--resume-audit-shard",
        metavar="NUMBER/COUNT",
        help="run one of several parts of the audits, such as 2/8; all other tests are run in "
        "each of them",
    )
    group.addoption(
        "--resume-audit-require",
        type=int,
        metavar="N",
        help="fail when fewer timelines than this were audited "
        "(default: resume_audit_require of the configuration file)",
    )
    group.addoption(
        "--resume-audit-known",
        metavar="FILE",
        help="losses that are known: they are expected to fail as they did, others are not",
    )
    group.addoption(
        "--resume-audit-update-known",
        action="store_true",
        default=None,
        help="write what was lost into the file of known losses, and take out what is gone",
    )
    group.addoption(
        "--resume-audit-json",
        metavar="FILE",
        help="write the summary of all audits as JSON",
    )
    group.addoption(
        "--resume-audit-markdown",
        metavar="FILE",
        help="add the summary of all audits to a file as Markdown, such as $GITHUB_STEP_SUMMARY",
    )
    parser.addini(
        "resume_audit_matrix",
        default=None,
        help="the matrix of timelines that a resume_audit marker means which names none",
    )
    parser.addini(
        "resume_audit_require",
        type="int",
        default=None,
        help="fail when fewer timelines than this were audited",
    )
    parser.addini(
        "resume_audit_deadline",
        type="float",
        default=None,
        help="seconds without progress after which an audited run is called a hang",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the options before anything is collected."""
    config.addinivalue_line("markers", _MARKER)
    timeline = config.getoption("resume_audit_timeline", None)
    deadline = config.getoption("resume_audit_deadline", None)
    matrix = config.getoption("resume_audit_matrix", None)
    life = config.getoption("resume_audit_life", None)
    configured = _configured(config, "resume_audit_deadline")
    configured_matrix = _configured(config, "resume_audit_matrix") or None
    if (timeline, deadline, matrix, life, configured, configured_matrix) != (None,) * 6:
        from pytest_resume_audit.marker import override

        config.stash[_OVERRIDE] = override(
            timeline, deadline, configured, matrix, configured_matrix, life
        )
    given = [config.getoption(f"resume_audit_{name}", None) for name in _OF_A_SESSION]
    if [*given, _configured(config, "resume_audit_require")] != [None] * (len(given) + 1):
        from pytest_resume_audit.session import session_of

        session_of(config)


def _configured(config: pytest.Config, name: str) -> Any:
    try:
        return config.getini(name)
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise pytest.UsageError(f"{name}: {error}") from None


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Print the timelines in the place of a session, where that is asked for."""
    if not config.getoption("resume_audit_list", False):
        return None
    from pytest_resume_audit.listing import listing
    from pytest_resume_audit.marker import override

    matrix = config.getoption("resume_audit_matrix")
    given = override(None, None, None, matrix, _configured(config, "resume_audit_matrix") or None)
    name = given.matrix or given.configured_matrix or "smoke"
    for line in listing(name, every=config.getoption("verbose", 0) > 0):
        print(line)
    return 0


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the Ray cluster of the processes that pytest-xdist has started: they are over."""
    if config.pluginmanager.has_plugin("dsession"):
        from pytest_resume_audit.lives import ray_cluster

        ray_cluster.end(os.getpid())


# --- tests with the marker ----------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each timeline; last, so that a test's own parameters come first."""
    marks = [*metafunc.definition.iter_markers("resume_audit")]
    if marks:
        from pytest_resume_audit.marker import cases
        from pytest_resume_audit.session import session_of

        found = cases(metafunc, marks, metafunc.config.stash.get(_OVERRIDE, None))
        session_of(metafunc.config)
        each = [
            pytest.param(case, marks=pytest.mark.skip(case.excluded)) if case.excluded else case
            for case in found
        ]
        metafunc.parametrize("resume_audit", each, indirect=True, ids=[case.id for case in found])


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a marked test that has audited nothing; last, so only one that has passed till here."""
    audit = item.stash.get(AUDIT, None)
    if audit is not None:
        audit.check_called()
    elif item.get_closest_marker("resume_audit") is not None:
        from pytest_resume_audit.marker import NO_FIXTURE

        pytest.fail(NO_FIXTURE, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_report_from_serializable(config: pytest.Config, data: dict[str, Any]) -> None:
    """Learn of the first audit in another process; this one may have collected nothing."""
    if "resume_audit" in data:
        from pytest_resume_audit.session import session_of

        session_of(config)


@pytest.hookimpl(wrapper=True)
def pytest_assertrepr_compare(
    config: pytest.Config, op: str, left: object, right: object
) -> Generator[None, list[Iterable[str]], list[Iterable[str]]]:
    """Draw the run, where an assert on ordinals of its report fails."""
    explanations = yield
    for operand in (left, right):
        if type(operand).__module__ == "pytest_resume_audit.verdict":
            from pytest_resume_audit.fixture import explained

            return explained(config, operand, f"{left!r} {op} {right!r}", explanations)
    return explanations


# --- fixtures -----------------------------------------------------------------------------------


@pytest.fixture
def resume_audit(request: pytest.FixtureRequest) -> ResumeAudit:
    """Plays the timeline of this test on the collector of its ``resume_audit`` marker.

    Call it once. It returns the report, and fails the test when the run is not what the
    timeline demands::

        @pytest.mark.resume_audit(MyCollector)
        def test_nothing_is_lost(resume_audit):
            resume_audit()
    """
    from pytest_resume_audit.fixture import ResumeAudit

    audit = request.node.stash[AUDIT] = ResumeAudit(request)
    return audit


@pytest.fixture
def resume_rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Loader, engine, buffer and trainer of one life, for a test written by hand.

    Its sizes are the ``setup`` of the test's ``resume_audit`` marker, where it has one. When the
    test is over the life ends, and every thread that still stands in a call into the rig.
    """
    from pytest_resume_audit.fixture import rig_of_one_test

    mark = request.node.get_closest_marker("resume_audit")
    with rig_of_one_test(None if mark is None else mark.kwargs.get("setup")) as rig:
        yield rig


@pytest.fixture
def resume_loader(resume_rig: Rig) -> Loader:
    """The loader of ``resume_rig``: hands out prompts in batches."""
    return resume_rig.loader


@pytest.fixture
def resume_engine(resume_rig: Rig) -> Engine:
    """The engine of ``resume_rig``: answers prompts when ``finish`` says so."""
    return resume_rig.engine


@pytest.fixture
def resume_buffer(resume_rig: Rig) -> ReplayBuffer:
    """The replay buffer of ``resume_rig``: keeps finished groups."""
    return resume_rig.buffer


@pytest.fixture
def resume_trainer(resume_rig: Rig) -> Trainer:
    """The trainer of ``resume_rig``: trains on groups, and counts them in its weights."""
    return resume_rig.trainer
