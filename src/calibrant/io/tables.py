"""Read columns from .csv and .parquet files: only those that mean something, with bounds before work."""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

LONGEST = 64_000_000  # characters of a line: names of a million classes

Known = Callable[[str], bool]


def read_csv(path: Path, known: Known) -> tuple[dict[str, list[str]], list[str]]:
    """Return the known columns as text, and the names of all columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _columns(path, csv.reader(_lines(path, file)), known)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path.name} must be a UTF-8 csv file; {error}.") from None


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    while line := file.readline(LONGEST):
        if len(line) == LONGEST:
            raise ValueError(f"{path.name} must be a csv file; it has a line of more than {LONGEST} characters.")
        yield line


def _columns(path: Path, rows: Iterator[list[str]], known: Known) -> tuple[dict[str, list[str]], list[str]]:
    header = [name.strip() for name in next(rows, [])]
    if len(set(header)) < len(header):
        seen: set[str] = set()
        twice = next(name for name in header if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{path.name} must have distinct columns; {twice!r} is there twice.")
    if not header:
        raise ValueError(f"{path.name} must have a header and at least one row; it is empty.")
    wanted = [(place, name) for place, name in enumerate(header) if known(name)]
    columns: dict[str, list[str]] = {name: [] for _, name in wanted}
    if not wanted:
        return {}, header
    for line, row in enumerate(rows, 2):
        if not row:
            continue  # a blank line
        if len(row) != len(header):
            raise ValueError(f"{path.name} must have {len(header)} fields in each row; line {line} has {len(row)}.")
        for place, name in wanted:
            columns[name].append(row[place])
    if not columns[wanted[0][1]]:
        raise ValueError(f"{path.name} must have a header and at least one row; it has a header only.")
    return columns, header


def read_parquet(path: Path, known: Known) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the known columns as lists, and the names of all columns."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError("reading .parquet needs pyarrow; install calibrant[parquet].") from None
    try:
        with parquet.ParquetFile(path) as file:
            names: list[str] = list(file.schema_arrow.names)
            table = file.read(columns=[name for name in dict.fromkeys(names) if known(name)])
        columns = {name: table[name].to_pylist() for name in table.column_names}
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can fail in any way; nothing in it is ever executed
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(f"{path.name} must be a whole .parquet file; {reason}.") from None
    if columns and table.num_rows == 0:
        raise ValueError(f"{path.name} must have at least one row; it has none.")
    return columns, names
