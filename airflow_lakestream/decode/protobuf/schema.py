"""Protobuf schemas: compilation to descriptors, and the table columns of messages."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from airflow_lakestream.decode.values.outcome import SchemaRefused
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.exceptions import MissingExtra as MissingExtra

# The schema's own file name, which no imported file has; and the compiler's time.
_MAIN = "lakestream-main.proto"
_PROTOC_SECONDS = 60
JSON_TYPES = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class CompilerTimedOut(LakestreamError, Transient):
    """Google's compiler took too long; records are not bad for this reason, since the schema may be good."""

    def __init__(self) -> None:
        super().__init__(f"protoc took more than {_PROTOC_SECONDS} s for a schema. Is the worker overloaded?")


@dataclass(frozen=True)
class ProtobufSchema:
    """A compiled schema: the pool of descriptors, and the file with the messages."""

    pool: Any
    messages: Any

    def all_messages(self) -> list[Any]:
        """Return the descriptors of all messages of the file, including messages inside messages."""
        messages, unvisited = [], [self.pool.FindMessageTypeByName(name) for name in self._names]
        while unvisited:
            message = unvisited.pop()
            messages.append(message)
            unvisited += message.nested_types
        return messages

    @property
    def _names(self) -> list[str]:
        package = self.messages.package
        return [f"{package}.{message.name}" if package else message.name for message in self.messages.message_type]

    def descriptor(self, path: Sequence[int]) -> Any:
        """Return a message's descriptor.

        :param path: the message's index in the file, then the indexes of messages inside messages.

        Raises SchemaRefused for an empty path, or for a message unknown to the schema.
        """
        if not path:
            raise SchemaRefused("the record names no message")
        messages, name = self.messages.message_type, self.messages.package
        for index in path:
            if not 0 <= index < len(messages):
                raise SchemaRefused(f"the schema has no message number {list(path)}")
            message = messages[index]
            name = f"{name}.{message.name}" if name else message.name
            messages = message.nested_type
        return self.pool.FindMessageTypeByName(name)


@lru_cache(maxsize=256)
def compile_proto(text: str, references: tuple[tuple[str, str], ...] = ()) -> ProtobufSchema:
    """Return the descriptors of a .proto file, compiled once for each text.

    Google's own compiler runs in a separate process: no other program knows the whole language.

    :param references: all imported files, as (name, text).

    Raises SchemaRefused with the compiler's message, CompilerTimedOut, and MissingExtra.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
    except ImportError:
        raise MissingExtra("protobuf", "protobuf") from None
    with tempfile.TemporaryDirectory(prefix="lakestream-proto-") as folder:
        for name, content in (*references, (_MAIN, text)):
            _place(Path(folder), name, content)
        files = descriptor_pb2.FileDescriptorSet.FromString(_run_protoc(Path(folder)))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return ProtobufSchema(pool, files.file[-1])


def _place(folder: Path, name: str, content: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.name:
        raise SchemaRefused(f"The Protobuf schema refers to a file with a strange name: {name!r}.")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content, encoding="utf-8")


def _run_protoc(folder: Path) -> bytes:
    from importlib.util import find_spec

    spec = find_spec("grpc_tools")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("protobuf", "grpcio-tools")
    well_known = Path(next(iter(spec.submodule_search_locations))) / "_proto"
    output = folder / "descriptors"
    arguments = [f"-I{folder}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={output}", _MAIN]
    command = [sys.executable, "-m", "grpc_tools.protoc", *arguments]
    # No shell, and no part of the schema in the command.
    try:
        done = subprocess.run(  # noqa: S603  # our own interpreter and our own file names
            command, capture_output=True, text=True, timeout=_PROTOC_SECONDS, check=False, cwd=folder
        )
    except subprocess.TimeoutExpired:
        raise CompilerTimedOut from None
    if done.returncode != 0 or not output.exists():
        errors = re.sub(r"\s+", " ", done.stderr.replace(str(folder), "").replace(f"{_MAIN}:", "line ")).strip()
        raise SchemaRefused(f"The Protobuf schema does not compile: {errors[:300]}")
    return output.read_bytes()


def messages_in(text: str, references: Iterable[tuple[str, str]] = (), *, nested: bool = False) -> int:
    """Return the number of messages in a .proto file; raises the errors of `compile_proto`.

    :param nested: whether messages directly inside of messages count, too, except the entries of maps.
    """
    messages = compile_proto(text, tuple(references)).messages.message_type
    inner = [nested for message in messages for nested in message.nested_type if not nested.options.map_entry]
    return len(messages) + (len(inner) if nested else 0)


def arrow_schema(text: str, references: Iterable[tuple[str, str]] = (), message: Sequence[int] = (0,)) -> pa.Schema:
    """Return the columns of a table for messages of this schema, all nullable.

    :param message: the message's index path, as in Confluent's wire format: (1, 0) is the first message nested in the
        file's second message (default: the first message).

    Raises SchemaRefused, with the field's path, and the errors of `compile_proto`.
    """
    descriptor = compile_proto(text, tuple(references)).descriptor(message)
    return pa.schema(_fields(descriptor, "", ()))


def _fields(descriptor: Any, path: str, above: tuple[str, ...]) -> list[pa.Field]:
    """Return the columns of a message; `above` has the messages around this message."""
    name = descriptor.full_name
    if name in above:
        raise SchemaRefused(f"{path}: the message {name} holds itself, which no table can: leave the field out.")
    if not descriptor.fields:
        raise SchemaRefused(f"{path or name}: a message without fields can't be a column: leave the field out.")
    return [
        pa.field(field.name, _type(field, f"{path}.{field.name}" if path else field.name, (*above, name)))
        for field in descriptor.fields
    ]


def _type(field: Any, path: str, above: tuple[str, ...]) -> pa.DataType:
    if is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        item = pa.field("value", _single(value, f"{path}{{}}", above), nullable=False)
        return pa.map_(_single(key, path, above), item)
    single = _single(field, path, above)
    if field.is_repeated:
        return pa.list_(pa.field("element", single, nullable=False))
    return single


def is_map(field: Any) -> bool:
    """Return whether a field is a map, on the wire a list of entries."""
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _single(field: Any, path: str, above: tuple[str, ...]) -> pa.DataType:
    """Return the type of a single value of a field, even if the field is repeated."""
    if field.type == field.TYPE_GROUP:
        raise SchemaRefused(f"{path}: a group can't be a column: leave the field out.")
    if field.type != field.TYPE_MESSAGE:
        return _TYPES[field.type]
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if name in WRAPPERS:
        return _single(field.message_type.fields_by_name["value"], path, above)
    if name in JSON_TYPES:
        return pa.string()
    return pa.struct(_fields(field.message_type, path, above))


# By the numbers that descriptors have for types: TYPE_DOUBLE is 1, TYPE_SINT64 is 18.
_TYPES = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.decimal128(20, 0),
    5: pa.int32(),
    6: pa.decimal128(20, 0),
    7: pa.int64(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.int64(),
    14: pa.string(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
