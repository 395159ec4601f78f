"""The command ``resume-audit``.

A command imports what it needs when it is called, ends by raising nothing or one of the exceptions
below, and returns its exit code::

    @cli.command()
    @click.argument("path", type=click.Path(path_type=Path))
    def ledger(path: Path) -> int:
        from pytest_resume_audit.real_runs import query
        ...
        return LOSSLESS
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pytest_resume_audit.real_runs.counts import Counts

LOSSLESS, LOSSY, USAGE, UNDETERMINED = 0, 1, 2, 3
"""Exit codes: the verdict, or why there is none."""

_CODES = {"lossless": LOSSLESS, "lossy": LOSSY, "undetermined": UNDETERMINED}

_INTERRUPTED = 130

EXIT_CODES = """\b
Exit codes:
  0  lossless
  1  lossy
  2  the command line, or a file that it names, is wrong
  3  undetermined: it can't be told, and why is said"""


class UsageProblem(click.ClickException):
    """The user has to change the command: one line on what is wrong, and the way out."""

    exit_code = USAGE


class Undetermined(click.ClickException):
    """No verdict can be supported: one line on why, and the way out."""

    exit_code = UNDETERMINED


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@click.version_option(package_name="pytest-resume-audit")
def cli() -> None:
    """Tell from what a training run has left behind whether prompts were lost or repeated."""


_EXAMPLES = f"""\b
Examples:
  resume-audit coverage checkpoints/step-500.pt
  resume-audit coverage output/checkpoint-500 --in-flight 64
  resume-audit coverage final/model.safetensors --complete
  resume-audit coverage step-500.pt step-600.pt --json

{EXIT_CODES}"""


