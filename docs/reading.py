"""How the API pages read the source: what mkdocstrings cannot know of modules of Equinox and of our docstrings."""

import re
from collections.abc import Iterator
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.MULTILINE)
SECTION = r"\w+\n-+\n"


class Reading(griffe.Extension):
    """Examples are shown as code, and a class with fields by the arguments that it takes."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """An example goes on until the next empty line; Markdown would take `>>>` for a quotation."""
        if obj.docstring is not None:
            shown = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = _sections_last(shown)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Gives every class that has fields, its own or inherited, the constructor that Equinox makes of them."""
        for cls in _classes(pkg):
            parameters = {field.name: field for each in (*reversed(cls.mro()), cls) for field in _fields(each)}
            if parameters and "__init__" not in cls.members:
                init = griffe.Function("__init__", parameters=griffe.Parameters(*parameters.values()), parent=cls)
                cls.set_member("__init__", init)


def _sections_last(text: str) -> str:
    """A section of the kind `Parameters` would have all that follows it for a part of itself."""
    head, *rest = re.split(rf"^(?={SECTION})", text, maxsplit=1, flags=re.MULTILINE)
    if not rest:
        return text
    sections, *others = re.split(rf"\n\n(?!{SECTION})", rest[0], maxsplit=1)
    return head + "\n\n".join([*others, sections])


def _classes(parent: griffe.Module) -> Iterator[griffe.Class]:
    for member in parent.members.values():
        if not member.is_alias and member.is_module:
            yield from _classes(member)  # pyright: ignore[reportArgumentType]
        elif not member.is_alias and member.is_class:
            yield member  # pyright: ignore[reportReturnType]


def _fields(cls: griffe.Class) -> Iterator[griffe.Parameter]:
    """What is annotated, but for what belongs to the class and what is left to a subclass."""
    for field in cls.members.values():
        if field.is_alias or not field.is_attribute or field.annotation is None or "property" in field.labels:
            continue
        of_the_class = "class-attribute" in field.labels and "instance-attribute" not in field.labels
        if not of_the_class and not str(field.annotation).startswith("eqx.AbstractVar"):
            kind = griffe.ParameterKind.positional_or_keyword
            yield griffe.Parameter(field.name, kind=kind, default=_default(field.value))


def _default(value: Any) -> Any:
    """What is assigned, or what `eqx.field` is told."""
    if isinstance(value, griffe.ExprCall) and str(value.function).endswith("field"):
        told = [a.value for a in value.arguments if isinstance(a, griffe.ExprKeyword) and a.name == "default"]
        return told[0] if told else None
    return value
