"""How counts and shares are written, everywhere the same."""


def count(n: int) -> str:
    """Write a number of rows in groups of three.

    Example:
        >>> count(12345)
        '12 345'
    """
    return f"{n:,}".replace(",", " ")


def percent(share: float, digits: int = 0) -> str:
    """Write a share as a percentage.

    Example:
        >>> percent(0.871), percent(0.0213, 1)
        ('87 %', '2.1 %')
    """
    return f"{100 * share:.{digits}f} %"
