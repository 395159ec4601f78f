"""The picture of a run: exactly these lines, for runs that are written down by hand."""

from __future__ import annotations

import random
import re
import time
from textwrap import dedent

import pytest
from by_hand import ByHand, new_way, old_way, ordinals, the_case

from pytest_resume_audit import AuditReport, Collector, Setup
from pytest_resume_audit.reports.chart import Row, chart
from pytest_resume_audit.reports.drawing import drawing
from pytest_resume_audit.verdict import Reference


def shows(report: AuditReport, expected: str, width: int = 88) -> None:
    """Check a drawing, line by line."""
    assert drawing(report, width=width).splitlines() == dedent(expected).strip("\n").splitlines()


# --- the case that names the project ------------------------------------------------------------


def test_the_old_way_skips_what_was_in_flight() -> None:
    shows(
        old_way().report(),
        """
        ordinal                0         10
                               0123456789012345
        life 1, at save 1      TTTTbfbbffbf....
          restart from save 1              ^
        life 2, at its end     ttttT.TT..T.TTTT
        result                 -----S--SS-S----

        T trained   t trained before (restored weights)   b buffered   f in flight
        . not handed out   ^ where the loader restarts   - trained once   S SKIPPED
        """,
    )


def test_the_new_way_goes_back_and_skips_nothing() -> None:
    shows(
        new_way().report(),
        """
        ordinal                0         10
                               0123456789012345
        life 1, at save 1      TTTTbfbbffbf....
          restart from save 1      ^
        life 2, at its end     ttttTTTTTTTTTTTT
        result                 ----------------

        T trained   t trained before (restored weights)   b buffered   f in flight
        . not handed out   ^ where the loader restarts   - trained once
        """,
    )


def test_a_restart_without_the_buffer_says_so() -> None:
    shows(
        new_way(load_buffer=False).report(),
        """
        ordinal                           0         10
                                          0123456789012345
        life 1, at save 1                 TTTTbfbbffbf....
          restart from save 1, no buffer      ^
        life 2, at its end                ttttTTTTTTTTTTTT
        result                            ----------------

        T trained   t trained before (restored weights)   b buffered   f in flight
        . not handed out   ^ where the loader restarts   - trained once
        """,
    )


# --- lives --------------------------------------------------------------------------------------


def test_what_came_after_the_save_is_rolled_back() -> None:
    run = the_case()
    run.history.lives.clear()
    run.history.saves.clear()
    run.life()
    run.trains("0-3")
    run.out("4-7")
    run.saves()
    run.answered("4-7")
    run.does("trained", "4-7")
    run.ends("crash")
    run.life(1, place=4)
    run.trains("4-11")
    run.saves()
    run.ends("stop")
    run.life(1, place=4)
    run.trains("4-15")
    shows(
        run.report(),
        """
        ordinal                             0         10
                                            0123456789012345
        life 1, at save 1                   TTTTffff........
        life 1, at its crash (rolled back)  TTTTrrrr........
          restart from save 1                   ^
        life 2, at its stop (rolled back)   ttttrrrrrrrr....
          restart from save 1                   ^
        life 3, at its end                  ttttTTTTTTTTTTTT
        result                              ----------------

        T trained   t trained before (restored weights)   r trained, rolled back   f in flight
        . not handed out   ^ where the loader restarts   - trained once
        """,
    )


def test_a_save_of_a_life_that_was_rolled_back_is_marked_too() -> None:
    run = ByHand(Setup(prompts=8))
    run.life()
    run.trains("0-1")
    run.saves()
    run.trains("2-3")
    run.saves()
    run.ends()
    run.life(2, place=4)
    run.ends()
    run.life(1, place=2)
    run.trains("2-7")
    shows(
        run.report(),
        """
        ordinal                             0
                                            01234567
        life 1, at save 1                   TT......
        life 1, at save 2 (rolled back)     TTrr....
          restart from save 2                   ^
        life 2, at its crash (rolled back)  tttt....
          restart from save 1                 ^
        life 3, at its end                  ttTTTTTT
        result                              --------

        T trained   t trained before (restored weights)   r trained, rolled back
        . not handed out   ^ where the loader restarts   - trained once
        """,
    )


