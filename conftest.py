"""Doctests may say torch, np and Predictions without importing them; parallel workers use one thread each."""

import os

import numpy as np
import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # two workers on two cores: more threads would only wait for each other


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    from calibrant.predictions.predictions import Predictions

    doctest_namespace.update(torch=torch, np=np, Predictions=Predictions)
