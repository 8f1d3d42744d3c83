"""Files that are written and not kept: to see whether they can be written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, OutputFile


class Nowhere(FileIO):
    """Takes files, and keeps none."""

    def new_output(self, location: str) -> OutputFile:
        """Return a file that only counts its bytes."""
        return _Counted(location)

    def new_input(self, location: str) -> InputFile:
        """Refuse: nothing is there."""
        raise FileNotFoundError(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Do nothing: nothing is there."""


class _Counted(OutputFile):
    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._stream = pa.MockOutputStream()

    def __len__(self) -> int:
        return int(self._stream.size())

    def exists(self) -> bool:
        return False

    def create(self, overwrite: bool = False) -> Any:
        return self._stream

    def to_input_file(self) -> InputFile:
        raise FileNotFoundError(self.location)
