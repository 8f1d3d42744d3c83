"""The bundled Spark apps: program paths, and the package as a zip for executors without the package."""

from __future__ import annotations

import difflib
import zipfile
from pathlib import Path

import airflow_lakestream
from airflow_lakestream.exceptions import InvalidArgument

KAFKA_TO_ICEBERG = "kafka_to_iceberg"
KAFKA_TO_DELTA = "kafka_to_delta"
CDC_TO_ICEBERG = "cdc_to_iceberg"
CDC_TO_DELTA = "cdc_to_delta"
MAINTAIN_ICEBERG = "maintain_iceberg"
# The apps of mirrors.
MIRROR_APPS = (CDC_TO_ICEBERG, CDC_TO_DELTA)
_PACKAGE = Path(airflow_lakestream.__file__).parent
# The folder of the programs is in the package in a wheel, and next to the package in a checkout.
_PROGRAM_FOLDERS = (_PACKAGE / "spark_apps", _PACKAGE.parent / "spark_apps")
# Airflow's part, which executors don't need.
_NOT_FOR_EXECUTORS = ("hooks", "operators", "sensors", "triggers", "cli", "example_dags", "spark_apps")


def apps() -> list[str]:
    """Return the names of the bundled apps.

    A fixed list: a driver that got the package from the zip has no program files.
    """
    return sorted((KAFKA_TO_ICEBERG, KAFKA_TO_DELTA, CDC_TO_ICEBERG, CDC_TO_DELTA, MAINTAIN_ICEBERG))


def check_app(name: str) -> str:
    """Return an app's name. Raises InvalidArgument, with the nearest name as a suggestion."""
    known = apps()
    if name not in known:
        similar = difflib.get_close_matches(str(name), known, 1, 0.4)
        remedy = f"Did you mean {similar[0]!r}?" if similar else f"There are: {', '.join(known)}."
        raise InvalidArgument("app", f"{name!r} is not a bundled app.", remedy)
    return name


def app_path(name: str) -> str:
    """Return the path of a bundled app's program, for `spark-submit`. Raises InvalidArgument."""
    check_app(name)
    programs = (folder / f"{name}.py" for folder in _PROGRAM_FOLDERS)
    return str(next(program for program in programs if program.is_file()))


def package_zip(folder: str | Path) -> str:
    """Write the package as a zip into a folder, for `spark-submit --py-files`; return the zip's path.

    The zip has only our modules; their dependencies must be installed on the executors: docs/spark.md.
    """
    path = Path(folder) / f"airflow_lakestream-{airflow_lakestream.__version__}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(_PACKAGE.rglob("*.py")):
            path_in_package = module.relative_to(_PACKAGE)
            if path_in_package.parts[0] not in _NOT_FOR_EXECUTORS:
                archive.write(module, Path(_PACKAGE.name) / path_in_package)
    return str(path)
