"""A pickle is read as data: whatever else stands in it is refused, and nothing of it is run."""

import builtins
import contextlib
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.training.datasets import pickles
from calibrant.training.datasets.dataset import load

HELD = {"data": np.arange(24, dtype=np.uint8).reshape(2, 12), "labels": [3, 7], "batch_label": "training batch 1 of 5"}


class Call:
    """Pickled as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def put(folder, content):
    path = folder / "data_batch_1"
    path.write_bytes(content)
    return path


def same(found, held):
    assert list(found) == list(held)
    assert all(np.array_equal(found[name], held[name]) for name in held)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_arrays_of_bytes_are_read_whatever_wrote_them(protocol, tmp_path):
    held = HELD | {"by_columns": np.asfortranarray(HELD["data"])}
    found = pickles.read(put(tmp_path, pickle.dumps(held, protocol)))
    same(found, held)
    assert found["data"].dtype == np.uint8


@pytest.mark.parametrize(
    "function",
    [os.system, os.popen, builtins.eval, builtins.exec, builtins.getattr, np.load, np.frombuffer, pickle.loads, open],
    ids=lambda function: f"{function.__module__}.{function.__name__}",
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_no_function_is_ever_called(function, protocol, tmp_path):
    mark = tmp_path / "mark"
    arguments = {open: (str(mark), "w"), eval: (f"open({str(mark)!r}, 'w')",), exec: (f"open({str(mark)!r}, 'w')",)}
    content = pickle.dumps(HELD | {"extra": Call(function, *arguments.get(function, (f"touch {mark}",)))}, protocol)
    with pytest.raises(ValueError, match=r"must be a pickle of plain lists and byte arrays; it asks for .*run\.$"):
        pickles.read(put(tmp_path, content))
    assert not mark.exists()


def test_the_calls_above_would_do_harm_elsewhere(tmp_path):
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps(Call(exec, f"open({str(mark)!r}, 'w').close()"), 2))
    assert mark.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x02cos\nsystem\n(U\x04exittR.", "it asks for os.system, and nothing was run"),
        (b"\x80\x02cnumpy\nload\nU\x01a\x85R.", "it asks for numpy.load, and nothing was run"),
        (b"\x80\x02cnumpy.core.multiarray\nscalar\n.", "it asks for numpy.core.multiarray.scalar"),
        (b"(ios\nsystem\n.", "it asks for os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "it asks for os.system"),
        (b"\x80\x02U\x01aQ.", "persistent"),
        (b"\x80\x02\x82\x01.", "extension"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "it asks for more memory than it has bytes"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.", "bytearray8"),
        (b"\x80\x02].", "it holds a list"),
        (b"\x80\x02}U\x01a}s.", "it holds a dict"),
        (b"\x80\x02}U\x01a]]as.", "it holds a list"),
        (b"\x80\x02}U\x01acnumpy\ndtype\ns.", "it holds a type"),
        (b"", "pickle exhausted"),
    ],
)
def test_hostile_pickles_are_refused_each_for_its_reason(content, reason, tmp_path):
    with pytest.raises(ValueError, match=reason) as raised:
        pickles.read(put(tmp_path, content))
    assert str(raised.value).count("\n") == 0


@pytest.mark.parametrize("array", [np.zeros(3), np.array([{}, 1]), np.array(["a"]), np.zeros(2, [("a", "u1")])])
def test_arrays_of_anything_but_bytes_are_refused(array, tmp_path):
    with pytest.raises(ValueError, match="not of bytes"):
        pickles.read(put(tmp_path, pickle.dumps({"data": array}, 2)))


def test_what_one_pickle_sets_the_next_does_not_see(tmp_path):
    # BUILD with a pair sets attributes of what is below it, here of the stand-in for _codecs.encode itself
    poison = b"\x80\x02c_codecs\nencode\nN}X\x07\x00\x00\x00__new__K\x01s\x86b0}."
    assert pickles.read(put(tmp_path, poison)) == {}
    same(pickles.read(put(tmp_path, pickle.dumps(HELD, 2))), HELD)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_pickle_is_read_or_refused_and_never_anything_else(tmp_path_factory, data):
    content = bytearray(pickle.dumps(HELD, data.draw(st.sampled_from([0, 2, 4]))))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = put(tmp_path_factory.getbasetemp(), bytes(content[: data.draw(st.integers(0, len(content)))]))
    with contextlib.suppress(ValueError):  # any other error fails the test
        assert isinstance(pickles.read(path), dict)


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ({"data": np.zeros((2, 3072), np.uint8)}, "must hold data of shape"),
        ({"data": np.zeros((2, 3071), np.uint8), "labels": [0, 1]}, "must hold data of shape"),
        ({"data": [1, 2], "labels": [0, 1]}, "must hold data of shape"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "must hold labels, a whole number for each of its 2"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]}, "must hold labels, a whole number for each"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10**30]}, "must hold labels, a whole number for each"),
    ],
)
def test_a_batch_of_another_kind_is_refused(held, reason, tmp_path):
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (tmp_path / name).write_bytes(pickle.dumps(held, 2))
    with pytest.raises(ValueError, match=reason):
        load("cifar10", tmp_path)


def test_an_array_whose_bytes_do_not_fill_its_shape_is_refused(tmp_path):
    content = pickle.dumps({"data": np.zeros((2, 7), np.uint8)}, 2)
    wrong = content.replace(b"K\x02K\x07\x86", b"K\x02K\x08\x86")
    assert wrong != content
    with pytest.raises(ValueError, match="cannot reshape"):
        pickles.read(put(tmp_path, wrong))


def nested(times):
    """A pickle of a dict whose key is a tuple of twice a tuple of twice ..., a byte or two for each doubling."""
    return b"\x80\x02}(K\x01" + b"2\x86" * times + b"K\x01u."


@pytest.mark.parametrize("times", [1, 20, 60, 10_000])
def test_a_key_that_would_take_years_to_hash_is_refused_at_once(times, tmp_path):
    with pytest.raises(ValueError, match=r"it has (a key that is a tuple|\d+ tuples, and an array needs few)\.$"):
        pickles.read(put(tmp_path, nested(times)))
