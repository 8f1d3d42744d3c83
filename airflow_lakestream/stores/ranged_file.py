"""Base of read-only files of a known size, with only the requested bytes fetched."""

from __future__ import annotations

import io


class RangedFile(io.RawIOBase):
    """A seekable file. Subclasses implement `read`, from `_at` on, and move `_at`.

    :param size: in bytes.
    """

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position, in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position; return the position in bytes from the beginning."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at
