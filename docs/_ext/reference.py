"""Reference pages from the code: a line ``<!-- generated: NAME -->`` in a page becomes what ``PARTS[NAME]`` writes.

So these pages cannot drift: commands and options come from the command line itself, settings from the classes that
read them, messages from the protocol.
"""

from __future__ import annotations

import builtins
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin

from sphinx.application import Sphinx

import dpadmm
from dpadmm.accounting.report import LIMITATIONS
from dpadmm.cli import COMMANDS, EXAMPLES, PANELS, load_command
from dpadmm.data.schema import KINDS, Label
from dpadmm.federation import protocol
from dpadmm.methods import KINDS as RELEASES
from dpadmm.parameters.fields import Parameter, parameters, wanted
from dpadmm.studies.checks import DEPLOYABLE
from dpadmm.studies.json_schema import ALLOW, HASH, PUBLIC
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.reading import table_parameters
from dpadmm.studies.settings import CHOICES
from dpadmm.studies.study import TABLES, Study
from dpadmm.trusted import ledger

MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)


def setup(app: Sphinx) -> dict[str, Any]:
    _write_stubs(Path(app.srcdir) / "reference" / "api")
    app.connect("source-read", _fill_in)
    app.connect("missing-reference", _public_name)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _short_signature)
    app.connect("autodoc-process-docstring", _add_parameters, priority=100)  # before numpydoc
    app.connect(
        "env-get-outdated", lambda app, env, *_: [name for name in env.found_docs if name.startswith("reference/")]
    )
    return {"parallel_write_safe": True}


def _fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    if page.startswith("reference/"):
        source[0] = filled(source[0])


def filled(text: str) -> str:
    """A page with its generated parts."""
    return MARK.sub(lambda found: PARTS[found[1]](), text)


