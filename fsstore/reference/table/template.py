"""Templates: text with `{{expression}}` in it, evaluated without Jinja and without `str.format`.

The language is what reference sets need and no more:

    expression := term (("+" | "-") term)*
    term       := factor (("*" | "//" | "%") factor)*
    factor     := "-" factor | "(" expression ")" | integer | name | name "(" [name "=" argument ("," ...)*] ")"
    argument   := string in single or double quotes | expression

A name is a variable (integer or text) or another template, which sees the variables of its caller, and the keyword
arguments if it is called.  Arithmetic is on integers, with Python's floor division and remainder.  Text is parsed
once into closures, so evaluating a row costs a microsecond or two.

Templates come from strangers.  Nothing here reaches attributes, items, functions or format specifications; text,
nesting, results and integers are bounded, and no loop exists.  Templates that name each other could still double their
work at every level, so how many tokens an evaluation passes, those of the templates it names among them, is known when
a text is parsed, and bounded.

This module knows nothing of references or storage.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fsstore.errors import StoreError

Value: TypeAlias = int | str
Scope: TypeAlias = Mapping[str, Value]
Evaluate: TypeAlias = Callable[[Scope], Value]

MAX_TEXT = 65536
MAX_DEPTH = 16
MAX_STEPS = 256
MAX_INTEGER = 2**63

_TOKEN = re.compile(r"\s*(?:(\d{1,19})|([A-Za-z_]\w{0,255})|'([^']*)'|\"([^\"]*)\"|(//|[-+*%(),=]))", re.ASCII)
_HOLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


class TemplateError(StoreError):
    """A template is malformed, names something undefined, or grows past its limits."""


class ManyTexts(TemplateError):
    """The values of an expression are many, and `column` renders a pattern with each of them."""

    def __init__(self, column: Any) -> None:
        super().__init__("A column has no text")
        self.column = column


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: literal texts and expressions in turn.

    `parts` holds `str` for literal text and `Hole` for expressions; `names` every name used.
    """

    text: str
    parts: tuple[str | Hole, ...]
    _pattern: str = field(init=False, repr=False, compare=False)
    _runs: tuple[Evaluate, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Prepare evaluation: one format pattern with a place for each expression."""
        texts = [part.replace("%", "%%") if isinstance(part, str) else "%s" for part in self.parts]
        object.__setattr__(self, "_pattern", "".join(texts))
        object.__setattr__(self, "_runs", tuple(p.evaluate for p in self.parts if not isinstance(p, str)))

    @property
    def names(self) -> frozenset[str]:
        """The names the expressions use, keyword arguments excluded."""
        return frozenset().union(*(part.names for part in self.parts if not isinstance(part, str)))

    @property
    def steps(self) -> int:
        """How many tokens are evaluated, those of other templates included."""
        return sum(part.steps for part in self.parts if not isinstance(part, str))

    @property
    def depth(self) -> int:
        """How many templates are evaluated within each other."""
        return 1 + max((part.depth for part in self.parts if not isinstance(part, str)), default=0)

    def value(self, scope: Scope) -> Value:
        """Return the value: of the expression alone if the template is nothing else, else the text."""
        if len(self.parts) == 1:
            only = self.parts[0]
            return only if isinstance(only, str) else only.evaluate(scope)
        runs = self._runs
        values = (runs[0](scope),) if len(runs) == 1 else tuple([run(scope) for run in runs])
        try:
            out = self._pattern % values
        except ManyTexts as many:
            rendered: Value = many.column.rendered(self._pattern, values)
            return rendered
        if len(out) > MAX_TEXT:
            raise TemplateError(f"Template {_brief(self.text)} renders to more than {MAX_TEXT} characters")
        return out

    def folded(self) -> Template:
        """Return the template with its constant expressions replaced by their values."""
        parts: list[str | Hole] = []
        for part in self.parts:
            folded = _fold(part)
            if parts and isinstance(folded, str) and isinstance(parts[-1], str):
                parts[-1] += folded
            else:
                parts.append(folded)
        return Template(self.text, tuple(parts))


@dataclass(frozen=True, slots=True)
class Hole:
    """One `{{expression}}`: how to evaluate it and the names it uses; `name` if it is a name alone.

    `steps` and `depth` are those of its evaluation (see `Template`).
    """

    evaluate: Evaluate
    names: frozenset[str]
    name: str | None
    steps: int
    depth: int


class Templates:
    """The named templates of a document; `compile` parses text that may use them."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = dict(texts)
        self._compiled: dict[str, Template] = {}
        self._open: list[str] = []

    def __contains__(self, name: str) -> bool:
        """Return whether a template of that name exists."""
        return name in self.texts

    def __len__(self) -> int:
        """Return the number of templates."""
        return len(self.texts)

    def named(self, name: str) -> Template:
        """Return the template called `name`, which may not be one of those that are being parsed."""
        if name not in self._compiled:
            if name in self._open or len(self._open) >= MAX_DEPTH:
                raise _too_deep(name)
            self._open.append(name)
            try:
                self._compiled[name] = self.compile(self.texts[name])
            finally:
                self._open.pop()
        return self._compiled[name]

    def compile(self, text: str) -> Template:
        """Return `text` parsed, or raise `TemplateError` that says what is wrong with it."""
        if len(text) > MAX_TEXT:
            raise TemplateError(f"Template text is longer than {MAX_TEXT} characters")
        parts: list[str | Hole] = []
        end = 0
        for match in _HOLE.finditer(text):
            if match.start() > end:
                parts.append(text[end : match.start()])
            parts.append(_Parser(self, match[1], text).hole())
            end = match.end()
        rest = text[end:]
        if "{{" in rest or "{%" in text or "{#" in text:
            raise TemplateError(f"Template {_brief(text)} has an opening brace without its end, or a block")
        if rest or not parts:
            parts.append(rest)
        made = Template(text, tuple(parts))
        if made.steps > MAX_STEPS:
            raise TemplateError(
                f"Template {_brief(text)} and those it names have {made.steps} tokens, more than {MAX_STEPS}"
            )
        if made.depth > MAX_DEPTH:
            raise _too_deep(text)
        return made


def render(templates: Templates, text: str) -> str:
    """Return `text` with its expressions replaced, as text."""
    return str(templates.compile(text).value({})) if "{{" in text else text


def _fold(part: str | Hole) -> str | Hole:
    if isinstance(part, str):
        return part
    try:
        return str(part.evaluate({}))
    except TemplateError:
        return part


def _too_deep(name: str) -> TemplateError:
    return TemplateError(f"Template {_brief(name)} nests more than {MAX_DEPTH} deep, or refers to itself")


def _brief(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _bounded(value: int) -> int:
    if not -MAX_INTEGER <= value < MAX_INTEGER:
        raise TemplateError("An integer in a template does not fit 64 bits")
    return value


def _remainder(a: int, b: int) -> int:
    return a % _divisor(b)


def _quotient(a: int, b: int) -> int:
    return a // _divisor(b)


def _divisor(b: int) -> int:
    if b == 0:
        raise TemplateError("A template divides by zero")
    return b


_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": _quotient,
    "%": _remainder,
}


def _binary(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    apply = _OPERATORS[sign]

    def evaluate(scope: Scope) -> int:
        a, b = left(scope), right(scope)
        if isinstance(a, str) or isinstance(b, str):
            received = a if isinstance(a, str) else b
            raise TemplateError(f"'{sign}' in a template needs integers, but received: {_brief(str(received))}")
        value = apply(a, b)
        return value if -MAX_INTEGER <= value < MAX_INTEGER else _bounded(value)

    return evaluate


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, templates: Templates, source: str, text: str) -> None:
        self._templates = templates
        self._text = text
        self._names: set[str] = set()
        self._used: list[Template] = []
        self._depth = 0
        self._at = 0
        self._tokens = self._split(source)

    def _split(self, source: str) -> list[tuple[str, str]]:
        tokens, at, source = [], 0, source.rstrip()
        while at < len(source):
            match = _TOKEN.match(source, at)
            if match is None:
                raise self._error(f"unexpected {_brief(source[at:].strip())}")
            kind = ["integer", "name", "string", "string", "operator"][(match.lastindex or 1) - 1]
            tokens.append((kind, match[match.lastindex or 1]))
            at = match.end()
        return tokens

    def _error(self, why: str) -> TemplateError:
        return TemplateError(f"Template {_brief(self._text)} cannot be evaluated: {why}")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take(self, text: str) -> bool:
        found = self._peek() == ("operator", text)
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._error(f"expected '{text}'")

    def hole(self) -> Hole:
        """Parse the whole expression."""
        evaluate = self._expression()
        if self._peek()[0] != "end":
            raise self._error(f"unexpected {_brief(self._peek()[1])}")
        alone = self._tokens[0][1] if len(self._tokens) == 1 and self._tokens[0][0] == "name" else None
        steps = len(self._tokens) + sum(used.steps for used in self._used)
        depth = max((used.depth for used in self._used), default=0)
        return Hole(evaluate, frozenset(self._names), alone, steps, depth)

    def _expression(self) -> Evaluate:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"it nests more than {MAX_DEPTH} deep")
        left = self._chain(("+", "-"), lambda: self._chain(("*", "//", "%"), self._factor))
        self._depth -= 1
        return left

    def _chain(self, operators: tuple[str, ...], operand: Callable[[], Evaluate]) -> Evaluate:
        left, count = operand(), 0
        while self._peek()[0] == "operator" and self._peek()[1] in operators:
            sign = self._peek()[1]
            self._at += 1
            left, count = _binary(sign, left, operand()), count + 1
            if count > 64:
                raise self._error("it has too many operators")
        return left

    def _factor(self) -> Evaluate:
        kind, text = self._peek()
        self._at += 1
        if (kind, text) == ("operator", "-"):
            zero: Evaluate = lambda _: 0  # noqa: E731  # a named function would say no more
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise self._error(f"it nests more than {MAX_DEPTH} deep")
            negated = _binary("-", zero, self._factor())
            self._depth -= 1
            return negated
        if (kind, text) == ("operator", "("):
            inner = self._expression()
            self._expect(")")
            return inner
        if kind == "integer":
            constant = _bounded(int(text))
            return lambda _: constant
        if kind == "name":
            return self._name(text)
        raise self._error(f"unexpected {_brief(text)}" if text else "it ends too early")

    def _name(self, name: str) -> Evaluate:
        template = self._templates.named(name) if name in self._templates else None
        if template is not None:
            self._used.append(template)
        if self._take("("):
            arguments = self._arguments()
            if template is None:
                raise self._error(f"{_brief(name)} is not a template")
            return lambda scope: template.value({**scope, **{key: run(scope) for key, run in arguments.items()}})
        self._names.add(name)

        def look_up(scope: Scope) -> Value:
            value = scope.get(name)
            if value is not None:
                return value
            if template is not None:
                return template.value(scope)
            raise TemplateError(f"Template name {_brief(name)} is not defined")

        return look_up

    def _arguments(self) -> dict[str, Evaluate]:
        arguments: dict[str, Evaluate] = {}
        while not self._take(")"):
            if arguments:
                self._expect(",")
            kind, name = self._peek()
            self._at += 1
            if kind != "name":
                raise self._error("arguments of templates have the form name=value")
            self._expect("=")
            arguments[name] = self._argument()
        return arguments

    def _argument(self) -> Evaluate:
        kind, text = self._peek()
        if kind != "string":
            return self._expression()
        self._at += 1
        return lambda _: text
