"""Rendered arguments: texts stay texts, even in a DAG with native objects as results of templates."""

from __future__ import annotations

import functools
import inspect
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_lakestream.config.arguments import as_text
from airflow_lakestream.core.printable import nearest
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.base import airflow_errors

# In place of an argument's name: a text in a list or a mapping of the user, such as a table property's value.
_ITEM = ""
# The argument whose keys are themselves arguments.
_APP_CONFIG = "app_config"
# Arguments whose text may be a JSON list: the list is parsed later, by code that knows schemas.
_TEXT_OR_LIST = ("writer_schemas",)


class TextRendering:
    """Mixin, left of Airflow's BaseOperator: keeps the texts of the operator's own arguments.

    With `render_template_as_native_obj=True` Jinja reads each rendered text as a literal of Python, so that the topic
    `20240101` becomes a number, and the delimiter `1`, too. Here a text is read as a literal only for an argument that
    may be a list or a mapping. The value of a single expression (a list, a time, a number) is passed on unchanged, as
    in Airflow. For a text argument, though, a whole number becomes its digits, and any other value is refused by name.
    """

    # The argument that is being rendered, or `_ITEM`; None while Airflow renders any other value.
    _field: str | None = None

    if TYPE_CHECKING:
        # The arguments, which `arguments.set_arguments` sets as attributes: values, or templates for values.
        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_unknown(type(self), kwargs)
        super().__init__(*args, **kwargs)

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], context: Any, jinja_env: Any, seen_oids: set[int]
    ) -> None:
        render: Any = super()._do_render_template_fields  # type: ignore[misc]  # BaseOperator's
        annotations = self._annotations() if parent is self else {}
        with airflow_errors():
            for name in template_fields:
                with self._rendering(name if name in annotations else None):
                    render(parent, (name,), context, jinja_env, seen_oids)
                if name in annotations:
                    setattr(parent, name, as_text(name, annotations[name], getattr(parent, name)))

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a value; a text of an own argument stays a text."""
        render: Any = super().render_template  # type: ignore[misc]  # BaseOperator's
        jinja_env = jinja_env or self.get_template_env()
        if self._field is None or not _is_native(jinja_env) or id(content) in (seen_oids or ()):
            return render(content, context, jinja_env, seen_oids)
        if isinstance(content, str):
            is_file = content.endswith(tuple(self.template_ext))
            if is_file or _has_marks(content, jinja_env):
                content = render(content, context, jinja_env, seen_oids)
            return self._read(content) if isinstance(content, str) else content
        if self._field == _APP_CONFIG and type(content) is dict:
            return {key: self._argument(key, value, context, jinja_env, seen_oids) for key, value in content.items()}
        with self._rendering(_ITEM):
            return render(content, context, jinja_env, seen_oids)

    def _render(self, template: Any, context: Any, dag: Any = None) -> Any:
        render: Any = super()._render  # type: ignore[misc]  # BaseOperator's
        if self._field is None or not _is_native(template.environment):
            return render(template, context, dag)
        rendered = render(_UnparsedTemplate(template), context, dag)
        return rendered.value if isinstance(rendered, _TemplateOutput) else rendered

    def _argument(self, name: str, value: Any, context: Any, jinja_env: Any, seen_oids: set[int] | None) -> Any:
        """Render an argument of an app."""
        with self._rendering(name):
            rendered = self.render_template(value, context, jinja_env, seen_oids)
        return as_text(f"{_APP_CONFIG}.{name}", self.item_annotations().get(name, "Any"), rendered)

    def _read(self, text: str) -> Any:
        """Return the list or mapping literal in a text, if the argument may be a list or a mapping; else the text.

        A list with items other than texts and lists stays a text.
        """
        annotation = self._annotation()
        if "Sequence" not in annotation and "Mapping" not in annotation:
            return text
        try:
            parsed = literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
        is_list = isinstance(parsed, list | tuple) and all(isinstance(item, str | list | tuple) for item in parsed)
        return parsed if is_list or isinstance(parsed, dict) else text

    def _annotation(self) -> str:
        """Return the annotation of the argument that is being rendered."""
        name = self._field or _ITEM
        if name in (_ITEM, *_TEXT_OR_LIST):
            return "str"
        return str({**self.item_annotations(), **self._annotations()}.get(name, "Sequence"))

    def item_annotations(self) -> Mapping[str, str]:
        """Return the annotations of the arguments that are keys of `app_config`."""
        return {}

    def _annotations(self) -> Mapping[str, str]:
        operator_class: Any = type(self)
        return annotations_of(operator_class)

    @contextmanager
    def _rendering(self, field: str | None) -> Iterator[None]:
        before, self._field = self._field, field
        try:
            yield
        finally:
            self._field = before


@functools.cache
def annotations_of(operator: Any) -> Mapping[str, str]:
    """Return the annotations of an operator's arguments, by argument, without Airflow's own arguments."""
    annotations: dict[str, str] = {}
    for base in reversed(operator.__mro__):
        if base.__module__.startswith("airflow_lakestream.") and "__init__" in vars(base):
            for parameter in inspect.signature(base.__init__).parameters.values():
                if parameter.kind is parameter.KEYWORD_ONLY:
                    annotations[parameter.name] = str(parameter.annotation)
    return annotations


@functools.cache
def _known_arguments(operator: Any) -> frozenset[str]:
    """Return the names of all arguments of an operator, Airflow's own arguments included."""
    inits = [vars(base)["__init__"] for base in operator.__mro__[:-1] if "__init__" in vars(base)]
    names = {name for init in inits for name in inspect.signature(init).parameters}
    return frozenset(names - {"self", "args", "kwargs"})


def _refuse_unknown(operator: type, kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for an argument that no class of the operator has, with the nearest name."""
    operator_class: Any = operator
    known = _known_arguments(operator_class)
    for name in kwargs:
        # Airflow passes internal arguments whose names begin with an underscore.
        if name not in known and not name.startswith("_"):
            near = nearest(name, known)
            own = ", ".join(sorted(annotations_of(operator)))
            remedy = f"Did you mean {near!r}?" if near is not None else f"There are {own}, and those of each operator."
            raise InvalidArgument(name, "there is no such argument.", remedy)


class _TemplateOutput:
    """The unparsed output of a template: the value of a single expression unchanged, or a text of several values."""

    def __init__(self, nodes: list[Any]) -> None:
        self.value = nodes[0] if len(nodes) == 1 else "".join(map(str, nodes)) if nodes else None


class _UnparsedTemplate:
    """A template whose output Jinja does not parse as a literal, since it is a `_TemplateOutput` and not a text."""

    def __init__(self, template: Any) -> None:
        self._template = template

    def __getattr__(self, name: str) -> Any:
        return getattr(self._template, name)

    def root_render_func(self, context: Any) -> Iterator[_TemplateOutput]:
        return iter([_TemplateOutput(list(self._template.root_render_func(context)))])


def _is_native(jinja_env: Any) -> bool:
    from jinja2.nativetypes import NativeEnvironment

    return isinstance(jinja_env, NativeEnvironment)


def _has_marks(text: str, jinja_env: Any) -> bool:
    """Return whether a text has marks of a template.

    A text without marks must not be rendered: Jinja would remove or change newlines at the end.
    """
    names = ("variable_start_string", "block_start_string", "comment_start_string")
    prefixes = ("line_statement_prefix", "line_comment_prefix")
    marks = [getattr(jinja_env, name) for name in (*names, *prefixes)]
    return any(mark in text for mark in marks if mark)
