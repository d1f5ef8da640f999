"""`make docs`: writes troubleshooting.md and facts.md from the doctor's own rules and facts, so that they never differ.

tests/rl/doctor/test_docs.py fails where a file is not what this writes.
"""

import ast
import dataclasses
import importlib
import io
import re
import sys
import tokenize
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
RULE_TESTS = HERE.parent / "tests/rl/doctor"
sys.path[:0] = [str(HERE.parent), str(RULE_TESTS)]

from rl.doctor.rules import RULES, Fix, Rule, start  # noqa: E402
from rl.doctor.schema import SCHEMA, Facts  # noqa: E402

PLACES = {
    "host": "On the host",
    "inside": "In the container (or wherever torch runs)",
    "docker": "With docker",
    "compose": "With docker compose",
    "wsl": "In Windows, for WSL2",
    "kubernetes": "In Kubernetes",
    "lxc": "In LXC",
}

TROUBLESHOOTING = """\
# When the GPU does not work

*Written by `make docs` from the rules in [rl/doctor/rules](../rl/doctor/rules): change them, not this file.*

Two commands look for all of this and print what applies, with its evidence:

```sh
scripts/preflight  # on the host, in a clone of this repository; needs Python 3.10
rl doctor          # in the container, or wherever torch runs
```

Or search this page for the message you see; `scripts/preflight --error 'TEXT'` does that for the messages of a
container that does not start. `...` stands for the rest of your own command, `<words>` for what the two commands fill
in or only you know. *Fatal* means that no GPU work is possible, *degraded* that it is possible, but slower or in part,
*info* that nothing is broken.
"""

FACTS = f"""\
# The facts: what `rl doctor --save-facts FILE` writes

*Written by `make docs` from the dataclasses in [rl/doctor/schema](../rl/doctor/schema): change them, not this file.*

`rl doctor --save-facts FILE` writes down everything the doctor knows of a machine, and `rl doctor --facts FILE` judges
it, on any machine, as it would be judged there. So such a file is what to attach to a bug report, and other programs
may write one too. It is one JSON object, with the fields of [Facts](#facts):

* `schema` is {SCHEMA}, and must be there. It is raised when a field changes its meaning, not for a new field.
* What is not known is left out: every field has a default that means "unknown", and no rule speaks on an unknown.
  `null` says the same where the table allows it, unless it says otherwise.
* A field that is not listed here, or whose value has another type, is ignored, so a file never fails for its age.
* No secrets: of the environment only the variables named in
  [rl/doctor/facts/session.py](../rl/doctor/facts/session.py) are read, and of files only what the tables name.

A container that was started without `--gpus`, as somebody else's program may write it:

```json
{{
  "schema": {SCHEMA},
  "platform": {{"machine": "x86_64", "kernel": "6.8.0-45-generic", "engine": "docker"}},
  "kernel_driver": {{"loaded": true, "version": "580.95.05"}},
  "pci": [{{"address": "0000:01:00.0", "vendor": "0x10de", "device": "0x2684", "driver": "nvidia"}}],
  "nodes": {{"ended": "ok", "found": []}}
}}
```
"""


def troubleshooting() -> str:
    """The page of all rules: a section for each subject, the host's first, and the table of all at its end."""
    tested = _tested_by()
    parts = [TROUBLESHOOTING, "## Contents\n\n" + "\n".join(_contents()) + "\n"]
    for section, rules in _sections():
        parts += [f"## {section}\n", *map(_entry, rules)]
    rows = [
        (
            _link(rule.id),
            rule.severity,
            _prose(rule.cause),
            _prose(re.split(r"(?<=\.)\s", _detected(rule))[0]),
            ", ".join(f"{file}.py" for file in sorted(tested[rule.id])),
        )
        for rule in (*start.RULES, *RULES)
    ]
    parts.append("## All of them\n\n" + _table(("id", "severity", "cause", "detected by", "tested by"), rows))
    return "\n".join(parts)


def _sections() -> Iterator[tuple[str, list[Rule[typing.Any]]]]:
    """Rules by the module that holds them, in order; the title is what its docstring begins with."""
    for before, rules in (("Before a container starts", start.RULES), ("Where torch runs", RULES)):
        modules = list(dict.fromkeys(rule.check.__module__ for rule in rules))
        for module in modules:
            title = (sys.modules[module].__doc__ or "?").split("\n")[0].split(":")[0].rstrip(". ")
            yield (
                f"{before}: {title[0].lower()}{title[1:]}",
                [rule for rule in rules if rule.check.__module__ == module],
            )


def _contents() -> Iterator[str]:
    for section, rules in _sections():
        yield f"* [{section}](#{_anchor(section)}): {', '.join(_link(rule.id) for rule in rules)}"


