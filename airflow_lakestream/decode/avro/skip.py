"""Over Avro values without looking at them, side by side in many records."""

from __future__ import annotations

import numpy as np

from airflow_lakestream.decode.avro.blocks import read_items
from airflow_lakestream.decode.avro.one import DEEPEST, entry_of, width
from airflow_lakestream.decode.avro.schema import Array, Map, Node, Primitive, Record, Union
from airflow_lakestream.decode.lanes.lanes import Lanes


def skip_all(node: Node, lanes: Lanes, path: str, depth: int = 0) -> None:
    """Move all lanes over a value of the type."""
    size = width(node)
    if depth > DEEPEST:
        lanes.fail(np.ones(len(lanes), np.bool_), f"{path}: nested deeper than {DEEPEST} levels")
    elif size is not None:
        lanes.skip(size, path)
    elif isinstance(node, Record):
        for name, kind in node.fields:
            skip_all(kind, lanes, f"{path}.{name}" if depth < 2 else path, depth + 1)
    elif isinstance(node, Union):
        _skip_union(node, lanes, path, depth)
    elif isinstance(node, Array | Map):
        inner = node.items if isinstance(node, Array) else entry_of(node)
        read_items(lanes, lambda part: skip_all(inner, part, path, depth + 1), inner, path)
    elif isinstance(node, Primitive) and node.name in ("bytes", "string"):
        lanes.spans(lanes.zigzags(path), path)
    else:
        lanes.zigzags(path)


def _skip_union(node: Union, lanes: Lanes, path: str, depth: int) -> None:
    chosen = lanes.zigzags(path)
    lanes.fail((chosen < 0) | (chosen >= len(node.branches)), f"{path}: a type that the union does not have")
    live = lanes.why == 0
    for index, branch in enumerate(node.branches):
        rows = np.flatnonzero(live & (chosen == index))
        if len(rows):
            part = lanes.take(rows)
            skip_all(branch, part, path, depth + 1)
            lanes.put(rows, part)