def test_a_life_that_began_afresh_and_one_at_the_very_end_of_the_data() -> None:
    run = ByHand(Setup(prompts=4))
    run.life()
    run.trains("0-1")
    run.ends()
    run.life()
    run.trains("0-3")
    run.saves().legacy = True
    run.ends()
    run.life(1, place=4)
    shows(
        run.report(),
        """
        ordinal                             0
                                            0123
        life 1, at its crash (rolled back)  rr..
          restart afresh                    ^
        life 2, at legacy save 1            TTTT
          restart from save 1                   ^
        life 3, at its end                  tttt
        result                              ----

        T trained   t trained before (restored weights)   r trained, rolled back
        . not handed out   ^ where the loader restarts   - trained once
        """,
    )


def test_failed_and_dropped_prompts_stay_so_over_two_restarts() -> None:
    run = ByHand(Setup(prompts=8))
    run.life()
    run.out("0-3")
    run.does("failed", "1")
    run.does("dropped", "2")
    run.answered("0 3")
    run.does("trained", "0 3")
    run.saves()
    run.ends()
    run.life(1, place=4)
    run.trains("4 5")
    run.saves()
    run.ends()
    run.life(2, place=6)
    run.trains("6 7")
    shows(
        run.report(),
        """
        ordinal                0
                               01234567
        life 1, at save 1      TxdT....
          restart from save 1      ^
        life 2, at save 2      txdtTT..
          restart from save 2        ^
        life 3, at its end     txdtttTT
        result                 -xd-----

        T trained   t trained before (restored weights)   x failed   d dropped
        . not handed out   ^ where the loader restarts   - trained once
        """,
    )


def test_rows_in_the_middle_of_many_lives_are_left_out() -> None:
    run = ByHand(Setup(prompts=12))
    run.life()
    for ordinal in range(11):
        run.trains(f"{ordinal}")
        run.saves()
        run.ends()
        run.life(ordinal + 1, place=ordinal + 1)
    run.trains("11")
    shows(
        run.report(),
        """
        ordinal                 0         10
                                012345678901
        life 1, at save 1       T...........
          restart from save 1    ^
        life 2, at save 2       tT..........
          restart from save 2     ^
          ... 9 more rows
          restart from save 7          ^
        life 8, at save 8       tttttttT....
          restart from save 8           ^
        life 9, at save 9       ttttttttT...
          restart from save 9            ^
        life 10, at save 10     tttttttttT..
          restart from save 10            ^
        life 11, at save 11     ttttttttttT.
          restart from save 11             ^
        life 12, at its end     tttttttttttT
        result                  ------------

        T trained   t trained before (restored weights)   . not handed out
        ^ where the loader restarts   - trained once
        """,
    )


# --- what can become of a prompt ----------------------------------------------------------------


def test_every_standing_has_a_symbol() -> None:
    run = ByHand(Setup(prompts=12, group_size=2))
    run.life()
    run.does("handed_out", "0-10")
    run.does("dispatched", "0-8")
    run.does("finished", "0 1 3-6")
    run.does("failed", "7")
    run.does("dropped", "8")
    run.does("finished", "2", generation=1)
    run.does("buffered", "0 1 4 5")
    run.does("trained", "0 1")
    run.does("evicted", "4")
    run.saves()
    run.ends()
    run.life(1, place=2)
    run.trains("2-6 9-11")
    shows(
        run.report(),
        """
        ordinal                0         10
                               012345678901
        life 1, at save 1      TTphebhxdoo.
          restart from save 1    ^
        life 2, at its end     ttTTTTTxdTTT
        result                 -------xd---

        T trained   t trained before (restored weights)   b buffered
        h finished, held by the collector   p in flight, part of the group finished
        o handed out, not dispatched   e evicted from the buffer   x failed   d dropped
        . not handed out   ^ where the loader restarts   - trained once
        """,
    )


