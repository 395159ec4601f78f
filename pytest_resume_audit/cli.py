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

import sys
import traceback

import click

LOSSLESS, LOSSY, USAGE, UNDETERMINED = 0, 1, 2, 3
"""Exit codes: the verdict, or why there is none."""

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


def run(arguments: list[str]) -> int:
    """Run the command line.

    Only a verdict ends with 0 or 1: Python's and click's own 1, for whatever else goes wrong,
    would be read as lossy.

    Args:
        arguments: without the name of the program.

    Returns:
        The exit code.
    """
    try:
        code = cli.main(arguments, prog_name="resume-audit", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code if error.exit_code != LOSSY else USAGE
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # type: ignore[assignment]  # nothing can be flushed to it any more
        return UNDETERMINED
    except Exception:
        traceback.print_exc()
        print("resume-audit failed: this is a defect of it, not a verdict", file=sys.stderr)
        return UNDETERMINED
    return code if isinstance(code, int) else LOSSLESS
