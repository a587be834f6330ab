"""Mutants of a file: one small change each, everywhere in the module.

The operators are those of mutmut, except those that mostly cause a TypeError, and some additional ones: a removed
check, a reversed condition, an argument replaced by its default.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation import mutators

MODULE = "<module>"


@dataclass(frozen=True)
class Mutant:
    """A changed file. Its identity contains no line numbers, so it survives edits elsewhere."""

    file: str
    where: str
    operator: str
    old: str
    new: str
    occurrence: int
    line: int
    lines: tuple[int, int]
    """First and last line of the statement."""
    function: tuple[tuple[str, ...], int] | None
    """Path and first line of the outermost function whose body is changed; None elsewhere."""
    names: tuple[str, ...]
    """What a statement outside of functions gives a value to."""
    start: int
    end: int
    text: str
    """The file's characters from start to end are replaced by it."""

    @property
    def identity(self) -> str:
        number = f" #{self.occurrence}" if self.occurrence > 1 else ""
        return f"{self.file}::{self.where}::{self.operator}::{self.old} => {self.new}{number}"

    @property
    def short(self) -> str:
        return sha256(self.identity.encode()).hexdigest()[:8]

    def source(self, original: str) -> str:
        return original[: self.start] + self.text + original[self.end :]


# --- operators: a node -> mutated nodes --------------------------------------------------------------------


def _number(node: cst.BaseNumber) -> Iterator[cst.CSTNode]:
    yield from mutators.operator_number(node)
    if isinstance(node, cst.Integer | cst.Float) and node.evaluated_value:
        yield node.with_changes(value=repr(2 * node.evaluated_value))


def _text(node: cst.SimpleString) -> Iterator[cst.CSTNode]:
    if " " not in node.value:  # codes, keys and format names are tested, prose is not
        yield from list(mutators.operator_string(node))[:1]


def _assignment(node: cst.Assign | cst.AnnAssign) -> Iterator[cst.CSTNode]:
    targets = [target.target for target in node.targets] if isinstance(node, cst.Assign) else [node.target]
    is_type = isinstance(node.value, cst.Subscript) and isinstance(node.value.value, cst.Name)
    if not is_type and not any(isinstance(target, cst.Tuple) for target in targets):
        yield from mutators.operator_assignment(node)