def test_every_fault_has_a_symbol() -> None:
    run = ByHand(Setup(prompts=16, group_size=2))
    run.life()
    run.trains("0-11")
    run.saves()
    run.ends()
    run.life(1, place=12)
    run.trains("1 2 2 3 3 3 3 3 3 3 3 3")
    run.ready("12")
    run.out("13")
    run.does("finished", "13")
    run.does("buffered", "13")
    run.does("trained", "13", generation=0)
    stream = frozenset(range(16))
    reference = Reference(run.history.rows, stream - {0, 15}, frozenset(), frozenset())
    shows(
        run.report(reference=reference),
        """
        ordinal                0         10
                               0123456789012345
        life 1, at save 1      TTTTTTTTTTTT....
          restart from save 1              ^
        life 2, at its end     tTTTttttttttbb..
        result                 U239--------BPSn

        T trained   t trained before (restored weights)   b buffered   . not handed out
        ^ where the loader restarts   - trained once   S SKIPPED
        B STARVED (left in the buffer)   P TRAINED IN PART   U UNEXPECTED   2 TRAINED TWICE
        3 TRAINED 3 TIMES   9 TRAINED 9 TIMES OR MORE
        n not trained by an uninterrupted run either
        """,
    )


def test_what_is_allowed_is_written_small() -> None:
    class AtLeastOnce(Collector):
        delivery = "at_least_once"

    run = old_way()
    run.history.save(1).legacy = True
    run.record.warned = True
    picture = drawing(run.report(demand="legacy"))
    assert "result                    -----s--ss-s----" in picture
    assert "s skipped, allowed here" in picture

    run = ByHand(Setup(prompts=4))
    run.life()
    run.out("0")
    run.trains("1")
    run.saves()
    run.ends()
    run.life(1)
    run.trains("0-3")
    picture = drawing(run.report(collector=AtLeastOnce))
    assert "result                 -+--" in picture
    assert "+ trained again, allowed here" in picture


# --- several passes -----------------------------------------------------------------------------


def test_passes_are_told_apart() -> None:
    run = the_case(Setup(prompts=8, passes=2, shuffle=True))
    run.life(1, place=4)
    run.trains("4-15")
    shows(
        run.report(),
        """
        ordinal                0          10
                               01234567|89012345
        life 1, at save 1      TTTTbfbb|ffbf....
          restart from save 1      ^
        life 2, at its end     ttttTTTT|TTTTTTTT
        result                 --------|--------

        T trained   t trained before (restored weights)   b buffered   f in flight
        . not handed out   ^ where the loader restarts   | a pass begins   - trained once
        """,
    )


def test_passes_are_told_apart_while_there_is_room() -> None:
    rows = [Row("life 1", "T" * 1000)]
    assert chart(rows, breaks=[500], width=40) == [
        "ordinal  0-499 500-999",
        "life 1   TTTTT|TTTTTTT",
    ]
    assert chart(rows, breaks=range(10, 1000, 10), width=40) == [
        "ordinal  0-999",
        "life 1   TTTTT",
    ]


# --- hundreds of prompts ------------------------------------------------------------------------


def hundreds() -> ByHand:
    """Of 2400 prompts, every third from 600 to 659 is in flight at the save, and lost."""
    run = ByHand(Setup(prompts=2400, batch_size=100, prompts_per_step=100))
    run.life()
    run.trains("0-599")
    run.ready(" ".join(str(o) for o in range(600, 660) if o % 3))
    run.out(" ".join(str(o) for o in range(600, 660, 3)))
    run.ready("660-799")
    run.saves()
    run.ends()
    run.life(1, place=800)
    kept = " ".join(str(o) for o in range(600, 660) if o % 3) + " 660-799"
    run.does("buffered", kept)
    run.does("trained", kept)
    run.trains("800-2399")
    return run


