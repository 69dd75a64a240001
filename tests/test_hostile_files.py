"""Hostile files: archives that lie about their sizes, tables with endless lines, damaged bytes; one sentence each."""

import io
import random
import struct
import tracemalloc
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from calibrant.io import npz, tables
from calibrant.io.files import read

LOGITS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
LABELS = np.arange(40) % 3


def member(array):
    held = io.BytesIO()
    np.lib.format.write_array(held, array)
    return held.getvalue()


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def refusal(path):
    with pytest.raises((ValueError, OSError)) as raised:
        read(path)
    message = str(raised.value)
    assert path.name in message
    assert "\n" not in message
    assert message.endswith(".")
    return message


GOOD = {"logits.npy": member(LOGITS), "labels.npy": member(LABELS)}


def with_header(text):
    """A member whose header says something else than what follows."""
    body = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body + LOGITS.tobytes()


HEADERS = {
    "73 TiB": "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }",
    "negative": "{'descr': '<f4', 'fortran_order': False, 'shape': (-40, 3), }",
    "short": "{'descr': '<f4', 'fortran_order': False, 'shape': (39, 3), }",
    "overflow": "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4611686018427387904), }",
    "no dict": "__import__('os').system('true')",
    "nested": "{'descr': " + "(" * 50 + ")" * 50 + "}",
    "object": "{'descr': '|O', 'fortran_order': False, 'shape': (40, 3), }",
    "strange type": "{'descr': '<x9', 'fortran_order': False, 'shape': (40, 3), }",
    "no shape": "{'descr': '<f4', 'fortran_order': False}",
    "shape of words": "{'descr': '<f4', 'fortran_order': False, 'shape': ('a', 3), }",
}


@pytest.mark.parametrize("which", HEADERS)
def test_a_header_that_lies_is_refused(which, tmp_path):
    path = archive(tmp_path / "a.npz", GOOD | {"logits.npy": with_header(HEADERS[which])})
    assert "must " in refusal(path)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_numpy_does_not_use_is_refused(kind, tmp_path):
    assert "packed in a way that numpy does not use" in refusal(archive(tmp_path / "a.npz", GOOD, kind))


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_numpy_writes_is_read(kind, tmp_path):
    for array in (LOGITS, np.asfortranarray(LOGITS), LOGITS.astype(">f8"), LOGITS.astype(np.float16)):
        found = read(archive(tmp_path / "a.npz", {**GOOD, "logits.npy": member(array)}, kind))
        assert np.array_equal(found.logits.numpy(), array)
    names = np.array(["a", "b", "c"])
    named = archive(tmp_path / "b.npz", GOOD | {"classes.npy": member(names), "labels.npy": member(names[LABELS])})
    assert read(named).classes == ("a", "b", "c")


def test_an_encrypted_member_is_refused(tmp_path):
    path = archive(tmp_path / "a.npz", GOOD)
    blob = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        blob[blob.find(mark) + place] |= 1
    path.write_bytes(bytes(blob))
    assert "is encrypted" in refusal(path)


def test_an_unknown_compression_is_refused(tmp_path):
    path = archive(tmp_path / "a.npz", GOOD)
    blob = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        blob[blob.find(mark) + place] = 97
    path.write_bytes(bytes(blob))
    refusal(path)


