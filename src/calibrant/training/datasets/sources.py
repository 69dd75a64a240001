"""Where a data set's files come from, and where people keep them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Form = TypeVar("Form")


@dataclass(frozen=True)
class Source:
    """The files of one data set: ``archive`` is what to fetch and from whom, ``folders`` are the usual sub-folders.

    A name that ends in a slash is a folder. ``endings`` may follow the name of a file, such as ``.gz``.
    """

    name: str
    archive: str
    folders: tuple[str, ...]
    endings: tuple[str, ...] = ("",)

    def find(self, folder: Path, forms: Mapping[Form, Sequence[str]]) -> tuple[Form, list[Path]]:
        """Return the first form of which every file is there, with the files; sub-folders go before the folder.

        The set's own sub-folder goes first because different sets use the same names.
        """
        tried = [
            (form, names, [self._file(place, name) for name in names])
            for place in self._places(folder)
            for form, names in forms.items()
        ]
        for form, _, files in tried:
            if None not in files:
                return form, [file for file in files if file is not None]
        _, names, files = max(tried, key=lambda one: sum(file is not None for file in one[2]))
        missing = ", ".join(name for name, file in zip(names, files, strict=True) if file is None)
        there = next((file for file in files if file is not None), None)
        where = f"in {folder}, or its sub-folder {' or '.join(self.folders)}" if there is None else f"beside {there}"
        raise FileNotFoundError(f"{self.name} needs {missing} {where}; fetch {self.archive} and put the files there.")

    def _places(self, folder: Path) -> Iterator[Path]:
        yield from (folder / name for name in self.folders)
        yield folder

    def _file(self, place: Path, name: str) -> Path | None:
        if name.endswith("/"):
            return place / name if (place / name).is_dir() else None
        return next((path for end in self.endings if (path := place / f"{name}{end}").is_file()), None)
