"""States that a run can reach: a timeline that never reached what it is for proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_resume_audit.history import History, LifeRecord, SaveRecord
from pytest_resume_audit.setup import Setup


def reached(history: History, setup: Setup) -> frozenset[str]:
    """The names of the states, out of :data:`STATES`, that a history reached."""
    return frozenset(name for name, holds in STATES.items() if holds(history, setup))


def _published(history: History) -> Iterator[SaveRecord]:
    return (save for save in history.saves if save.published)


def _any_save(holds: Callable[[SaveRecord], bool]) -> Callable[[History, Setup], bool]:
    return lambda history, setup: any(holds(save) for save in _published(history))


def _resumed(history: History) -> Iterator[LifeRecord]:
    return (life for life in history.lives if life.origin is not None)


def _any_resumed(holds: Callable[[LifeRecord], bool]) -> Callable[[History, Setup], bool]:
    return lambda history, setup: any(holds(life) for life in _resumed(history))


def _saved_untrained(history: History, setup: Setup) -> bool:
    return any(
        history.lives[save.life - 1].origin is not None and not save.standing.trained
        for save in _published(history)
    )


def _at_the_end_of_a_pass(history: History, setup: Setup) -> bool:
    return any(
        save.standing.place > 0 and save.standing.place % setup.prompts_per_pass == 0
        for save in _published(history)
    )


def _in_a_later_pass(history: History, setup: Setup) -> bool:
    return any(save.standing.place > setup.prompts_per_pass for save in _published(history))


def _rolled_back(history: History, setup: Setup) -> bool:
    return any(
        history.lives[save.life - 1].ordinals("trained", since=save.position)
        for life in _resumed(history)
        if (save := history.save(life.origin or 0))
    )


def _from_an_older(history: History, setup: Setup) -> bool:
    written: dict[int, int] = {save.number: save.life for save in _published(history)}
    return any(
        any(number > (life.origin or 0) and of < life.number for number, of in written.items())
        for life in _resumed(history)
    )


def _twice_from_one(history: History, setup: Setup) -> bool:
    origins = [life.origin for life in _resumed(history)]
    return len(set(origins)) < len(origins)


def _past_a_straggler(history: History, setup: Setup) -> bool:
    def straggles(save: SaveRecord) -> bool:
        flying, trained = save.standing.in_flight, save.standing.trained
        return bool(flying and trained) and min(flying) + setup.batch_size <= max(trained)

    return any(straggles(save) for save in _published(history))


def _settled_behind(kind: str) -> Callable[[History, Setup], bool]:
    def holds(history: History, setup: Setup) -> bool:
        return any(
            history.lives[save.life - 1].ordinals(kind, until=save.position)
            for save in _published(history)
        )

    return holds


STATES: dict[str, Callable[[History, Setup], bool]] = {
    "saved with prompts in flight": _any_save(lambda save: bool(save.standing.in_flight)),
    "saved with a buffer": _any_save(lambda save: bool(save.standing.buffered)),
    "saved with a carried-over rest": _any_save(lambda save: bool(save.standing.handed_out)),
    "saved with part of a group": _any_save(lambda save: bool(save.standing.partly)),
    "saved past a straggler": _past_a_straggler,
    "saved with nothing out": _any_save(lambda save: not save.standing.unsettled),
    "saved at the end of a pass": _at_the_end_of_a_pass,
    "saved in a later pass": _in_a_later_pass,
    "saved with a failure behind it": _settled_behind("failed"),
    "saved with a drop behind it": _settled_behind("dropped"),
    "resumed": _any_resumed(lambda life: True),
    "resumed without the buffer": _any_resumed(
        lambda life: not life.load_buffer and not life.start_buffer
    ),
    "resumed, and saved before anything was trained": _saved_untrained,
    "resumed from an older checkpoint": _from_an_older,
    "resumed twice from one checkpoint": _twice_from_one,
    "started afresh after a crash": lambda history, setup: any(
        life.origin is None and before.ended == "crash"
        for before, life in zip(history.lives, history.lives[1:], strict=False)
    ),
    "resumed from a legacy checkpoint": lambda history, setup: any(
        history.save(life.origin or 0).legacy for life in _resumed(history)
    ),
    "rolled back trained prompts": _rolled_back,
    "raced inside a save": _any_save(lambda save: bool(save.raced)),
    "died between writes": lambda history, setup: any(
        save.died_at or save.torn for save in history.saves
    ),
    "saved": _any_save(lambda save: True),
}
"""What each state is called, and when a history has reached it."""
