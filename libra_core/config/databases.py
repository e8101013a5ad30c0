"""Addresses of databases that are files."""

from pathlib import Path

from libra_core.errors import ConfigError

WITH_A_MEANING = "%?#"
"""Characters of a path that mean something else in an address."""


def sqlite_url(file: Path, driver: str = "") -> str:
    """`sqlite:////runs/mlflow.db` for any absolute path; `driver` is SQLAlchemy's name, such as `aiosqlite`.

    A path with `%`, `?` or `#` is quoted by SQLAlchemy and names a driver also where none is asked for: MLflow makes the
    parent folder of a plain address as it is written, quotes and all.

    Raises:
        ConfigError: when this SQLAlchemy cannot write the path down.
    """
    plain = f"sqlite+{driver}:///{file}" if driver else f"sqlite:///{file}"
    if not any(mark in str(file) for mark in WITH_A_MEANING):
        return plain
    from sqlalchemy import URL, make_url  # a fifth of a second, and seldom needed

    url = URL.create(f"sqlite+{driver or 'pysqlite'}", database=str(file)).render_as_string()
    if make_url(url).database != str(file):
        raise ConfigError(f"{file} cannot be the address of a database; leave {WITH_A_MEANING!r} out of run.root")
    return url


def store_of(root: Path) -> str:
    """MLflow's database that runs under this root share unless another store is named."""
    return sqlite_url(root.resolve() / "mlflow.db")
