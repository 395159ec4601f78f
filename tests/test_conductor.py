"""What `run` takes and refuses, which of two forms it plays, and what it leaves behind."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from pytest_resume_audit import (
    Collector,
    FrontierCollector,
    FuturesCollector,
    LiveCursorCollector,
    Rig,
    Rollout,
    Setup,
    conductor,
    run,
    workspace,
)
from pytest_resume_audit.catalogue import NAMED, NamedTimeline
from pytest_resume_audit.history import Event, History, LifeRecord
from pytest_resume_audit.timeline import Timeline, TimelineError
from pytest_resume_audit.verdict import Asked

ONE_STEP = "hand_out 4; finish 0-3; train; save; crash; restart; drain"

# --- what it takes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"setup": {"prompts": 8}}, "setup is a Setup, .* not {'prompts': 8}"),
        ({"life": "thread"}, "life is one of 'local', 'process'.*, not 'thread'"),
        ({"deadline": "30"}, "deadline is a number of seconds above 0, not '30'"),
        ({"deadline": True}, "deadline is .* not True"),
        ({"deadline": 0}, "deadline is .* not 0"),
        ({"deadline": -1.5}, "deadline is .* not -1.5"),
        ({"deadline": float("inf")}, "deadline is .* not inf"),
        ({"deadline": float("nan")}, "deadline is .* not nan"),
        ({"collector": int}, "a collector is a class, or a callable .* not type"),
        ({"collector": 5}, "a collector is a class, or a callable .* not int"),
        ({"collector": lambda rig: rig}, "the factory must make a Collector .* not Rig"),
        ({"timeline": 5}, "a timeline is a script, .* not int"),
        ({"collector": lambda rig: FuturesCollector(rig), "life": "process"}, "import"),
    ],
)
def test_what_it_can_t_play_is_a_type_error(wrong: dict[str, Any], said: str) -> None:
    kwargs = {"collector": FuturesCollector, "timeline": "clean", **wrong}
    with pytest.raises(TypeError, match=said):
        run(**kwargs)


@pytest.mark.parametrize("deadline", [0.5, 5])
def test_a_deadline_is_a_whole_number_or_a_part(deadline: float) -> None:
    assert run(FuturesCollector, ONE_STEP, deadline=deadline).verdict == "lossless"


def test_a_name_that_is_nearly_right_is_told() -> None:
    with pytest.raises(TimelineError) as caught:
        run(FuturesCollector, "mid-fligt")
    assert "did you mean 'mid-flight'?" in str(caught.value)


def test_a_script_that_is_wrong_is_told_as_one() -> None:
    with pytest.raises(TimelineError) as caught:
        run(FuturesCollector, "hand_out 4; trane")
    assert "did you mean `train`?" in str(caught.value)


@pytest.mark.parametrize(
    ("script", "demand"),
    [
        (ONE_STEP, "lossless"),
        ("hand_out 4; crash in save torn each; restart", "lossless or refused"),
        ("hand_out 4; save; crash; restart with batch_size 8", "lossless or refused"),
        ("hand_out 4; save; downgrade; crash; restart", "legacy"),
        ("save; downgrade; crash; restart with batch_size 8", "legacy"),
    ],
)
def test_a_script_demands_what_its_steps_make_sense_of(script: str, demand: str) -> None:
    assert run(FuturesCollector, script).demand == demand
    assert run(FuturesCollector, Timeline.parse(script)).demand == demand


def test_the_sizes_are_those_of_the_call_else_those_of_the_timeline() -> None:
    asked = Asked(Timeline.parse(ONE_STEP), Setup(prompts=8), name="own")
    assert run(FuturesCollector, asked).setup == Setup(prompts=8)
    assert run(FuturesCollector, asked, setup=Setup(prompts=12)).setup == Setup(prompts=12)
    assert run(FuturesCollector, asked).name == "own"
    assert run(FuturesCollector, asked).demand == "lossless"
    assert run(FuturesCollector, ONE_STEP).setup == Setup()
    assert run(FuturesCollector, ONE_STEP, setup=Setup(prompts=12)).setup == Setup(prompts=12)
    named = NAMED["second-pass"]
    sizes = Setup(prompts=8, passes=2, shuffle=True)
    assert run(FuturesCollector, named, setup=Setup(seed=3)).setup.passes == sizes.passes
    assert run(FuturesCollector, named, setup=Setup(seed=3)).setup.seed == 3


def test_one_that_has_a_thread_all_the_same_is_played_once_more_with_threads() -> None:
    styles = []

    class Starts(FuturesCollector):
        """Is pulled, and has a thread that waits for its end."""

        def start(self) -> None:
            super().start()
            self.over = threading.Event()
            thread = threading.Thread(target=self.over.wait, daemon=True)
            thread.start()
            styles.append(threading.current_thread() is threading.main_thread())

    report = run(Starts, ONE_STEP)
    assert (report.verdict, report.skipped) == ("lossless", [])
    assert len(styles) == 4, "the life that showed it, the uninterrupted run, and two lives"
    assert not any(styles), "never in the thread of whoever asks"


# --- by ordinals, or by position ----------------------------------------------------------------

NARROW = {"max_in_flight": 2}
LATE = "hand_out 12; finish 11; save; crash; restart; drain"
"""With two in flight 11 is not sent off, and nothing is buffered at the save."""


def own(script: str, by_position: str, *states: str, **kwargs: Any) -> NamedTimeline:
    return NamedTimeline(
        name="own", purpose="", script=script, by_position=by_position, must_reach=states,
        sizes=NARROW, **kwargs,
    )  # fmt: skip


BUFFERED = "saved with a buffer"
NEWEST = "hand_out; finish newest 1; save; crash; restart; drain"


def test_what_a_throttle_keeps_from_a_script_is_played_by_position() -> None:
    report = run(FuturesCollector, own(LATE, NEWEST, "saved", BUFFERED))
    assert (report.verdict, report.unreached) == ("lossless", None)
    assert report.timeline.text == NEWEST


def test_what_is_not_reached_by_position_either_is_told_of_the_script() -> None:
    report = run(FuturesCollector, own(LATE, LATE.replace("11", "15"), "saved", BUFFERED))
    assert report.passed
    assert report.unreached is not None
    assert report.timeline.text == LATE


def test_a_loss_by_position_is_told_though_it_shows_not_all() -> None:
    """Of the two in flight neither is saved."""
    lossless = "hand_out 12; finish 11; drain"
    lossy = "hand_out; save; crash; restart; drain"
    report = run(LiveCursorCollector, own(lossless, lossy, BUFFERED))
    assert (report.verdict, report.passed) == ("lossy", False)
    assert report.timeline.text == lossy
    assert report.skipped[:2] == [0, 1]


def test_a_loss_by_position_is_told_though_it_is_throttled_too() -> None:
    """Of the two in flight neither is saved, and 11 is not sent off."""
    lossless = "hand_out 12; finish 11; drain"
    lossy = "hand_out 12; finish 11; save; crash; restart; drain"
    report = run(LiveCursorCollector, own(lossless, lossy, BUFFERED))
    assert report.unreached is not None
    assert (report.verdict, report.passed) == ("lossy", False)
    assert report.timeline.text == lossy


def test_a_script_that_shows_all_is_not_played_again() -> None:
    report = run(FuturesCollector, own("hand_out 4; save; crash; restart; drain", NEWEST, "saved"))
    assert report.timeline.text == "hand_out 4; save; crash; restart; drain"


def test_a_loss_is_not_made_good_by_position() -> None:
    lossy = "hand_out 12; finish 11; save; crash; restart; drain"
    clean = "hand_out; finish newest 1; drain"
    report = run(LiveCursorCollector, own(lossy, clean, "saved", BUFFERED))
    assert not report.passed
    assert report.timeline.text == lossy


def test_without_a_legacy_checkpoint_the_other_form_is_not_played() -> None:
    made = []

    class Counting(LiveCursorCollector):
        def __init__(self, rig: Rig) -> None:
            super().__init__(rig)
            made.append(rig)

    script = "hand_out 12; finish 11; save; downgrade; crash; restart; drain"
    timeline = own(script, script.replace("11", "newest 1"), "saved", demand="legacy")
    report = run(Counting, timeline)
    assert report.unreached is not None
    assert report.timeline.text == script
    assert len(made) == 3, "the uninterrupted run, and two lives"


# --- the uninterrupted run ----------------------------------------------------------------------


def counting() -> tuple[type[FuturesCollector], list[Setup]]:
    made: list[Setup] = []

    class Counting(FuturesCollector):
        def __init__(self, rig: Rig) -> None:
            super().__init__(rig)
            made.append(rig.setup)

    return Counting, made


def test_the_uninterrupted_run_of_a_class_is_played_once_for_each_size() -> None:
    """Two lives each time; and the uninterrupted run, where it is not known."""
    collector, made = counting()
    lives = []
    for setup in (Setup(), Setup(), Setup(prompts=12), Setup(), Setup(prompts=12)):
        made.clear()
        assert run(collector, ONE_STEP, setup=setup).verdict == "lossless"
        lives.append(len(made))
    assert lives == [3, 2, 3, 2, 2]


def test_scripts_that_are_measured_against_one_run_have_it_played_once() -> None:
    collector, made = counting()
    whole = Timeline.parse("hand_out 4; finish 0-3; train; hand_out 8; drain")
    lives = []
    for script in (ONE_STEP, "hand_out 8; save; crash; restart; drain"):
        made.clear()
        assert run(collector, Asked(Timeline.parse(script), Setup(), uninterrupted=whole)).passed
        lives.append(len(made))
    assert lives == [3, 2]


def test_what_is_handed_out_and_not_trained_without_a_crash_is_not_expected() -> None:
    """18 prompts in steps of 4: the last two are answered, and never make a step."""

    class OnlyWholeSteps(FuturesCollector):
        def train_step(self) -> bool:
            return len(self.rig.buffer) >= 4 and super().train_step()

    report = run(OnlyWholeSteps, ONE_STEP, setup=Setup(prompts=18))
    assert (report.verdict, report.structural) == ("lossless", [16, 17])


def test_what_is_trained_in_part_without_a_crash_is_no_fault_of_one() -> None:
    """The first answer to prompt 1 fails, and the second is trained alone."""

    class TrainsAnyAnswer(Collector):
        def __init__(self, rig: Rig) -> None:
            super().__init__(rig)
            self.batches = iter(rig.loader)
            self.answers: list[Rollout] = []

        def start(self) -> None:
            """Nothing to start."""

        def pull(self) -> bool:
            batch = next(self.batches, [])
            for prompt in batch:
                for generation in range(2):
                    self.rig.engine.submit(prompt, generation).add_done_callback(self.ended)
            return bool(batch)

        def ended(self, answer: Any) -> None:
            if answer.exception() is None:
                self.answers.append(answer.result())

        def train_step(self) -> bool:
            answers, self.answers = self.answers, []
            if answers:
                self.rig.trainer.train(answers)
            return bool(answers)

        def save(self, root: Path, step: int) -> None:
            raise NotImplementedError

        def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
            raise NotImplementedError

    report = run(TrainsAnyAnswer, "hand_out 4; fail 1:0", setup=Setup(prompts=8, group_size=2))
    assert (report.verdict, report.partial, report.structural) == ("lossless", [], [])


def test_the_uninterrupted_run_of_a_factory_is_played_each_time() -> None:
    """It may make something else the next time."""
    collector, made = counting()

    def make(rig: Rig) -> FuturesCollector:
        return collector(rig)

    for _ in range(2):
        made.clear()
        assert run(make, ONE_STEP).verdict == "lossless"
        assert len(made) == 3


def test_a_factory_s_collector_is_judged_by_its_own_declarations() -> None:
    class OnceMore(FuturesCollector):
        """Trains what it restores once more, as it says."""

        delivery = "at_least_once"

    report = run(lambda rig: OnceMore(rig), ONE_STEP)
    assert report.collector.endswith("OnceMore")
    assert run(OnceMore, ONE_STEP).collector == report.collector


def test_what_goes_wrong_without_a_crash_is_told_without_one() -> None:
    class Broken(FuturesCollector):
        def train_step(self) -> bool:
            raise ArithmeticError("no gradient")

    report = run(Broken, NAMED["mid-flight"])
    assert report.verdict == "error"
    assert isinstance(report.error, ArithmeticError)
    assert "save" not in report.timeline.text
    assert "crash" not in report.timeline.text
    assert report.unreached is None
    assert report.name == "mid-flight"


@pytest.mark.parametrize(
    ("dropped_at", "oldest"),
    [
        (None, 2),
        (3, 2),
        (2, None),  # it drops what it would train: not for its age
        (0, None),
    ],
)
def test_the_age_that_an_uninterrupted_run_trains_at_the_most(
    dropped_at: int | None, oldest: int | None
) -> None:
    events = [Event("dispatched", ordinal, 0, 0) for ordinal in range(3)]
    if dropped_at is not None:
        events.append(Event("dropped", 2, None, dropped_at, "not wanted"))
    events += [Event("trained", 0, 0, 3), Event("trained", 1, 0, 1)]
    assert conductor._oldest(History(lives=[LifeRecord(1, events=events)])) == oldest


def test_a_run_that_trains_nothing_trains_no_age() -> None:
    events = [Event("dispatched", 0, 0, 0), Event("dropped", 0, None, 5, "too old")]
    assert conductor._oldest(History(lives=[LifeRecord(1, events=events)])) is None


def test_a_save_that_fails_is_raced_once() -> None:
    saves = []

    class FailsToSave(FrontierCollector):
        def save(self, root: Path, step: int) -> None:
            saves.append(step)
            raise OSError("disk full")

    script = "hand_out 8; finish 0-3; train; save racing (finish 4); crash; restart"
    report = run(FailsToSave, script)
    assert (report.verdict, str(report.error)) == ("error", "disk full")
    assert saves == [1]


# --- how long it waits --------------------------------------------------------------------------


class Works:
    """A run that moves whenever it is looked at, until that has been so three times."""

    def __init__(self) -> None:
        self.looks, self.given_up_by = 0, ""
        self.over = threading.Event()

    def play(self) -> str:
        assert threading.current_thread().daemon, "one that hangs would keep the process alive"
        self.over.wait()
        return "played"

    @property
    def activity(self) -> int:
        self.looks += 1
        if self.looks == 3:
            self.over.set()
        return self.looks

    def given_up(self, thread: threading.Thread) -> str:
        self.over.set()
        return "given up"

    def give_up(self) -> None:
        self.over.set()
        self.given_up_by = "whoever asked"


def test_a_run_that_moves_may_take_longer_than_the_deadline() -> None:
    assert conductor._supervised(Works(), deadline=0.01) == "played"


def test_a_run_that_does_not_move_is_given_up() -> None:
    class StandsStill(Works):
        activity = 7

    assert conductor._supervised(StandsStill(), deadline=0.01) == "given up"


def test_whoever_asked_and_is_interrupted_leaves_no_run_behind() -> None:
    class Interrupted(Works):
        @property
        def activity(self) -> int:
            raise KeyboardInterrupt

    works = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        conductor._supervised(works, deadline=0.01)
    assert works.given_up_by == "whoever asked"


# --- what it leaves behind ----------------------------------------------------------------------


def test_nothing_is_left_of_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "_memory", lambda: str(tmp_path))
    roots = []

    class Wanders(FuturesCollector):
        def save(self, root: Path, step: int) -> None:
            super().save(root, step)
            os.chdir(root)
            roots.append(root)

    before = os.getcwd()
    assert run(Wanders, ONE_STEP).verdict == "lossless"
    assert [root.is_relative_to(tmp_path) for root in roots] == [True]
    assert list(tmp_path.iterdir()) == []
    assert os.getcwd() == before


def test_a_directory_that_is_gone_is_told_of_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots, gone = tmp_path / "roots", tmp_path / "gone"
    monkeypatch.setattr(workspace, "_memory", lambda: str(roots))
    roots.mkdir()
    gone.mkdir()
    monkeypatch.chdir(gone)

    class Removes(FuturesCollector):
        def save(self, root: Path, step: int) -> None:
            gone.rmdir()
            super().save(root, step)

    # Removed in the middle of it, and before.
    assert run(Removes, ONE_STEP).verdict == "lossless"
    assert list(roots.iterdir()) == []
    with pytest.raises(FileNotFoundError, match="the current directory is gone"):
        run(FuturesCollector, ONE_STEP)
    assert list(roots.iterdir()) == []


def test_a_warning_of_the_collector_reaches_whoever_asked() -> None:
    class Warns(FuturesCollector):
        def save(self, root: Path, step: int) -> None:
            warnings.warn("the disk is nearly full", stacklevel=1)
            super().save(root, step)

    with pytest.warns(UserWarning, match="the disk is nearly full"):
        report = run(Warns, ONE_STEP)
    assert report.verdict == "lossless"
