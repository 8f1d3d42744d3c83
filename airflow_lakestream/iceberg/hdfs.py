"""Files of Iceberg tables in HDFS, by hdfs-native: `"py-io-impl": "airflow_lakestream.iceberg.hdfs.HdfsFileIO"`.

PyIceberg's own client is PyArrow's, which needs Hadoop and a Java inside of the process. That Java survives no fork;
this client is opened again in each process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from airflow_lakestream.stores import hdfs


class HdfsFileIO(FileIO):
    """PyIceberg's files in HDFS. The environment has the settings of the cluster: see `stores.hdfs`."""

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _HdfsInputFile(location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write."""
        return _HdfsOutputFile(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file. Raises FileNotFoundError, HdfsFailed."""
        place = location if isinstance(location, str) else location.location
        with hdfs.translate_errors(place):
            client, path = _opened(place)
            if not client.delete(path, False):
                raise FileNotFoundError(place)

    def list_files(self, folder: str) -> Iterator[str]:
        """Yield the locations of all files below a folder; empty if the folder is missing."""
        yield from (location for location, _, _ in self.stored(folder))

    def stored(self, folder: str) -> Iterator[tuple[str, int, int]]:
        """Yield location, size and time of the last change, in milliseconds, of all files below a folder."""
        client, path = _opened(folder.rstrip("/"))
        try:
            with hdfs.translate_errors(folder):
                files = [status for status in client.list_status(path, True) if not status.isdir]
        except FileNotFoundError:
            return
        for status in files:
            yield folder.rstrip("/") + status.path.removeprefix(path), status.length, status.modification_time


class _HdfsInputFile(InputFile):
    def __len__(self) -> int:
        return _size(self.location)

    def exists(self) -> bool:
        return _exists(self.location)

    def open(self, seekable: bool = True) -> InputStream:
        with hdfs.translate_errors(self.location):
            client, path = _opened(self.location)
            stream: InputStream = client.read(path)
            return stream


class _HdfsOutputFile(OutputFile):
    def __len__(self) -> int:
        return _size(self.location)

    def exists(self) -> bool:
        return _exists(self.location)

    def to_input_file(self) -> InputFile:
        return _HdfsInputFile(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        from hdfs_native import WriteOptions

        with hdfs.translate_errors(self.location):
            client, path = _opened(self.location)
            stream: OutputStream = client.create(path, WriteOptions(overwrite=overwrite))
            return stream


def _opened(location: str) -> tuple[Any, str]:
    """Return the client of a location's cluster, and the path in the cluster."""
    authority, path = hdfs.split(location)
    return hdfs.client_of(authority), path


def _size(location: str) -> int:
    with hdfs.translate_errors(location):
        client, path = _opened(location)
        return int(client.get_file_info(path).length)


def _exists(location: str) -> bool:
    try:
        _size(location)
    except FileNotFoundError:
        return False
    return True
