"""Everything people read, as files beside the results: figures, tables, claims."""

from __future__ import annotations

from pathlib import Path

from dpadmm.reporting.claims import claims, claims_json, claims_markdown
from dpadmm.reporting.convergence import save_figure
from dpadmm.reporting.figures import pictures
from dpadmm.reporting.run_folder import write_text
from dpadmm.reporting.series import missing
from dpadmm.reporting.tables import tables
from dpadmm.results import Results


def write_all(results: Results, folder: Path) -> list[Path]:
    """Write every figure (PNG and SVG), table (Markdown and CSV) and the claims the results have; the paths.

    Nothing is computed but means over the lines of the results.
    """
    written: list[Path] = []
    captions = []
    for picture in pictures(results):
        written += save_figure(picture.figure, folder / "figures" / picture.name)
        captions.append(f"## {picture.name}: {picture.title}\n\n{picture.caption}\n")
    texts: dict[str, str] = {}
    for table in tables(results):
        texts |= {f"tables/{table.name}.md": table.markdown(), f"tables/{table.name}.csv": table.csv()}
    found = claims(results)
    texts |= {
        "claims.md": claims_markdown(found, n_missing=missing(results)),
        "claims.json": claims_json(found),
    }
    if captions:
        texts["figures/captions.md"] = "# Captions\n\n" + "\n".join(captions)
    for name, text in texts.items():
        write_text(folder / name, text)
        written.append(folder / name)
    return written