def test_members_that_are_not_asked_for_are_not_read(tmp_path):
    zeros = bytes(60_000_000)
    path = archive(
        tmp_path / "a.npz", {**GOOD, "huge.npy": zeros, "evil.npy": b"\x80\x02cos\nsystem\n"}, zipfile.ZIP_DEFLATED
    )
    tracemalloc.start()
    try:
        assert len(read(path)) == 40
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_size_that_deflate_cannot_reach_is_not_believed(tmp_path):
    path = archive(tmp_path / "a.npz", GOOD, zipfile.ZIP_DEFLATED)
    blob, size = bytearray(path.read_bytes()), struct.pack("<I", 4_000_000_000)
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = blob.find(mark) + place
        blob[at : at + 4] = size
    path.write_bytes(bytes(blob))
    refusal(path)


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv"])
def test_flipped_bytes_are_refused_or_the_same_rows(kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    columns = {f"logits_{j}": LOGITS[:, j] for j in range(3)} | {"labels": LABELS}
    if kind == "npz":
        np.savez_compressed(path, logits=LOGITS, labels=LABELS)
    elif kind == "parquet":
        parquet.write_table(pa.table(columns), path)
    else:
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join(map(repr, row)) for row in rows)]))
    whole, expected = path.read_bytes(), read(path)
    for number in range(300):
        chance = random.Random(number)
        blob = bytearray(whole)
        for _ in range(chance.choice([1, 1, 3, 20])):
            blob[chance.randrange(len(blob))] = chance.randrange(256)
        path.write_bytes(bytes(blob[: len(blob) // 2]) if number % 10 == 0 else bytes(blob))
        try:
            found = read(path)
        except (ValueError, TypeError, OSError) as error:
            assert "\n" not in str(error)  # noqa: PT017
            continue
        if kind == "npz":  # a checksum protects it
            assert np.array_equal(found.logits.numpy(), expected.logits.numpy())


def test_a_line_without_end_is_refused_before_it_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST", 100_000)
    (tmp_path / "a.csv").write_bytes(b"confidence,correct\n" + b"0" * 30_000_000)
    tracemalloc.start()
    try:
        assert "a line of more than 100000 characters" in refusal(tmp_path / "a.csv")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_table_of_nothing_known_is_refused_by_its_header(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 20_000)
    seen, lines = [], tables._lines
    monkeypatch.setattr(tables, "_lines", lambda *file: (seen.append(line) or line for line in lines(*file)))
    assert "must hold one of logits, probs, log_probs, confidence; it holds x, y." in refusal(tmp_path / "a.csv")
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("confidence,correct\n\n\n\n", "it has a header only"),
        ("\n\nconfidence,correct\n0.5,1\n", "it is empty"),
        ("confidence,correct\n0.5,1\n0.5\n", "line 3 has 1"),
        ("confidence,correct,correct\n0.5,1,1\n", "distinct columns; 'correct' is there twice"),
        ('confidence,correct\n"0.5,1\n', "must have 2 fields"),
        ("confidence,correct\n0.5,1\x00\n", "must hold numbers"),
        ("logits,logits_0,logits_1,labels\n1,2,3,0\n", "in one column or in several"),
        ("logits_0,logits_1,labels\n1,2,3,0\n", "must have 3 fields in each row; line 2 has 4"),
        ("confidence,correct\n" + "9" * 400 + ",1\n", "must be finite"),
    ],
    ids=["blank lines", "blank header", "ragged", "twice", "quote", "nul", "both", "wide", "enormous"],
)
def test_an_odd_table_gets_one_sentence(text, said, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises((ValueError, TypeError), match=said):
        read(tmp_path / "a.csv")


def test_nested_columns_are_refused_where_one_number_is_meant(tmp_path):
    for name in ("labels", "logits_0", "weights", "correct"):
        columns = {"logits_0": [1.0, 2.0], "logits_1": [0.0, 1.0], "labels": [0, 1]}
        columns[name] = [[0, 1], [1, 0]]
        parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
        if name != "correct":  # not looked at, beside labels
            assert "must hold one number a row" in refusal(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"logits": [[1.0], [1.0, 2.0]], "labels": [0, 1]}), tmp_path / "a.parquet")
    refusal(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"confidence": [{"a": 1.0}], "correct": [1]}), tmp_path / "a.parquet")
    refusal(tmp_path / "a.parquet")


def test_a_file_that_does_not_fit_into_memory_is_said_in_a_sentence(tmp_path, monkeypatch):
    def none(*_, **__):
        raise MemoryError("Unable to allocate 73.0 TiB")

    monkeypatch.setattr(np, "empty", none)
    with pytest.raises(MemoryError):
        npz.read_arrays(archive(tmp_path / "a.npz", GOOD), ("logits",))