def test_columns_that_look_the_same_are_folded() -> None:
    run = ByHand(Setup(prompts=640))
    run.life()
    run.trains("0-299")
    run.ready("300-309 311 314-399")
    run.out("310 312 313 400-499")
    run.saves()
    run.ends()
    run.life(1, place=500)
    run.does("buffered", "300-309 311 314-399")
    run.does("trained", "300-309 311 314-399")
    run.trains("500-639")
    shows(
        run.report(),
        """
        ordinal                0-299 300-309 310  314-399 400-499 500-639
                                             0123
        life 1, at save 1      TTTTT bbbbbbb fbff bbbbbbb fffffff .......
          restart from save 1                                     ^
        life 2, at its end     ttttt TTTTTTT .T.. TTTTTTT ....... TTTTTTT
        result                 ----- ------- S-SS ------- SSSSSSS -------

        T trained   t trained before (restored weights)   b buffered   f in flight
        . not handed out   ^ where the loader restarts   - trained once   S SKIPPED
        """,
    )


def test_what_is_still_too_wide_goes_into_blocks() -> None:
    shows(
        hundreds().report(),
        """
        ordinal                0-599 600       610       620       630       640       650
                                     0123456789012345678901234567890123456789012345678901234567
        life 1, at save 1      TTTTT fbbfbbfbbfbbfbbfbbfbbfbbfbbfbbfbbfbbfbbfbbfbbfbbfbbfbbfbbf
        life 2, at its end     ttttt .TT.TT.TT.TT.TT.TT.TT.TT.TT.TT.TT.TT.TT.TT.TT.TT.TT.TT.TT.
        result                 ----- S--S--S--S--S--S--S--S--S--S--S--S--S--S--S--S--S--S--S--S

        ordinal                658-799 800-2399
        life 1, at save 1      bbbbbbb ........
          restart from save 1          ^
        life 2, at its end     TTTTTTT TTTTTTTT
        result                 ------- --------

        T trained   t trained before (restored weights)   b buffered   f in flight
        . not handed out   ^ where the loader restarts   - trained once   S SKIPPED
        """,
    )


def test_blocks_with_a_loss_are_drawn_first() -> None:
    symbols = "ab" * 100
    assert chart([Row("r", symbols)], urgent=[170], width=50, height=8) == [
        "ordinal  0         10        20        30",
        "         0123456789012345678901234567890123456789",
        "r        abababababababababababababababababababab",
        "",
        "... 40-159 not drawn",
        "",
        "ordinal  160       170       180       190",
        "         0123456789012345678901234567890123456789",
        "r        abababababababababababababababababababab",
    ]


# --- runs that came to no end -------------------------------------------------------------------


def test_a_run_that_failed_has_no_result() -> None:
    run = the_case()
    run.history.saves.clear()
    shows(
        run.report(error=ValueError("no disk"), counts=None),
        """
        ordinal                 0         10
                                0123456789012345
        life 1, when it failed  TTTTbfbbffbf....

        T trained   b buffered   f in flight   . not handed out
        """,
    )


def test_a_life_that_did_not_come_to_its_start_has_no_place() -> None:
    run = the_case()
    run.life(1)
    run.record.start_counts = ()
    run.ends("end")
    shows(
        run.report(refusal=ValueError("not mine"), counts=None),
        """
        ordinal                  0         10
                                 0123456789012345
        life 1, at save 1        TTTTbfbbffbf....
          restart from save 1
        life 2, when it refused  tttt............

        T trained   t trained before (restored weights)   b buffered   f in flight
        . not handed out
        """,
    )


def test_a_life_that_was_cut_off_is_drawn_as_far_as_it_came() -> None:
    run = the_case()
    run.life(1, place=12)
    run.does("buffered", "4 6 7 10")
    run.out("12-15")
    shows(
        run.report(hang="save does not return", counts=None),
        """
        ordinal                        0         10
                                       0123456789012345
        life 1, at save 1              TTTTbfbbffbf....
          restart from save 1                      ^
        life 2, where it stands still  ttttb.bb..b.ffff

        T trained   t trained before (restored weights)   b buffered   f in flight
        . not handed out   ^ where the loader restarts
        """,
    )


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawing(ByHand().report()) == ""


