"""An audit without pytest: play a timeline of your own on a collector, and look at the report."""

from __future__ import annotations

from pytest_resume_audit import FrontierCollector, LiveCursorCollector, run

TIMELINE = "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain"


def main() -> None:
    old = run(LiveCursorCollector, TIMELINE)
    print(f"LiveCursorCollector: {old.verdict}, skipped {old.skipped}")
    print(old, end="\n\n")  # all of it, with the drawing

    new = run(FrontierCollector, TIMELINE)
    print(f"FrontierCollector: {new.verdict}, skipped {new.skipped}")


if __name__ == "__main__":
    main()
