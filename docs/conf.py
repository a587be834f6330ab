"""Configuration of the documentation: `make docs`. Neither the build nor the built pages use the network."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shutil import copyfile

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE / "data")]

# Executed pages call the dpadmm of this environment, and print the same on every machine.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ["PYTHONPATH"] = str(HERE / "data")
os.environ.update(NO_COLOR="1", COLUMNS="80", OPENBLAS_NUM_THREADS="1", MPLBACKEND="agg")

# Code that every notebook runs first, in a separate profile
_profile = HERE / "_build" / "ipython"
(_profile / "profile_default" / "startup").mkdir(parents=True, exist_ok=True)
copyfile(HERE / "_ext" / "notebook_start.py", _profile / "profile_default" / "startup" / "notebook_start.py")
os.environ["IPYTHONDIR"] = str(_profile)

from make_tables import write_tables  # noqa: E402

from dpadmm import __version__  # noqa: E402

write_tables(HERE / "data")  # for readers to download

project = "dpadmm"
author = "The dpadmm authors"
copyright = "the dpadmm authors, Apache-2.0"
version = release = __version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "drawings",
    "reference",
    "site_pages",
]
exclude_patterns = ["_build", "_ext"]
nitpicky = True
smartquotes = False  # it would make an en dash of the two hyphens of an option in running text

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

nb_execution_mode = "auto"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 150
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_markdown_format = "myst"  # tables in outputs, too

autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
add_module_names = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = "dpadmm"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {
        "text": f"dpadmm {__version__} (alpha)",
        "alt_text": "dpadmm, to the start",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo-dark.svg",
    },
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
    "header_links_before_dropdown": 8,
}
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
