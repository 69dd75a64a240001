"""Doctests may say torch, np and Predictions without importing them."""

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    from calibrant.predictions import Predictions

    doctest_namespace.update(torch=torch, np=np, Predictions=Predictions)
