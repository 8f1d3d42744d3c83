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
# The programs' folder: in the package in a wheel, next to the package in a checkout.
_PLACES = (_PACKAGE / "spark_apps", _PACKAGE.parent / "spark_apps")
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
        near = difflib.get_close_matches(str(name), known, 1, 0.4)
        remedy = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}."
        raise InvalidArgument("app", f"{name!r} is not a bundled app.", remedy)
    return name


def app_path(name: str) -> str:
    """Return the path of a bundled app's program, for `spark-submit`. Raises InvalidArgument."""
    check_app(name)
    return str(next(path for place in _PLACES if (path := place / f"{name}.py").is_file()))


def package_zip(folder: str | Path) -> str:
    """Write the package as a zip into a folder, for `spark-submit --py-files`; return the zip's path.

    The zip has only our modules; their dependencies must be installed on the executors: docs/spark.md.
    """
    path = Path(folder) / f"airflow_lakestream-{airflow_lakestream.__version__}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(_PACKAGE.rglob("*.py")):
            inside = module.relative_to(_PACKAGE)
            if inside.parts[0] not in _NOT_FOR_EXECUTORS:
                archive.write(module, Path(_PACKAGE.name) / inside)
    return str(path)
