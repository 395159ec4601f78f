"""What loading the plugin costs beyond ``import pytest``.

    python benchmarks/import_cost.py

Each figure is the median over fresh processes that find everything compiled, as they do once it is
installed; the ratio is to ``import pytest`` itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

IN_A_FRESH_PROCESS = """
import time
begun = time.perf_counter()
import pytest
between = time.perf_counter()
import pytest_resume_audit.plugin
print(between - begun, time.perf_counter() - between)
"""


def main() -> None:
    """Measure and print."""
    times = []
    with tempfile.TemporaryDirectory() as compiled:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(21):
            done = subprocess.run(
                [sys.executable, "-c", IN_A_FRESH_PROCESS],
                check=True,
                capture_output=True,
                text=True,
                env=env,
            )
            times.append([float(word) * 1000 for word in done.stdout.split()])
    ours, theirs = (statistics.median(t[i] for t in times[1:]) for i in (1, 0))
    print(f"import pytest {theirs:.1f} ms, the plugin {ours:.2f} ms more: {ours / theirs:.4f}")


if __name__ == "__main__":
    main()