@cli.command(epilog=_EXAMPLES)
@click.argument("checkpoints", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--complete", is_flag=True, help="The run has ended: nothing is in flight any more.")
@click.option(
    "--in-flight",
    type=click.IntRange(min=0),
    metavar="N",
    help="At most N prompts are handed out and not trained at a time, buffered ones too.",
)
@click.option(
    "--prompts",
    type=click.IntRange(min=1),
    metavar="N",
    help="Expect the first N of each pass alone, such as with drop_last.",
)
@click.option(
    "--passes", type=click.IntRange(min=1), metavar="N", help="Expect the first N passes alone."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON value.")
def coverage(
    checkpoints: tuple[Path, ...],
    complete: bool,
    in_flight: int | None,
    prompts: int | None,
    passes: int | None,
    as_json: bool,
) -> int:
    """Tell which prompts went into the weights of a checkpoint, and which did not.

    CHECKPOINT is anything that has the counts of a PromptCoverage: a file of torch.save or
    Lightning, a safetensors file, the directory of a distributed checkpoint, of Hugging Face or of
    accelerate, the file that coverage.save() wrote, or such files of all ranks. No pickle is
    loaded.

    With two checkpoints, the earlier one first: what happened between them. The exit code then is
    for that alone.

    In the middle of a run, a prompt that is not trained may be in flight or in the buffer. Where
    it can't be told from a lost one, the verdict is undetermined: say --complete or --in-flight,
    or have the training call coverage.mark() before it saves.
    """
    import json

    from pytest_resume_audit.real_runs import coverage_text, judging
    from pytest_resume_audit.real_runs.counts import CoverageError

    if complete and in_flight:
        raise UsageProblem("--complete means that nothing is in flight: leave out --in-flight")
    wholes = _read(checkpoints)
    try:
        judge = partial(judging.judge, in_flight=in_flight, prompts=prompts, passes=passes)
        report = judge(wholes[-1], complete=complete)
        between = None
        if len(wholes) == 2:
            before = judge(wholes[0])
            between = judging.compare(wholes[0], wholes[1], before, report)
    except CoverageError as error:
        raise UsageProblem(str(error)) from None
    with _written():
        if as_json:
            click.echo(json.dumps(coverage_text.as_json(report, between)))
        else:
            from rich.console import Console

            console = Console(highlight=False, soft_wrap=False)
            console.print(coverage_text.as_text(report, between, console.width))
    verdict = report.verdict if between is None else between.verdict
    return _CODES[verdict]


def _read(checkpoints: tuple[Path, ...]) -> list[Counts]:
    """The counts of one checkpoint or of two; files of several ranks are one."""
    from pytest_resume_audit.real_runs import reading
    from pytest_resume_audit.real_runs.counts import CoverageError

    try:
        sizes = [file.stat().st_size for path in checkpoints for file in reading.files(path)]
        with _progress(sum(sizes)) as progress:
            found = [reading.find(path, progress) for path in checkpoints]
        shares = [one for those in found for one in those if not one.counts.whole]
        if len(found) > 1 and shares and all(path.is_file() for path in checkpoints):
            found = [[one for those in found for one in those]]
        if len(found) > 2:
            raise UsageProblem(f"{len(found)} checkpoints: give one, or two to be compared")
        return [reading.together(those) for those in found]
    except reading.SeveralCoverages as error:
        raise UsageProblem(str(error)) from None
    except CoverageError as error:
        raise Undetermined(str(error)) from None
    except OSError as error:
        raise UsageProblem(f"{error.filename}: {error.strerror}: give a checkpoint") from None


_WORTH_A_BAR = 1 << 30


@contextmanager
def _progress(size: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, for files that take a while; its function takes bytes done."""
    if size < _WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=size)
        yield lambda done: bar.advance(task, done)


_LEDGER_EXAMPLES = f"""\b
Examples:
  resume-audit ledger ledgers/
  resume-audit ledger ledgers/*.jsonl --complete --json
  resume-audit ledger rollouts/*.parquet --key prompt_id --step step --prompts 17000
  resume-audit ledger train.csv --key uid --step step --pass epoch --keys prompts.csv

{EXIT_CODES}"""


@cli.command(epilog=_LEDGER_EXAMPLES)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--run", "run_name", metavar="NAME", help="Of several runs in a directory, this one.")
@click.option("--complete", is_flag=True, help="The run has ended: what is still out is lost.")
@click.option(
    "--prompts",
    type=click.IntRange(min=1),
    metavar="N",
    help="So many prompts were to be trained by now, in each pass; of a ledger, rows 0 to N - 1.",
)
@click.option(
    "--restarts",
    metavar="STEPS",
    help="The step that each restart has gone on from, such as 100,250; 0 for afresh, none where "
    "there was no restart. By default what the files say.",
)
@click.option("--key", metavar="COLUMN", help="Of other logs than ledgers: the prompt.")
@click.option("--step", metavar="COLUMN", help="Of other logs: the step that has trained it.")
@click.option("--pass", "epoch", metavar="COLUMN", help="Of other logs: the pass over the data.")
@click.option(
    "--keys",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Of other logs: a table of the prompts that were to be trained by now.",
)
@click.option(
    "--memory",
    default="3.5GB",
    show_default=True,
    callback=lambda context, parameter, value: _memory(value),
    help="What is more goes to TMPDIR.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON value.")
def ledger(
    files: tuple[Path, ...],
    run_name: str | None,
    complete: bool,
    prompts: int | None,
    restarts: str | None,
    key: str | None,
    step: str | None,
    epoch: str | None,
    keys: Path | None,
    memory: str,
    as_json: bool,
) -> int:
    """Tell what a run has done with its prompts, and why some were lost or trained twice.

    FILES are the ledgers of all lives of one run, or directories of them, as they are written with
    RESUME_AUDIT_LEDGER. Or they are logs that you have anyway: JSON lines, Parquet or CSV, in the
    order in which they were written, with a column for the prompt (--key) and one for the step
    (--step).
    """
    import json

    from pytest_resume_audit.real_runs import ledger_text, logs, query, sources

    try:
        import duckdb
    except ModuleNotFoundError:
        raise UsageProblem(
            "resume-audit ledger needs duckdb: pip install 'pytest-resume-audit[duckdb]'"
        ) from None
    from pytest_resume_audit.real_runs.database import database

    steps = _steps(restarts)
    try:
        found = sources.find(files, run_name)
        for option, value in (("--key", key), ("--step", step)):
            if found.logs and value is None:
                raise UsageProblem(f"{found.logs[0]} is no ledger: name its columns, {option}=...")
        of_logs = {"--key": key, "--step": step, "--pass": epoch, "--keys": keys}
        given = [option for option, value in of_logs.items() if value is not None]
        if found.ledgers and given:
            raise UsageProblem(
                f"{found.ledgers[0].path} is a ledger: leave out {', '.join(given)}, for other logs"
            )
        with _bar() as progress, database(memory, progress) as at:
            if found.logs:
                assert key is not None
                assert step is not None
                report = logs.judge(
                    at,
                    found,
                    key=key,
                    step=step,
                    epoch=epoch,
                    restarts=steps,
                    prompts=prompts,
                    keys=keys,
                )
            else:
                report = query.judge(at, found, restarts=steps, prompts=prompts, complete=complete)
    except sources.UnreadableSource as error:
        raise UsageProblem(str(error)) from None
    except OSError as error:
        raise UsageProblem(f"{error.filename}: {error.strerror}") from None
    except (
        duckdb.OutOfMemoryException,
        duckdb.IOException,
        duckdb.InvalidInputException,
        duckdb.ConversionException,
    ) as error:
        full = isinstance(error, duckdb.OutOfMemoryException) or "No space left" in str(error)
        if full:
            raise Undetermined(
                f"{_one_line(error)}: give it more --memory, or room in TMPDIR"
            ) from None
        raise UsageProblem(
            f"it can't be read: {_one_line(error)}: leave out the file that is damaged, or is not "
            "what its name ends in"
        ) from None
    with _written():
        if as_json:
            click.echo(json.dumps(report.to_json(), default=str))
        else:
            from rich.console import Console

            Console(highlight=False).print(ledger_text.as_text(report))
    return _CODES[report.verdict]


def _steps(restarts: str | None) -> list[int] | None:
    if restarts is None:
        return None
    if restarts == "none":
        return []
    try:
        return [int(word) for word in restarts.split(",")]
    except ValueError:
        raise UsageProblem(
            f"--restarts {restarts}: steps and commas, such as 100,250, or none"
        ) from None


_MOST_WORDS = 160


def _one_line(error: Exception) -> str:
    """What DuckDB says, without its advice to those who write SQL, and without the data."""
    text = str(error)
    said = re.split(r"\n\n|\n(?:Original Line|Possible|Potential|The search space)|\. Try ", text)[
        0
    ]
    said = " ".join(said.split()).rstrip(".:")
    named = re.search(r"^\s*file\s*=\s*(.+)$", text, re.MULTILINE)
    file = f"{named[1]}: " if named and named[1] not in said else ""
    return f"{file}{said if len(said) <= _MOST_WORDS else said[:_MOST_WORDS] + '...'}"


@contextmanager
def _written() -> Iterator[None]:
    """Around what is printed: where it can't be written, nobody has got a verdict."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Undetermined(
            f"the report can't be written: {error.strerror}: send it elsewhere"
        ) from None


def _memory(memory: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)?\s*[KMGT]i?B", memory, re.IGNORECASE):
        raise click.BadParameter(f"{memory!r} is no number with a unit, such as 3.5GB or 500MB")
    return memory


@contextmanager
def _bar() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal; its function takes what is done, and how much of it."""
    if not sys.stderr.isatty():
        yield lambda what, part: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, part: bar.update(task, description=what, completed=part)


def run(arguments: list[str]) -> int:
    """Run the command line.

    Only a verdict ends with 0 or 1: Python's and click's own 1, for whatever else goes wrong,
    would be read as lossy.

    Args:
        arguments: without the name of the program.

    Returns:
        The exit code.
    """
    code = _run(arguments)
    try:
        if sys.stdout is not None:  # as it is where the shell has closed it
            sys.stdout.flush()
    except OSError:
        sys.stdout = None  # Python flushes it once more as it ends, and would end with 120
    return code


def _run(arguments: list[str]) -> int:
    try:
        code = cli.main(arguments, prog_name="resume-audit", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code if error.exit_code != LOSSY else USAGE
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except (BrokenPipeError, SystemExit):  # rich makes the one the other
        return UNDETERMINED
    except Exception:
        traceback.print_exc()
        print("resume-audit failed: this is a defect of it, not a verdict", file=sys.stderr)
        return UNDETERMINED
    return code if isinstance(code, int) else LOSSLESS
