"""``--resume-audit-list``: what timelines there are, and what each is for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_resume_audit import listing
from pytest_resume_audit.catalogue import NAMED

FOLDED = [
    "nightly: 8 timelines",
    "",
    "clean (demands clean)",
    "    an uninterrupted run trains every prompt once",
    "    drain",
    "",
    "mid-flight (demands lossless)",
    "    the case that names the project: four prompts are in flight at the save",
    "    hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain",
]
GENERATED = [
    "    generated",
    "    hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain",
]


def listed(pytester: pytest.Pytester, *options: str) -> list[str]:
    # A test that would fail, to see that none is run.
    pytester.makepyfile("def test_x(): assert False")
    result = pytester.runpytest("--resume-audit-list", *options)
    assert result.ret == pytest.ExitCode.OK
    assert not result.errlines
    return result.outlines


def without_seen(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("    seen: ")]


def test_every_named_timeline_is_listed_by_default(pytester: pytest.Pytester) -> None:
    lines = without_seen(listed(pytester))
    assert lines[0] == f"smoke: {len(NAMED)} timelines"
    assert lines[1:] == [
        line
        for timeline in NAMED.values()
        for line in (
            "",
            f"{timeline.name} (demands {timeline.demand})",
            f"    {timeline.purpose}",
            f"    {timeline.script}",
        )
    ]


@pytest.mark.usefixtures("nightly")
@pytest.mark.parametrize(
    "options", [("--resume-audit-matrix=nightly",), ("-o", "resume_audit_matrix=nightly")]
)
def test_generated_timelines_that_differ_in_a_number_are_folded(
    options: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    folded = without_seen(listed(pytester, *options))
    assert folded == [*FOLDED, "", "g0 (demands lossless), and 5 more like it", *GENERATED]
    every = without_seen(listed(pytester, "-v", *options))
    assert every == [
        *FOLDED,
        *(line for n in range(6) for line in ("", f"g{n} (demands lossless)", *GENERATED)),
    ]


def test_it_says_where_such_a_loss_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = ("a/b#1", "c/d#2")
    fields = ("name", "purpose", "demand", "script")
    clean = {field: getattr(NAMED["clean"], field) for field in fields}
    timeline = SimpleNamespace(**clean, seen=seen)
    monkeypatch.setattr(listing, "matrix", lambda name: (timeline,))
    *_, last = listing.listing("smoke")
    assert last == "    seen: a/b#1, c/d#2"


def test_a_wrong_matrix(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--resume-audit-list", "--resume-audit-matrix=smok")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--resume-audit-matrix: 'smok' is no matrix, did you mean" in result.stderr.str()
