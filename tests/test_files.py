"""Predictions from files: three formats, the same rows; every broken file gets one sentence."""

import csv

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from calibrant.io.files import read

LOGITS = np.array([[2.0, 1.0, 0.1], [0.5, 2.5, 0.3], [1.2, 0.9, 1.0]])
LABELS = np.array([0, 1, 2])


def write_csv(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_three_formats_hold_the_same_rows(tmp_path):
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS, groups=np.array(["x", "y", "x"]))
    header = ["logits_0", "logits_1", "logits_2", "labels", "groups"]
    rows = [[*row, y, g] for row, y, g in zip(LOGITS.tolist(), LABELS.tolist(), "xyx", strict=True)]
    write_csv(tmp_path / "a.csv", header, rows)
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    parquet.write_table(pa.table({name: list(column) for name, column in columns.items()}), tmp_path / "a.parquet")
    parquet.write_table(
        pa.table({"logits": LOGITS.tolist(), "labels": LABELS.tolist(), "groups": list("xyx")}),
        tmp_path / "nested.parquet",
    )
    found = [read(tmp_path / name) for name in ("a.npz", "a.csv", "a.parquet", "nested.parquet")]
    assert len({p.understood for p in found}) == 1
    assert len({tuple(p.confidence.tolist()) for p in found}) == 1
    assert len({tuple(p.groups) for p in found}) == 1


def test_columns_named_after_classes_take_labels_by_name(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["labels", "probs_cat", "probs_dog"], [["dog", 0.2, 0.8], ["cat", 0.9, 0.1]])
    p = read(path)
    assert p.classes == ("cat", "dog")
    assert p.correct.tolist() == [True, True]


def test_columns_named_after_numbers_that_are_not_indices_are_names(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["labels", "probs_1", "probs_2"], [[2, 0.2, 0.8], [1, 0.9, 0.1]])
    assert read(path).correct.tolist() == [True, True]


def test_columns_with_spaces_and_indices_under_named_columns_are_read(tmp_path):
    path = write_csv(tmp_path / "A.CSV", ["labels", " probs_cat", " probs_dog"], [[1, 0.2, 0.8], [0, 0.9, 0.1]])
    assert read(path).correct.tolist() == [True, True]
    assert read(path).classes == ("cat", "dog")


def test_pairs_of_confidence_and_correctness_are_read(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["confidence", "correct"], [[0.5, "True"], [0.7, "false"]])
    assert read(path).correct.tolist() == [True, False]


def test_one_column_of_probabilities_is_binary(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["probs", "labels"], [[0.9, 1], [0.3, 0]])
    assert read(path).understood == "2 rows x 2 classes, probs, labels 0-1, accuracy 1.000"


def test_half_precision_and_ignored_rows_are_read(tmp_path):
    np.savez(tmp_path / "a.npz", logits=LOGITS.astype(np.float16), labels=np.array([0, -100, 2]))
    assert len(read(tmp_path / "a.npz", ignore_index=-100)) == 2


def broken_files(folder):
    np.savez(folder / "truncated.npz", logits=LOGITS, labels=LABELS)
    whole = (folder / "truncated.npz").read_bytes()
    (folder / "truncated.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "damaged.npz").write_bytes(whole[:60] + bytes(20) + whole[80:])
    (folder / "text.npz").write_text("hello")
    (folder / "empty.npz").write_bytes(b"")
    np.savez(folder / "names.npz", val_logits=LOGITS, val_labels=LABELS)
    np.savez(folder / "objects.npz", logits=np.array([None, 1], dtype=object))
    np.save(folder / "array.npy", LOGITS)
    (folder / "array.npz").write_bytes((folder / "array.npy").read_bytes())
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("confidence,correct\n")
    (folder / "twice.csv").write_text("confidence,confidence,correct\n0.5,0.5,1\n")
    (folder / "unknown.csv").write_text("Score,Hit\n0.5,1\n")
    (folder / "unlabelled.csv").write_text("probs_a,probs_b,label\n0.5,0.5,1\n")
    (folder / "ragged.csv").write_text("confidence,correct\n0.5\n")
    (folder / "words.csv").write_text("confidence,correct\nhigh,1\n")
    (folder / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "text.parquet").write_text("hello")
    parquet.write_table(pa.table({"confidence": pa.array([], pa.float64())}), folder / "none.parquet")
    (folder / "table.txt").write_text("confidence correct")


BROKEN = {
    "truncated.npz": "must be a whole .npz archive; it is truncated or damaged",
    "damaged.npz": "must be a whole .npz archive; it is truncated or damaged",
    "text.npz": "must be a whole .npz archive; it is truncated or damaged, or no archive.",
    "empty.npz": "must be a whole .npz archive; it is truncated or damaged",
    "names.npz": "must hold one of logits, probs, log_probs, confidence; it holds val_logits, val_labels.",
    "objects.npz": "must hold plain arrays; it holds Python objects.",
    "array.npz": "must be a whole .npz archive; it is truncated or damaged, or no archive.",
    "empty.csv": "must have a header and at least one row; it is empty.",
    "header.csv": "must have a header and at least one row; it has a header only.",
    "ragged.csv": "must have 2 fields in each row; line 2 has 1.",
    "twice.csv": "must have distinct columns; 'confidence' is there twice.",
    "unknown.csv": "must hold one of logits, probs, log_probs, confidence; it holds Score, Hit.",
    "unlabelled.csv": "must hold labels; it holds probs_a, probs_b, label.",
    "words.csv": "column confidence must hold numbers; it holds 'high'.",
    "binary.csv": "must be a UTF-8 csv file;",
    "text.parquet": "must be a whole .parquet file;",
    "none.parquet": "must have at least one row; it has none.",
    "table.txt": "must end in .npz, .csv or .parquet; got '.txt'.",
    "missing.npz": "does not exist or is not a file.",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gets_one_sentence_that_names_it(name, tmp_path):
    broken_files(tmp_path)
    with pytest.raises((ValueError, OSError)) as raised:
        read(tmp_path / name)
    message = str(raised.value)
    assert name in message
    assert BROKEN[name] in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["1", "2", "3"], ["1", "2", "3"]),
        (["1.0", "2.0", "3.0"], ["1", "2", "3"]),
        (["-1", "0", "1"], ["-1", "0", "1"]),
        (["2", "1", "0"], ["2.0", "1.0", "0.0"]),
        (["1", "2", "NA"], ["1", "2", "NA"]),
        (["cat", "7", "²"], ["cat", "7", "²"]),
    ],
)
def test_class_names_that_look_like_numbers_are_names(names, labels, tmp_path):
    rows = [[*np.where(np.arange(3) == i, 2.0, 0.0), label] for i, label in enumerate(labels)] * 4
    lines = [",".join([*(f"logits_{name}" for name in names), "labels"]), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "preds.csv").write_text("\n".join(lines))
    read_back = read(tmp_path / "preds.csv")
    assert bool(read_back.correct.all())
    if "NA" in names:  # and where every label that occurs is a number
        (tmp_path / "some.csv").write_text("\n".join([lines[0], *(line for line in lines[1:] if "NA" not in line)]))
        assert bool(read(tmp_path / "some.csv").correct.all())


def test_a_number_that_is_no_name_is_refused_where_names_are_numbers(tmp_path):
    (tmp_path / "preds.csv").write_text("logits_1,logits_2,logits_NA,labels\n2,0,0,1\n0,2,0,0\n")
    with pytest.raises(ValueError, match=r"labels must be among classes; got 0, which is not in \['1', '2', 'NA'\]"):
        read(tmp_path / "preds.csv")