def _argument(node: cst.Call) -> Iterator[cst.CSTNode]:
    """Remove a keyword argument, or the last of several, so that the default applies."""
    plain = [i for i, arg in enumerate(node.args) if arg.keyword is None and not arg.star]
    for i, arg in enumerate(node.args):
        if arg.keyword is not None or arg.star == "**" or (len(plain) > 1 and i == plain[-1]):
            rest = [*node.args[:i], *node.args[i + 1 :]]
            if rest and i == len(node.args) - 1:
                rest[-1] = rest[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            yield node.with_changes(args=rest)


def _removed(node: cst.Expr | cst.Raise) -> Iterator[cst.CSTNode]:
    value = node.value.expression if isinstance(node, cst.Expr) and isinstance(node.value, cst.Await) else None
    if isinstance(node, cst.Raise) or isinstance(value or node.value, cst.Call):
        yield cst.Pass(semicolon=node.semicolon)


def _operand(node: cst.BooleanOperation) -> Iterator[cst.CSTNode]:
    for item in (node.left, node.right):
        yield _parenthesised(item) if node.lpar else item


def _nothing(node: cst.Return) -> Iterator[cst.CSTNode]:
    if node.value is not None and not (isinstance(node.value, cst.Name) and node.value.value == "None"):
        yield node.with_changes(value=cst.Name("None"), whitespace_after_return=cst.SimpleWhitespace(" "))


def _parenthesised(node: cst.BaseExpression) -> cst.BaseExpression:
    return node if node.lpar else node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _negated(test: cst.BaseExpression) -> cst.BaseExpression:
    return cst.UnaryOperation(cst.Not(), _parenthesised(test), lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


Operator = Callable[[Any], Iterable[cst.CSTNode]]
_INSTEAD = {
    mutators.operator_number: None,
    mutators.operator_string: None,
    mutators.operator_assignment: None,
    mutators.operator_arg_removal: None,
}
OPERATORS: list[tuple[Any, str, Operator]] = [
    *(
        (kind, operator.__name__.removeprefix("operator_"), operator)
        for kind, operator in mutators.mutation_operators
        if operator not in _INSTEAD
    ),
    (cst.BaseNumber, "number", _number),
    (cst.SimpleString, "text", _text),
    (cst.Assign | cst.AnnAssign, "assignment", _assignment),
    (cst.Call, "argument", _argument),
    (cst.Expr | cst.Raise, "gone", _removed),
    (cst.BooleanOperation, "operand", _operand),
    (cst.Return, "nothing", _nothing),
]


# --- where they apply --------------------------------------------------------------------------------------

_WORD = re.compile(r"[^\W\d_]{2,}")


def _is_prose(node: cst.CSTNode) -> bool:
    """Return whether this is a message with values: at least two words, or the text of an exception."""
    parts = [node] if isinstance(node, cst.FormattedString) else _strings(node)
    texts = []
    for part in parts:
        if isinstance(part, cst.FormattedString):
            texts += [item.value for item in part.parts if isinstance(item, cst.FormattedStringText)]
        elif isinstance(part, cst.SimpleString):
            texts.append(part.value)
    text = " ".join(texts)
    return " " in text and len(_WORD.findall(text)) >= 2


def _strings(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.ConcatenatedString):
        yield from _strings(node.left)
        yield from _strings(node.right)
    else:
        yield node


def _decorated_as(node: cst.FunctionDef, name: str) -> bool:
    found = (decorator.decorator for decorator in node.decorators)
    return any(getattr(getattr(item, "attr", item), "value", None) == name for item in found)


def _is_skipped(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Annotation | cst.Import | cst.ImportFrom | cst.Decorator):
        return True
    if isinstance(node, cst.Expr):
        return isinstance(node.value, cst.BaseString | cst.Ellipsis)
    if isinstance(node, cst.FunctionDef):
        return _decorated_as(node, "overload")
    if isinstance(node, cst.If):
        return isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING"
    if isinstance(node, cst.AnnAssign):
        return getattr(node.annotation.annotation, "value", None) == "TypeAlias"
    if isinstance(node, cst.Assign):
        is_variable = isinstance(node.value, cst.Call) and getattr(node.value.func, "value", None) == "TypeVar"
        return is_variable or any(getattr(target.target, "value", None) == "__all__" for target in node.targets)
    return isinstance(node, cst.FormattedString | cst.ConcatenatedString) and _is_prose(node)


@dataclass(frozen=True)
class _Position:
    """Position of a node."""

    names: tuple[str, ...] = ()
    function: tuple[tuple[str, ...], int] | None = None
    statement: cst.CSTNode | None = None
    local: bool = False


class _Finder:
    def __init__(self, file: str, text: str) -> None:
        self.file, self.text = file, text
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self.module, self.positions = wrapper.module, wrapper.resolve(WhitespaceInclusivePositionProvider)
        self.offsets = [0]
        for line in text.splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))
        self.seen = {_tree(text)}
        self.found: list[Mutant] = []

    def visit(self, node: cst.CSTNode, place: _Position) -> None:
        if _is_skipped(node):
            return
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            place = replace(place, statement=node)
        for kind, name, operator in OPERATORS:
            if isinstance(node, kind) and not (place.local and _is_local(node, name)):
                for changed in operator(node):
                    self.add(node, changed, name, place)
        if isinstance(node, cst.If | cst.While | cst.CompIf) and not _has_opposite(node.test):
            self.add(node.test, _negated(node.test), "negated", place)
        if isinstance(node, cst.ClassDef | cst.FunctionDef):
            inside = replace(place, names=(*place.names, node.name.value))
            if isinstance(node, cst.FunctionDef):
                self.visit(node.params, inside)  # defaults are evaluated in the enclosing scope
                first = node.decorators[0] if node.decorators else node
                line = self.positions[first].start.line + len(first.leading_lines)
                line += len(node.lines_after_decorators) if first is node else 0
                inside = replace(inside, function=place.function or (inside.names, line), local=True)
            else:
                inside = replace(inside, local=False)
            self.visit(node.body, inside)
            return
        for child in node.children:
            self.visit(child, place)

    def add(self, node: cst.CSTNode, changed: cst.CSTNode, operator: str, place: _Position) -> None:
        start, end = (self._offset(item) for item in (self.positions[node].start, self.positions[node].end))
        written = self.module.code_for_node(changed)
        if self.text[start:end] != self.module.code_for_node(node):  # it occupies its own lines
            whole = self.module.deep_replace(node, changed).code
            start, end, written = _difference(self.text, whole)
        whole = self.text[:start] + written + self.text[end:]
        try:
            compile(whole, self.file, "exec", dont_inherit=True)
        except SyntaxError:
            return
        tree = _tree(whole)
        if tree in self.seen:
            return
        self.seen.add(tree)
        first, old, new = _lines(self.text, whole)
        self.found.append(
            Mutant(
                self.file,
                ".".join(place.names) or MODULE,
                operator,
                old,
                new,
                1,
                first,
                self._extent(place.statement),
                place.function,
                _assigned(place.statement),
                start,
                end,
                written,
            )
        )

    def _offset(self, position: Any) -> int:
        return self.offsets[position.line - 1] + position.column

    def _extent(self, statement: cst.CSTNode | None) -> tuple[int, int]:
        assert statement is not None
        place = self.positions[statement]
        first = place.start.line + len(statement.leading_lines)
        body = getattr(statement, "body", None)
        if isinstance(body, cst.BaseSuite):
            return first, max(first, self.positions[body].start.line)
        ends_line = place.end.column == 0  # the line break belongs to the statement
        return first, max(first, place.end.line - ends_line)


