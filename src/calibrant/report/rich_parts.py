"""The parts of rich that tables are drawn with. Importing rich changes the state of `random`, which is restored."""

import random

_state = random.getstate()

from rich.console import Console as Console  # noqa: E402
from rich.padding import Padding as Padding  # noqa: E402
from rich.table import Table as Table  # noqa: E402

random.setstate(_state)
