"""Run in every notebook before its first cell: commands print as in a plain terminal, in one piece."""

import os
import subprocess
import sys

from IPython.core.magic import register_cell_magic

# Jupyter claims a coloured terminal; on a page there is none: no codes, no progress bars.
for _name in ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
    os.environ.pop(_name, None)


@register_cell_magic  # type: ignore[untyped-decorator]
def bash(line: str, cell: str) -> None:
    """Stops at a command that fails. IPython's own prints in chunks, and errors after all else."""
    done = subprocess.run(
        ["bash", "-e"], input=cell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    sys.stdout.write(done.stdout)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode} of:\n{cell}\n{done.stdout}")