def escaped(text: str) -> str:
    """Text of the code, so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_{}\[\]<>$|#])", r"\\\1", re.sub(r"\s+", " ", text))


def as_code(text: str) -> str:
    return f"``{text}``" if "`" in text else f"`{text}`"


def definitions(entries: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{term}\n: {meaning}\n" for term, meaning in entries)


def first_paragraph(made: Any) -> str:
    return " ".join((made.__doc__ or "").partition("\n\n")[0].split())


# The command line


def command_list() -> str:
    """Return a table of the commands of each panel, with links to their pages."""
    return "\n".join(
        f"| [`{name}`](cli/{page_of(name)}.md#dpadmm-{name}) | {escaped(text)} |" for name, text in COMMANDS.items()
    ).join(("| command | |\n|---|---|\n", "\n"))


def page_of(command: str) -> str:
    """Return the page of a command: a page for each panel, and one for each group of the panel Federation."""
    panel = next(panel for panel, commands in PANELS.items() if command in commands)
    return command if panel == "Federation" else panel.lower()


def commands_of(page: str) -> str:
    """Return the help of all commands of a page."""
    names = [name for name in COMMANDS if page_of(name) == page]
    return "\n".join(line for name in names for line in _command(f"dpadmm {name}", load_command(name), level=2))


def _command(name: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{name}`\n"
    yield from (f"{escaped(paragraph)}\n" for paragraph in (command.help or "").split("\n\n") if paragraph)
    if inner := getattr(command, "commands", None):
        for word, each in inner.items():
            if not each.hidden:
                yield from _command(f"{name} {word}", each, level + 1)
        return
    arguments = [each for each in command.params if not each.opts[0].startswith("-")]
    options = [each for each in command.params if each.opts[0].startswith("-") and not each.hidden]
    words = [name, *(_placeholder(each) for each in arguments), *(["[OPTIONS]"] if options else [])]
    yield f"```text\n{' '.join(words)}\n```\n"
    if (example := EXAMPLES.get(name.removeprefix("dpadmm "))) is not None:
        yield f"Example:\n\n<!-- not run: parsed by tests/cli/test_help.py -->\n```console\n$ {example}\n```\n"
    yield definitions(_option(each) for each in (*arguments, *options))


def _placeholder(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    several = f"{name}..." if argument.nargs == -1 else name
    return several if argument.required else f"[{several}]"


def _option(option: Any) -> tuple[str, str]:
    if option.opts[0].startswith("-"):
        shown = [*option.opts, *option.secondary_opts]
        value = "" if option.is_flag else f" *{escaped(_value(option))}*"
        term = ", ".join(as_code(each) for each in shown) + value
    else:
        term = as_code(option.metavar or option.name.upper())
    text = escaped(option.help or "")
    if option.required and option.opts[0].startswith("-"):
        text += " Required."
    if default := _default(option):
        text += f" Default: {default}."
    return term, text or "(no further words)"


def _value(option: Any) -> str:
    if option.metavar:
        return str(option.metavar)
    annotation = option.type_descriptor.annotation
    members = [each for each in get_args(annotation) if each is not type(None)] or [annotation]
    kind = members[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " | ".join(str(each.value) for each in kind)
    if get_origin(annotation) is not None and all(isinstance(each, str) for each in members):
        return " | ".join(members)
    return {int: "whole number", float: "number", Path: "path", str: "text"}.get(kind, "value")


def _default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return escaped(option.show_default)
    value = option.default
    if callable(value) or value in (None, False, (), []) or option.required or not option.show_default:
        return ""
    return as_code(str(value.value if isinstance(value, Enum) else value))


# The Python interface


def _write_stubs(folder: Path) -> None:
    """A page for every public name; unchanged ones are not written, so that they need not be read again."""
    folder.mkdir(exist_ok=True)
    for name in dpadmm.__all__:
        made = getattr(dpadmm, name)
        directive = "autofunction" if not isinstance(made, type) else "autoclass"
        members = "   :members:\n" if isinstance(made, type) and not issubclass(made, Exception) else ""
        text = f"{name}\n{'=' * len(name)}\n\n.. currentmodule:: dpadmm\n\n.. {directive}:: {name}\n{members}"
        page = folder / f"dpadmm.{name}.rst"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def _public_name(app: Sphinx, env: Any, node: Any, text: Any) -> Any:
    """Link a class named by its module, ``dpadmm.data.dataset.Dataset``, to its public page, if it has one.

    Other classes that exist are shown without a link; names that do not exist stay missing, which is an error.
    """
    target = str(node.get("reftarget", ""))
    last = target.split(".")[-1]
    if node.get("refdomain") != "py":
        return None
    if last in dpadmm.__all__ and target in (last, f"{getattr(dpadmm, last).__module__}.{last}"):
        return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", f"dpadmm.{last}", node, text)
    if "." in target:
        owner, member = target.split(".")[-2:]
        if owner in dpadmm.__all__ and hasattr(getattr(dpadmm, owner), member):
            found = env.get_domain("py").resolve_xref(
                env, node["refdoc"], app.builder, "obj", f"dpadmm.{owner}.{member}", node, text
            )
            if found is not None:
                return found
    return text if _exists(target) else None


def _skip(app: Sphinx, what: str, name: str, made: Any, skip: bool, options: Any) -> bool | None:
    """scikit-learn's own methods for the routing of metadata."""
    return True if re.fullmatch("[sg]et_.*_request", name) else None