def _is_local(node: cst.CSTNode, operator: str) -> bool:
    """Return whether this is ``x = None`` for a local name, which only causes a TypeError two lines later."""
    if operator != "assignment":
        return False
    target = node.targets[0].target if isinstance(node, cst.Assign) else node.target
    return isinstance(target, cst.Name)


def _has_opposite(test: cst.BaseExpression) -> bool:
    """Return whether another operator already reverses it: ``==`` and ``!=``, ``in`` and ``not in``, ``not``."""
    if isinstance(test, cst.UnaryOperation):
        return isinstance(test.operator, cst.Not)
    pairs = cst.Equal | cst.NotEqual | cst.Is | cst.IsNot | cst.In | cst.NotIn
    one = isinstance(test, cst.Comparison) and len(test.comparisons) == 1
    return one and isinstance(test.comparisons[0].operator, pairs)


def _assigned(statement: cst.CSTNode | None) -> tuple[str, ...]:
    if isinstance(statement, cst.ClassDef | cst.FunctionDef):
        return (statement.name.value,)
    if not isinstance(statement, cst.SimpleStatementLine):
        return ()
    small = statement.body[0]
    targets = [target.target for target in small.targets] if isinstance(small, cst.Assign) else []
    targets += [small.target] if isinstance(small, cst.AnnAssign) else []
    flat = [
        part
        for target in targets
        for part in ([p.value for p in target.elements] if isinstance(target, cst.Tuple) else [target])
    ]
    return tuple(value.value for value in flat if isinstance(value, cst.Name))


def _tree(text: str) -> str:
    return sha256(ast.dump(ast.parse(text)).encode()).hexdigest()


def _difference(old: str, new: str) -> tuple[int, int, str]:
    """Return start and end of the differing part of ``old``, and its replacement in ``new``."""
    start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    tail = min(len(old), len(new)) - start
    back = next((i for i in range(tail) if old[-1 - i] != new[-1 - i]), tail)
    return start, len(old) - back, new[start : len(new) - back]


def _lines(old: str, new: str) -> tuple[int, str, str]:
    """Return the first line that differs, and the differing lines of both, each joined to one line."""
    before, after = old.splitlines(), new.splitlines()
    short = min(len(before), len(after))
    head = next((i for i in range(short) if before[i] != after[i]), short)
    tail = next((i for i in range(short - head) if before[-1 - i] != after[-1 - i]), short - head)
    removed, added = before[head : len(before) - tail], after[head : len(after) - tail]
    return head + 1, " ".join(" ".join(removed).split()), " ".join(" ".join(added).split())


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Return all mutants of a file, in line order."""
    finder = _Finder(file, text)
    for statement in finder.module.body:
        finder.visit(statement, _Position())
    counts: Counter[str] = Counter()
    numbered = []
    for item in sorted(finder.found, key=lambda mutant: mutant.start):
        counts[item.identity] += 1
        numbered.append(replace(item, occurrence=counts[item.identity]))
    return numbered