# --- what holds for every drawing ---------------------------------------------------------------


def test_colours_add_nothing_but_codes() -> None:
    report = old_way().report()
    plain, coloured = drawing(report), drawing(report, color=True)
    assert "\033" not in plain
    assert re.sub(r"\033\[[\d;]*m", "", coloured) == plain
    assert "\033[1;31mSS\033[0m" in coloured
    assert "\033[32mTTTT\033[0m\033[36mb\033[0m\033[33mf\033[0m" in coloured


def read_back(lines: list[str], label: str) -> dict[int, str]:
    """The symbols of one row as a reader of the chart finds them, over all blocks."""
    found: dict[int, str] = {}
    names: dict[int, str] = {}
    for line in lines:
        if line.startswith("ordinal"):
            names = {m.start(): m[0] for m in re.finditer(r"[\d-]+", line)}
        elif line.startswith(label):
            ordinal = -1
            x = min(names)
            while x < len(line):
                name = names.get(x, "")
                if "-" in name:
                    first, last = map(int, name.split("-"))
                    assert len(set(line[x : x + len(name)])) == 1
                    symbols = dict.fromkeys(range(first, last + 1), line[x])
                    x += len(name)
                    ordinal = last
                elif line[x] in " |":
                    x += 1
                    continue
                else:
                    ordinal = int(name or ordinal + 1)
                    symbols = {ordinal: line[x]}
                    x += 1
                assert not symbols.keys() & found.keys()
                found.update(symbols)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_a_chart_can_be_read_back(seed: int) -> None:
    pick = random.Random(seed)
    count, width = pick.choice([1, 16, 90, 300, 2400]), pick.randrange(50, 140)
    likely = pick.choice([0.01, 0.1, 0.9])
    rows = []
    for label in ("life 1, at save 1", "life 2, at its end", "result"):
        symbol, symbols = "T", ""
        for _ in range(count):
            symbol = pick.choice("Tbf.") if pick.random() < likely else symbol
            symbols += symbol
        rows.append(Row(label, symbols))
    place = pick.randrange(count + 1)
    rows.insert(1, Row("  restart from save 1", mark=place))
    lines = chart(rows, breaks=range(7, count, 7), width=width, height=100_000)

    assert max(map(len, lines)) <= width
    assert sum(line.count("^") for line in lines) == 1
    for row in rows:
        if row.symbols:
            assert read_back(lines, row.label) == dict(enumerate(row.symbols))


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("make", [old_way, new_way, hundreds])
def test_each_ordinal_has_one_result_and_lines_keep_the_width(
    make: type[ByHand], width: int
) -> None:
    report = make().report()
    lines = drawing(report, width=width).splitlines()
    results = read_back(lines, "result")
    assert list(results) == list(range(report.setup.total))
    assert [o for o, symbol in results.items() if symbol == "S"] == report.skipped
    assert max(map(len, lines)) <= width
    assert all(line.isascii() and line == line.rstrip() for line in lines)


def test_a_long_and_scattered_run_is_drawn_short_and_soon() -> None:
    pick = random.Random(0)
    run = ByHand(Setup(prompts=5000))
    run.life()
    for saves in range(1, 11):
        some = " ".join(str(o) for o in sorted(pick.sample(range(5000), 2000)))
        run.out(some)
        run.saves()
        run.ends()
        run.life(saves, place=pick.randrange(5000))
    # Nothing is expected of this run, so that judging it is not what takes long.
    nothing: frozenset[int] = frozenset()
    report = run.report(reference=Reference(run.history.rows, nothing, nothing, nothing))
    began = time.perf_counter()
    lines = drawing(report).splitlines()
    assert time.perf_counter() - began < 2
    assert len(lines) <= 40


def test_ordinals_in_words_are_numbers_again() -> None:
    assert ordinals("0-3 5 8-9") == [0, 1, 2, 3, 5, 8, 9]