def _short_signature(
    app: Sphinx, what: str, name: str, made: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Constructors without types: constraints are in the list of parameters, in words."""
    if what != "class" or not signature or not parameters(made):
        return None
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in inspect.signature(made).parameters.values()]
    return str(inspect.Signature(plain)), None


def _add_parameters(app: Sphinx, what: str, name: str, made: Any, options: Any, lines: list[str]) -> None:
    """The list of parameters of a dataclass, from its fields."""
    known = [each for each in parameters(made) if each.help] if what == "class" else []
    if not known or "Parameters" in lines:
        return
    section = ["Parameters", "----------"]
    for each in known:
        default = "" if each.default is MISSING else f", default {each.default!r}"
        section += [f"{each.name} : {_kind_in_words(each)}{default}", f"    {each.help}"]
    at = lines.index("Examples") if "Examples" in lines else len(lines)
    lines[at:at] = ["", *section, ""]


def _exists(target: str) -> bool:
    module, _, name = target.rpartition(".")
    try:
        return hasattr(import_module(module), name) if module else hasattr(builtins, name)
    except ImportError:
        return False


# Files


def study_file() -> str:
    """Every table and key of a study's file, in the order in which drafts have them."""
    own = ("name", "features", "classes", "allow_missed_rounds", "quorum", "deadline", "max_rows_per_site")
    top = [each for each in parameters(Study) if each.name in own]
    parts = ["## At the top", definitions(_study_frame()), definitions(map(_setting, top))]
    parts += [
        "## `[label]`",
        *_paragraphs(Label),
        definitions([*map(_setting, parameters(Label)), _constant("public", PUBLIC)]),
    ]
    parts += [
        "## `[columns]`",
        "A table for each column that becomes features, `[columns.NAME]`, with its `kind`. Every kind may also have:",
        definitions([_constant("public", PUBLIC), _constant("allow", ALLOW), _constant("released", HASH)]),
    ]
    for kind, made in KINDS.items():
        fields = [_setting(each) for each in parameters(made) if each.name != "name"]
        parts += [f"### `{kind}`", *_paragraphs(made), definitions(fields)]
    parts += ["## `[public_rows]`", *_paragraphs(PublicRows), definitions(map(_setting, parameters(PublicRows)))]
    for name, classes in CHOICES.items():
        parts.append(f"## `[{name}]`")
        for word, made in classes.items():
            if name != "method" or word in DEPLOYABLE:
                parts += [f"### `{word}`", _opening(made)]
                parts.append(definitions(map(_setting, parameters(made))) or "No parameters.")
    for name in (*TABLES, *RELEASES):
        about = [_opening(RELEASES[name])] if name in RELEASES else []
        parts += [f"## `[{name}]`", *about, definitions(map(_setting, table_parameters(name)))]
    return "\n\n".join(parts)


def _study_frame() -> list[tuple[str, str]]:
    from dpadmm.studies.study import ADJACENCY, FORMAT, TRAINING

    kinds = " or ".join(f'`"{each}"`' for each in (TRAINING, *RELEASES))
    return [
        ("`format`", f'Always `"{FORMAT}"`. Required.'),
        ("`kind`", f'{kinds}. Default: `"{TRAINING}"`.'),
        (
            "`adjacency`",
            f'Always `"{ADJACENCY}"`, which is also the default: two tables are neighbours if one row differs.',
        ),
        ("`row_norm`", "Rows are divided by this norm R, and clipped to it. Default: from the columns."),
        ("`interactions`", 'Pairs of columns, `[["age", "smoker"]]`: the effect of each may depend on the other.'),
    ]


def _setting(each: Parameter) -> tuple[str, str]:
    kind = _kind_in_words(each)
    about = each.help.partition("; one number or one per agent")[0].rstrip(".")  # which a study has not
    text = escaped(". ".join(part[:1].upper() + part[1:] for part in (about, kind) if part) + ".")
    if each.default is MISSING:
        text += " Required."
    elif each.default not in (None, (), {}) and not isinstance(each.default, type):
        text += f" Default: {as_code(json.dumps(each.default, ensure_ascii=False))}."
    return as_code(each.name), text


def _kind_in_words(each: Parameter) -> str:
    if each.name in CHOICES:
        return "a name, a table or an object"
    try:
        kind = wanted(each.kind)
    except KeyError:  # tuples of given lengths, tables
        kind = ""
    return _in_words(each.json_schema()) if kind in ("", "a list of such") else kind


def _in_words(schema: dict[str, Any]) -> str:
    kinds = [schema, *schema.get("anyOf", ())]
    if any("prefixItems" in each for each in kinds):
        return "two numbers, [lowest, highest]"
    if found := next((each for each in kinds if each.get("type") == "array"), None):
        items = found.get("items", {})
        numeric = isinstance(items, dict) and items.get("type") in ("number", "integer")
        return "a list of numbers" if numeric else "a list"
    return "a value"


def _constant(name: str, schema: dict[str, Any]) -> tuple[str, str]:
    return as_code(name), escaped(schema["description"])


def _opening(made: Any) -> str:
    return _marked_up(first_paragraph(made))


def _paragraphs(made: Any) -> list[str]:
    text = inspect.cleandoc(made.__doc__ or "").partition("\nExamples\n")[0]
    return [_marked_up(" ".join(each.split())) for each in text.split("\n\n")]


def _marked_up(text: str) -> str:
    """A docstring's words, with its ``code`` as code."""
    parts = re.split(r"``(.+?)``", re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text))
    return "".join(as_code(part) if i % 2 else escaped(part) for i, part in enumerate(parts))


def privacy_report_limitations() -> str:
    """Quote the limitations that every privacy report states."""
    return f"> {escaped(LIMITATIONS)}"


def ledger_schema() -> str:
    return f"```sql\n{ledger.SCHEMA}\n```"


# Messages


_WIDTHS = {"B": (1, "unsigned"), "H": (2, "unsigned"), "I": (4, "unsigned"), "Q": (8, "unsigned"), "d": (8, "float64")}


