"""Results as people and programs read them: one description for terminal, JSON and notebooks.

A result type describes itself once, in ``rendering()``. The command line prints the description, ``to_dict`` turns it
into JSON values, and notebooks show its HTML.
"""

from dpadmm.rendering.blocks import (
    Block,
    Cell,
    Column,
    Fact,
    Facts,
    Paragraph,
    Renderable,
    Rendering,
    Row,
    Style,
    Table,
)

__all__ = ["Block", "Cell", "Column", "Fact", "Facts", "Paragraph", "Renderable", "Rendering", "Row", "Style", "Table"]
