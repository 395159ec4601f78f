"""The command ``resume-audit``, also as ``python -m pytest_resume_audit``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from pytest_resume_audit import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(
            f"resume-audit needs {error.name}: pip install 'pytest-resume-audit[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(cli.run(sys.argv[1:]))


if __name__ == "__main__":
    main()
