"""What token numbers mean to every text model: 0 is padding, 1 an unknown word."""

PADDING = 0


def admit(vocabulary: int, length: int) -> None:
    """Refuse texts that no network here can take."""
    if vocabulary < 2:
        raise ValueError(f"vocabulary must be at least 2, padding and the unknown word; got {vocabulary}.")
    if length < 1:
        raise ValueError(f"length must be at least 1 token; got {length}.")