def _layout(form: Any, words: str) -> str:
    """List the fields of a struct, with their names from the code."""
    names, rows, at = [each.strip(" .") for each in words.split(",")], [], 0
    fields = re.findall(r"(\d*)([a-zA-Z])", form.format.lstrip("<"))
    assert len(names) == len(fields), (names, fields)
    for (count, letter), name in zip(fields, names, strict=True):
        size, kind = (int(count), "bytes") if letter == "s" else _WIDTHS[letter]
        rows.append(f"| {at} | {size} | {kind} | {name} |")
        at += size
    assert at == form.size
    return "\n".join(["| offset | bytes | type | field |", "|--:|--:|---|---|", *rows])


HEADERS = {
    "header": (
        protocol.HEAD,
        "magic, version, kind, reserved (0), study hash, digest of the request, round, numbers: rows d, "
        "numbers: columns p, rows of the site, rows per person, bytes of the body",
    ),
    "beat": (protocol.BEAT, "magic, version, kind (255), reserved (0), the sender's clock in seconds since 1970"),
    "claim": (
        protocol.CLAIM,
        "magic, version, kind (254), leaving (0 or 1), instance, number of the claim, restores of the ledger, "
        "records of the ledger, chain of the last record, chain that proves the server's mark",
    ),
    "grant": (
        protocol.GRANT,
        "magic, version, kind (253), verdict, instance, number of the claim, restores, records, chain, "
        "contested (0 or 1)",
    ),
    "proposal": (protocol.PROPOSAL, "magic, version, kind (252), reserved (0), study hash"),
}


def message_kinds() -> str:
    """List the kinds of messages with sender and body."""
    rows = ["| number | kind | sent by | body |", "|--:|---|---|---|"]
    for kind in protocol.Kind:
        numbers = {"<f8": "float64 numbers, little-endian", "<i8": "int64 numbers, little-endian"}
        body = numbers.get(protocol.NUMBERS.get(kind, ""), _OTHER_BODIES.get(kind.name, "none"))
        sender = "site" if kind > 16 else "server"
        only = " (secure aggregation only)" if kind in protocol.MASKING else ""
        rows.append(f"| {kind.value} | `{kind.name}`{only} | {sender} | {body} |")
    return "\n".join(rows)


_OTHER_BODIES = {
    "REFUSED": "the code of the refusal, in ASCII",
    "MASK": "the bitmap of the members of the round",
    "PRESENT": "none; with secure aggregation a tag of 8 bytes for each site of the roster",
    "READY": "a tag of 8 bytes for each site of the roster",
}


def verdicts() -> str:
    words = {
        "GRANTED": "This process may answer.",
        "PROVE": "The lease is free: prove that the ledger continues from this mark.",
        "WAIT": "Another process of the site held the lease a moment ago.",
        "CLONED": "Another process of the site is connected.",
        "BEHIND": "The ledger lacks records that the server has seen.",
    }
    return "\n".join(f"- {each.value} `{each.name}`: {words[each.name]}" for each in protocol.LeaseReply)


def subjects() -> str:
    rows = ["| who | publishes to | subscribes to |", "|---|---|---|"]
    for who, name in (("the server", protocol.SERVER), ("a site", "NAME")):
        for what, found in (("", protocol.subjects_of(name)), (", signs of life", protocol.beat_subjects_of(name))):
            rows.append(f"| {who}{what} | `{found[0]}` | `{found[1]}` |")
    rows.append(f"| a site, leases | `{protocol.CLAIMS}.NAME` | `{protocol.grants_of('NAME')}` |")
    rows.append(f"| a site, proposals | | `{protocol.proposals_of('NAME')}` |")
    return "\n".join(rows)


def limits() -> str:
    return (
        f"A body has at most {protocol.MAX_BODY:,} bytes. Heartbeats are sent every {protocol.BEAT_EVERY:g} s; "
        f"after {protocol.SILENT_AFTER:g} s without one a sender is silent. A lease holds "
        f"{protocol.LEASE_HOLDS:g} s after its claim, and is free {protocol.LEASE_FREE_AFTER:g} s after the last one."
    )


PARTS: dict[str, Callable[[], str]] = {
    "command-list": command_list,
    **{f"commands-{page}": partial(commands_of, page) for page in sorted(set(map(page_of, COMMANDS)))},
    "study-file": study_file,
    "privacy-report-limitations": privacy_report_limitations,
    "ledger-schema": ledger_schema,
    "message-kinds": message_kinds,
    "verdicts": verdicts,
    "subjects": subjects,
    "limits": limits,
    **{name: lambda about=about: _layout(*about) for name, about in HEADERS.items()},
}
