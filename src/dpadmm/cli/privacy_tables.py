"""Answers of the privacy calculator on the screen."""

from __future__ import annotations

import json
import math
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table


def show(answer: dict[str, Any], as_json: bool, table: Table, words: str | None) -> None:
    """Print an answer: as JSON, or as a table and a sentence."""
    if as_json:
        typer.echo(json.dumps(_plain(answer), indent=2, allow_nan=False))
        return
    console = Console()
    console.print(table)
    if words:
        console.print(words, highlight=False)


def _plain(value: Any) -> Any:
    """JSON has no infinity: it becomes the string "inf"."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def answer_table(answer: dict[str, Any]) -> Table:
    """Every number of an answer, with where it comes from."""
    table = Table("", "value", "how", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[1].justify = "right"
    paper_round = answer["round_epsilon_paper"]
    table.add_row("noise multiplier z", _number(answer["noise_multiplier"]), answer["noise_multiplier_from"])
    table.add_row("δ", f"{answer['delta']:g}", "")
    if "noise_std" in answer:
        source = f"z·2·c1/m, c1 = {answer['lipschitz']:g}, m = {answer['rows']}"
        table.add_row("noise per coordinate (std)", f"{answer['noise_std']:.4g}", source)
    proven = "√(2 ln(1.25/δ))/z" if paper_round <= 1.0 else "not proven above 1"
    table.add_row("ε of one round, paper", _number(paper_round), proven)
    table.add_row("ε of one round, exact", _number(answer["round_epsilon_exact"]), "")
    if answer["rounds"] is not None:
        table.add_section()
        table.add_row("rounds", str(answer["rounds"]), "")
        table.add_row("total ε, paper's moments bound", _number(answer["epsilon_paper"]), "")
        table.add_row("total ε, exact", _number(answer["epsilon_exact"]), f"μ = {_number(answer['mu'])}")
        if "epsilon_rdp" in answer:
            table.add_row("total ε, RDP cross-check", _number(answer["epsilon_rdp"]), "dp_accounting")
            table.add_row("total ε, PLD cross-check", _number(answer["epsilon_pld"]), "dp_accounting")
        if answer["rows_per_person"] > 1:
            label = f"person with {answer['rows_per_person']} rows"
            table.add_row(f"{label}, paper's", _number(answer["person_epsilon_paper"]), "total ε")
            table.add_row(f"{label}, exact", _number(answer["person_epsilon_exact"]), "total ε")
    if "epsilon_budget" in answer:
        table.add_section()
        table.add_row("budget ε", _number(answer["epsilon_budget"]), "")
        for name, label in (
            ("paper", "rounds affordable, paper's bound"),
            ("exact", "rounds affordable, exact"),
        ):
            table.add_row(label, str(answer[f"affordable_rounds_{name}"]), _verdict(answer, name))
    return table


def _verdict(answer: dict[str, Any], accountant: str) -> str:
    fits = answer.get(f"fits_{accountant}")
    if fits is None:
        return ""
    return f"{answer['rounds']} rounds {'fit' if fits else 'do not fit'}"


def in_words(answer: dict[str, Any]) -> str:
    """The guarantee in one sentence; its ε is rounded up, because a guarantee must not be understated."""
    if answer["noise_multiplier"] == 0.0:
        return "Without noise there is no privacy guarantee."
    if answer["rounds"] is not None:
        rounds, epsilon = answer["rounds"], answer["person_epsilon_exact"]
    else:
        rounds, epsilon = answer["affordable_rounds_exact"], answer["epsilon_budget"]
    if rounds == 0:
        return "Not even one round fits this budget: more noise or a larger ε is needed."
    k = answer["rows_per_person"]
    who = "each person with one row" if k == 1 else f"each person with at most {k} rows at an agent"
    return (
        f"Guarantee: ε at most {_rounded_up(epsilon)} at δ = {answer['delta']:g} for {who}, "
        f"replace-one neighbours, against everyone who sees all messages of {rounds} "
        f"round{'s' if rounds != 1 else ''}."
    )


def grid_table(grid: dict[str, Any]) -> Table:
    """The reference grid, a section for every ε per round."""
    title = f"Total ε after {grid['rounds']} rounds, z = √(2 ln(1.25/δ))/ε"
    table = Table(
        "ε per round", "δ", "z", "paper's bound", "exact", "saved", title=title, box=box.SIMPLE_HEAD
    )
    for column in table.columns:
        column.justify = "right"
    for cell in grid["cells"]:
        paper, exact = cell["epsilon_paper"], cell["epsilon_exact"]
        table.add_row(
            f"{cell['round_epsilon']:g}",
            f"{cell['delta']:.0e}".replace("e-0", "e-"),
            f"{cell['noise_multiplier']:.2f}",
            _number(paper),
            _number(exact),
            f"{1.0 - exact / paper:.0%}",
            end_section=cell["delta"] == grid["cells"][-1]["delta"],
        )
    return table


def _number(value: float) -> str:
    """Four digits after the point; more significant ones only where these would hide the number."""
    if math.isinf(value):
        return "∞"
    return f"{value:.4f}" if value == 0.0 or 1e-3 <= abs(value) < 1e7 else f"{value:.4g}"


def _rounded_up(value: float) -> str:
    if math.isinf(value) or value == 0.0:
        return _number(value)
    places = max(4, 3 - math.floor(math.log10(value)))
    # What lies within 1e-9 of a printed digit is rounding, not privacy
    return f"{math.ceil(value * 10.0**places * (1.0 - 1e-9)) / 10.0**places:.{places}f}"