def _entry(rule: Rule[typing.Any]) -> str:
    cause = _prose(rule.cause[0].upper() + rule.cause[1:])
    lines = [f"### {rule.id}\n", f"**{cause}** ({rule.severity}).\n"]
    lines += [f"*Seen as:* {_prose(rule.symptom)}\n", f"*Detected by:* {_prose(_detected(rule))}\n"]
    for place in dict.fromkeys(fix.where for fix in rule.fixes):
        fixes = [fix for fix in rule.fixes if fix.where == place]
        lines += [f"{PLACES.get(place, f'With {place}')}:\n", f"```{_language(place, fixes)}"]
        lines += [line for fix in fixes for line in _command(fix)]
        lines += ["```\n"]
    return "\n".join(lines)


def _language(place: str, fixes: list[Fix]) -> str:
    """Of a block of commands, to be coloured by."""
    if place == "wsl":  # typed in Windows, or clicked
        return "text"
    return "yaml" if all(re.match(r"\w+: ", fix.command) for fix in fixes) else "sh"


def _command(fix: Fix) -> list[str]:
    return [f"# {fix.note}", fix.command] if fix.note else [fix.command]


def _detected(rule: Rule[typing.Any]) -> str:
    return " ".join((rule.check.__doc__ or "").split())


def _tested_by() -> dict[str, set[str]]:
    """Rule → names of the files whose tests see it speak and keep still; else of those that name it at all."""
    texts = {path.stem: path.read_text() for path in sorted(RULE_TESTS.glob("test_*.py"))}
    for name, text in texts.items():
        if "\nfrom rule_tests import" in text:
            importlib.import_module(name)
    registry: dict[str, set[tuple[str, str]]] = importlib.import_module("rule_tests").TESTED
    files = {rule: {test.partition(".")[0] for _, test in tests} for rule, tests in registry.items()}
    named = {rule.id: {name for name in texts if f'"{rule.id}"' in texts[name]} for rule in (*start.RULES, *RULES)}
    return {rule: files.get(rule) or others for rule, others in named.items()}


def facts() -> str:
    """The page of all fields of a file of facts."""
    parts = [FACTS]
    for kind in _reachable(Facts):
        comments, hints = field_comments(kind), typing.get_type_hints(kind)
        inherited = [base for base in kind.__bases__ if dataclasses.is_dataclass(base)]
        also = "".join(f" With the fields of [{base.__name__}](#{base.__name__.lower()}), too." for base in inherited)
        own = [name for name in kind.__annotations__ if name in hints]
        rows = [(f"`{name}`", _type(hints[name]), _meaning(comments[name], hints[name])) for name in own]
        parts += [f"## {kind.__name__}\n\n{_prose(_paragraph(kind.__doc__))}{also}\n"]
        parts += [_table(("field", "type", "meaning"), rows)] if rows else []
    return "\n".join(parts)


def _reachable(kind: type) -> list[type]:
    """The dataclass and those in its fields, each once, in the order in which they are met."""
    found: dict[type, None] = {}

    def visit(hint: object) -> None:
        if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint not in found:
            found[hint] = None
            for base in hint.__bases__:
                visit(base)
            for each in typing.get_type_hints(hint).values():
                visit(each)
        for argument in typing.get_args(hint):
            visit(argument)

    visit(kind)
    return list(found)


def field_comments(kind: type) -> dict[str, str]:
    """Field → the comment at the end of its line, and what lines of comment under it go on with."""
    source = Path(sys.modules[kind.__module__].__file__ or "").read_text()
    lines, alone = {}, set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0]] = token.string.lstrip("# ").strip()
            if not token.line[: token.start[1]].strip():
                alone.add(token.start[0])
    body = next(
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    comments = {}
    for field in body.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            line = field.end_lineno or field.lineno
            said = [lines[line]] if line in lines and line not in alone else []
            while said and line + 1 in alone:
                line += 1
                said.append(lines[line])
            comments[field.target.id] = " ".join(said)
    return comments


def _meaning(comment: str, hint: object) -> str:
    """The field's comment, or what its own kind is, in the words of JSON."""
    kind = _paragraph(hint.__doc__) if dataclasses.is_dataclass(hint) else ""
    return _prose(re.sub(r"\bNone\b", "null", comment) or kind)


def _type(hint: object) -> str:
    """The type, in the words of JSON."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if each is type(None) else _type(each) for each in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"object of {_type(arguments[1])}"
    return {str: "string", int: "integer", float: "number", bool: "true or false"}[hint]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table; a bar in a cell would end it, also in code, so it is escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _prose(text: str) -> str:
    """Text whose `<words>` and stars would be taken for HTML and emphasis, but for what stands in backquotes."""
    parts = re.split("(`[^`]*`)", text)
    plain = [re.sub(r"([<>*\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "".join(a + b for a, b in zip(plain, [*parts[1::2], ""], strict=True))


def _link(rule_id: str) -> str:
    return f"[{rule_id}](#{rule_id})"


def _anchor(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


PAGES = {"troubleshooting.md": troubleshooting, "facts.md": facts}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
