"""A lease in a store that keeps no promise is refused: nobody could tell who holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lakestream.driver import driver_folder
from airflow_lakestream.driver.driver_folder import DriverFolder, StoreOverwrites
from airflow_lakestream.driver.driving import DriverSubmissions, StreamSpec
from airflow_lakestream.driver.lease import HeldLease, read_lease
from airflow_lakestream.driver.supervisor import SupervisionLimits
from airflow_lakestream.exceptions import Terminal
from airflow_lakestream.stores.folders import LocalFolder


class CarelessFolder(LocalFolder):
    """A folder whose files are created also where they are there, as by a store without conditional writes."""

    def create(self, path: str, content: bytes) -> bool:
        self.write(path, content)
        return True


def test_a_store_that_creates_a_file_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_folder, "open_folder", lambda location, properties: CarelessFolder(Path(location)))
    place = str(tmp_path / "checkpoint")
    with pytest.raises(StoreOverwrites, match=r"could each hold the lease.*conditional writes") as caught:
        HeldLease.take(place, "f", "a test")
    assert isinstance(caught.value, Terminal)
    assert read_lease(place) is None

    # The operator finds out before it launches a driver.
    submissions = DriverSubmissions(StreamSpec(place, "f", {}, SupervisionLimits(), 1.0, "a test"))
    with pytest.raises(StoreOverwrites):
        submissions.claim(submissions.find())
    assert submissions.find().attempt == 0


def test_a_file_that_is_deleted_meanwhile_speaks_for_no_such_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = []

    class DeletedFolder(LocalFolder):
        def create(self, path: str, content: bytes) -> bool:
            created = super().create(path, content)
            if not deleted:
                deleted.append(path)
                self.remove(path)
            return created

    monkeypatch.setattr(driver_folder, "open_folder", lambda location, properties: DeletedFolder(Path(location)))
    folder = DriverFolder(str(tmp_path / "checkpoint"))
    assert folder.create("a", {"n": 1})
    assert not folder.create("a", {"n": 2})
    assert folder.read("a") == {"n": 1}


def test_a_lease_that_is_taken_stands_as_it_was_written(tmp_path: Path) -> None:
    place = str(tmp_path / "checkpoint")
    lease = HeldLease.take(place, "f", "a test")
    assert read_lease(place) == lease.record
