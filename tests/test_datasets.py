"""Every data set reads its published files exactly, and says in one sentence what is wrong with others.

The files are written here by hand, byte by byte where that can be, so that no code is shared with the readers.
"""

import csv
import gzip
import io
import json
import lzma
import struct
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pyarrow
import pytest
import scipy.io
import torch
from PIL import Image
from pyarrow import parquet
from real_data import both_sizes, larger, small, tiles

from calibrant.registry import DATASETS
from calibrant.training.datasets.dataset import Dataset, Images, Part, load
from calibrant.training.datasets.text import Words

MNIST = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


class Rows(NamedTuple):
    """What was written: images (n, c, h, w) or texts, and labels, for training and testing."""

    x_train: object
    y_train: list
    x_test: object
    y_test: list


def made(n_train=5, n_test=5, channels=3, side=32, k=10):
    rng = np.random.default_rng(7)
    x = [rng.integers(0, 256, (n, channels, side, side), dtype=np.uint8) for n in (n_train, n_test)]
    y = [rng.integers(0, k, n).tolist() for n in (n_train, n_test)]
    return Rows(x[0], y[0], x[1], y[1])


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def idx(folder, pack=bytes, ending=""):
    rows = made(channels=1, side=28)
    for name, x, y in (("train", rows.x_train, rows.y_train), ("t10k", rows.x_test, rows.y_test)):
        images = struct.pack(">IIII", 0x803, len(x), 28, 28) + x.tobytes()
        put(folder / f"{name}-images-idx3-ubyte{ending}", pack(images))
        put(folder / f"{name}-labels-idx1-ubyte{ending}", pack(struct.pack(">II", 0x801, len(y)) + bytes(y)))
    return rows


def zipped_idx(folder):
    return idx(folder / "MNIST" / "raw", gzip.compress, ".gz")


def binary10(folder):
    rows = made()
    for i, name in enumerate(BATCHES):
        x, y = (rows.x_train[i : i + 1], rows.y_train[i : i + 1]) if i < 5 else (rows.x_test, rows.y_test)
        put(
            folder / "cifar-10-batches-bin" / f"{name}.bin",
            b"".join(bytes([b]) + a.tobytes() for a, b in zip(x, y, strict=True)),
        )
    return rows


def binary100(folder):
    rows = made(k=100)
    for name, x, y in (("train", rows.x_train, rows.y_train), ("test", rows.x_test, rows.y_test)):
        put(folder / f"{name}.bin", b"".join(bytes([3, b]) + a.tobytes() for a, b in zip(x, y, strict=True)))
    return rows


def npz(name, k):
    def write(folder):
        rows = made(k=k)
        channels_last = [x.transpose(0, 2, 3, 1) for x in (rows.x_train, rows.x_test)]
        labels = [np.array(y, np.uint8)[:, None] for y in (rows.y_train, rows.y_test)]
        np.savez(folder / name, x_train=channels_last[0], y_train=labels[0], x_test=channels_last[1], y_test=labels[1])
        return rows

    return write


def old_pickle(x, y, labels):
    """A dict with an array as Python 2 and the numpy of 2009 wrote it: byte strings, and names of numpy.core."""
    string = lambda text: b"U" + bytes([len(text)]) + text  # noqa: E731
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85" + string(b"b") + b"\x87Rq\x03"
    array += b"(K\x01" + b"".join(b"J" + struct.pack("<i", size) for size in (len(x), 3072)) + b"\x86"
    array += b"cnumpy\ndtype\nq\x04" + string(b"u1") + b"K\x00K\x01\x87Rq\x05"
    array += b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    array += b"T" + struct.pack("<i", x.size) + x.tobytes() + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    named = b"](" + string(b"a.png") + string(b"b.png") + b"e"
    body = string(b"data") + array + string(labels) + listed + string(b"filenames") + named
    return b"\x80\x02}q\x00(" + body + string(b"batch_label") + string(b"batch 1 of 5") + b"u."


def pickles10(folder):
    rows = made()
    for i, name in enumerate(BATCHES):
        x, y = (rows.x_train[i : i + 1], rows.y_train[i : i + 1]) if i < 5 else (rows.x_test, rows.y_test)
        put(folder / "cifar-10-batches-py" / name, old_pickle(x, y, b"labels"))
    return rows


def pickles100(folder):
    rows = made(k=100)
    put(folder / "cifar-100-python" / "train", old_pickle(rows.x_train, rows.y_train, b"fine_labels"))
    put(folder / "cifar-100-python" / "test", old_pickle(rows.x_test, rows.y_test, b"fine_labels"))
    return rows


def mat(folder):
    rows = made()
    rows.y_train[0] = 0
    for name, x, y in (("train", rows.x_train, rows.y_train), ("test", rows.x_test, rows.y_test)):
        one_based = np.array([[10 if label == 0 else label] for label in y], np.uint8)
        scipy.io.savemat(
            folder / f"{name}_32x32.mat", {"X": np.moveaxis(x, 0, -1).transpose(1, 2, 0, 3), "y": one_based}
        )
    return rows


def npy(folder):
    rows = made(n_train=0, n_test=10)
    np.save(folder / "labels.npy", np.array(rows.y_test, np.uint8))
    np.save(folder / "gaussian_noise.npy", rows.x_test.transpose(0, 2, 3, 1))
    return Rows(rows.x_train, [], rows.x_test[8:], rows.y_test[8:])  # severity 5, the last two of ten


def picture(path, pixels):
    """A lossless file under the name of a lossy one; ImageNet has one of those too."""
    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "PNG")
    put(path, file.getvalue())


def tiny(folder):
    rows = made(n_train=4, n_test=3, side=64)
    place = folder / "tiny-imagenet-200"
    for i, x in enumerate(rows.x_train):
        picture(place / "train" / ("n01", "n02")[i // 2] / "images" / f"n_{i}.JPEG", x)
    for i, x in enumerate(rows.x_test):
        picture(place / "val" / "images" / f"val_{i}.JPEG", x)
    put(place / "wnids.txt", b"n02\nn01\n")
    put(place / "words.txt", b"n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\ttailed frog\n")
    put(place / "val" / "val_annotations.txt", b"val_0.JPEG\tn02\t0\t1\t2\t3\nval_1.JPEG\tn01\nval_2.JPEG\tn02\n")
    return Rows(rows.x_train, [0, 0, 1, 1], rows.x_test, [1, 0, 1])


def big(folder):
    rows = made(n_train=4, n_test=2, side=256)
    for i, x in enumerate(rows.x_train):
        picture(folder / "train" / ("n01", "n02")[i // 2] / f"{i}.JPEG", x)
    for i, x in enumerate(rows.x_test):
        picture(folder / "val" / ("n01", "n02")[i] / f"{i}.JPEG", x)
    return Rows(rows.x_train[:, :, 16:240, 16:240], [0, 0, 1, 1], rows.x_test[:, :, 16:240, 16:240], [0, 1])


# By frequency, then by the alphabet: orbit is 2, moon 3, the 4, un-trained words 1.
POSTS = Rows(["The moon, the ORBIT", "moon", "orbit"], [0, 0, 1], ["Mars: the moon's moon", "!?"], [1, 0])
TOKENS = ([[4, 2, 4, 3], [2, 0, 0, 0], [3, 0, 0, 0]], [[1, 4, 1, 2], [1, 0, 0, 0]])


def post_folders(folder):
    put(folder / "20news-bydate-train" / "alt.moon" / "9", b"The moon, the ORBIT")
    put(folder / "20news-bydate-train" / "alt.moon" / "10", b"moon")
    put(folder / "20news-bydate-train" / "sci.orbit" / "8", b"orbit")
    put(folder / "20news-bydate-test" / "alt.moon" / "3", b"!?\xff")
    put(folder / "20news-bydate-test" / "sci.orbit" / "2", b"Mars: the moon's moon")
    return Rows(TOKENS[0], [0, 0, 1], [TOKENS[1][1], TOKENS[1][0]], [0, 1])


def post_json(folder, pack=bytes, ending=""):
    held = {"target_names": ["alt.moon", "sci.orbit"]}
    for name, data, target in (("train", POSTS.x_train, POSTS.y_train), ("test", POSTS.x_test, POSTS.y_test)):
        held[name] = {"id": [str(i) for i in target], "target": target, "data": data}
    put(folder / f"20news_bydate.json{ending}", pack(json.dumps(held).encode()))
    return Rows(TOKENS[0], POSTS.y_train, TOKENS[1], POSTS.y_test)


def post_xz(folder):
    return post_json(folder, lzma.compress, ".xz")


def title_and_text(text):
    title, _, rest = text.partition(" ")
    return title, rest


def ontology_csv(folder):
    for name, texts, labels in (("train", POSTS.x_train, POSTS.y_train), ("test", POSTS.x_test, POSTS.y_test)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows([label + 1, *title_and_text(text)] for text, label in zip(texts, labels, strict=True))
    return Rows(TOKENS[0], POSTS.y_train, TOKENS[1], POSTS.y_test)


def ontology_parquet(folder):
    (folder / "dbpedia").mkdir()
    for name, texts, labels in (("train", POSTS.x_train, POSTS.y_train), ("test", POSTS.x_test, POSTS.y_test)):
        titles, contents = zip(*map(title_and_text, texts), strict=True)
        table = pyarrow.table({"label": labels, "title": list(titles), "content": list(contents)})
        parquet.write_table(table, folder / "dbpedia" / f"{name}.parquet")
    return Rows(TOKENS[0], POSTS.y_train, TOKENS[1], POSTS.y_test)


class Row(NamedTuple):
    """A data set, and a function that writes it in one of its forms."""

    name: str
    write: object
    options: dict | None = None
    k: int | None = None  # where a subset has fewer classes than the whole set


ROWS = [
    Row("mnist", idx),
    Row("mnist", zipped_idx),
    Row("fashion_mnist", lambda folder: idx(folder / "fashion_mnist")),
    Row("cifar10", binary10),
    Row("cifar10", pickles10),
    Row("cifar10", npz("cifar10.npz", 10)),
    Row("cifar100", binary100),
    Row("cifar100", pickles100),
    Row("cifar100", npz("cifar100.npz", 100)),
    Row("svhn", mat),
    Row("cifar10_c", npy),
    Row("tiny_imagenet", tiny, k=2),
    Row("imagenet", big, k=2),
    Row("newsgroups20", post_folders, {"length": 4}, k=2),
    Row("newsgroups20", post_json, {"length": 4}, k=2),
    Row("newsgroups20", post_xz, {"length": 4}, k=2),
    Row("dbpedia", ontology_csv, {"length": 4}),
    Row("dbpedia", ontology_parquet, {"length": 4}),
]
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}-{row.write.__name__}")


def everything(inputs):
    return inputs[torch.arange(len(inputs))]


def read(row, folder):
    """Load a row's data set, and decode what is decoded on demand."""
    found = load(row.name, folder, row.options)
    return found, everything(found.train.inputs), everything(found.test.inputs)


def written(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_every_data_set_has_a_row():
    assert {row.name for row in ROWS} | {"digits"} == set(DATASETS)


@each_row
def test_what_was_written_is_read(row, tmp_path):
    expected = row.write(tmp_path)
    found = load(row.name, tmp_path, row.options)
    facts = DATASETS.entry(row.name).facts
    assert found.name == row.name
    assert found.k == len(found.classes) == (row.k or facts["k"])
    for part, x, y in (
        (found.train, expected.x_train, expected.y_train),
        (found.test, expected.x_test, expected.y_test),
    ):
        assert len(part) == len(y)
        assert part.labels.tolist() == y
        assert everything(part.inputs).tolist() == (x if isinstance(x, list) else x.tolist())
    if facts["kind"] == "images":
        assert everything(found.test.inputs).shape[1:] == (facts["channels"], facts["side"], facts["side"])
        assert len(found.mean) == len(found.std) == facts["channels"]
        assert found.vocabulary == ()
    else:
        assert found.vocabulary == ("<padding>", "<unknown>", "moon", "orbit", "the")
        assert found.mean == found.std == ()


@each_row
def test_a_missing_file_is_answered_with_what_to_fetch_and_where_to_put_it(row, tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        load(row.name, tmp_path, row.options)
    sentence = str(raised.value)
    assert sentence.startswith(f"{row.name} needs ")
    assert f" in {tmp_path}, or its sub-folder " in sentence
    assert "; fetch " in sentence
    assert sentence.endswith(" and put the files there.")


@each_row
def test_one_file_short_is_answered_with_its_name(row, tmp_path):
    row.write(tmp_path)
    for path in written(tmp_path):
        if path.name == "words.txt" or path.parent.name == "images" or path.parts[-3] in {"train", "val"}:
            continue  # nobody knows how many images there should be
        if path.parts[-3].startswith("20news") or path.suffix in {".npz", ".json", ".xz"}:
            continue  # or posts; and a form of one file is all there or all missing
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(FileNotFoundError, match=f"^{row.name} needs [^,]* beside ") as raised:
            read(row, tmp_path)
        assert path.name.removesuffix(".gz") in str(raised.value)
        path.write_bytes(whole)


@each_row
def test_a_truncated_file_is_refused_in_a_sentence_that_names_it(row, tmp_path):
    row.write(tmp_path)
    for path in written(tmp_path):
        if path.name == "words.txt" or path.parts[-3].startswith("20news"):
            continue  # any text will do
        whole = path.read_bytes()
        for size in (5 * len(whole) // 6, len(whole) // 2, 3, 0):
            path.write_bytes(whole[:size])
            with pytest.raises(ValueError, match="must") as raised:
                read(row, tmp_path)
            assert path.name in str(raised.value)
            assert str(raised.value).endswith(".")
            assert "\n" not in str(raised.value)
        path.write_bytes(whole)


@each_row
def test_a_foreign_file_is_refused_in_a_sentence_that_names_it(row, tmp_path):
    row.write(tmp_path)
    for path in written(tmp_path):
        if path.name == "words.txt" or path.parts[-3].startswith("20news"):
            continue  # any text will do
        whole = path.read_bytes()
        path.write_bytes(b"<!DOCTYPE html><html>404 not found</html>\n")
        with pytest.raises(ValueError, match="must") as raised:
            read(row, tmp_path)
        assert path.name in str(raised.value)
        assert "\n" not in str(raised.value)
        path.write_bytes(whole)


def test_the_wrong_one_of_two_sets_with_the_same_files_is_refused(tmp_path):
    idx(tmp_path)
    opening = struct.pack(">II", 0x801, 5) + bytes((9, 0, 0, 3, 0))
    load("mnist", tmp_path)
    images = struct.pack(">IIII", 0x803, 10, 28, 28) + bytes(10 * 28 * 28)
    put(tmp_path / MNIST[0], images)
    put(tmp_path / MNIST[1], struct.pack(">II", 0x801, 10) + bytes((9, 0, 0, 3, 0, 2, 7, 2, 5, 5)))
    load("fashion_mnist", tmp_path)
    with pytest.raises(ValueError, match=r"must belong to mnist; its labels are those of fashion_mnist\.$"):
        load("mnist", tmp_path)
    put(tmp_path / MNIST[1], opening)
    with pytest.raises(ValueError, match=r"must hold 5 images of 28 x 28, one a label; got \(10, 28, 28\)\.$"):
        load("mnist", tmp_path)


def test_a_wrong_magic_number_is_refused_though_the_sizes_are_right(tmp_path):
    idx(tmp_path)
    whole = (tmp_path / MNIST[0]).read_bytes()
    for magic, said in ((b"\0\0\x0d\x03", "00000d03"), (b"\0\0\x08\x01", "00000801"), (b"\x03\x08\0\0", "03080000")):
        put(tmp_path / MNIST[0], magic + whole[4:])
        with pytest.raises(ValueError, match=f"must be an idx file that begins with 00000803; got '{said}'"):
            load("mnist", tmp_path)


def test_a_sets_own_folder_goes_before_the_folder_around_it(tmp_path):
    idx(tmp_path)
    put(tmp_path / MNIST[1], struct.pack(">II", 0x801, 5) + bytes(5))
    expected = idx(tmp_path / "mnist")
    assert load("mnist", tmp_path).train.labels.tolist() == expected.y_train


def test_labels_outside_the_classes_are_refused(tmp_path):
    np.savez(
        tmp_path / "cifar10.npz",
        x_train=np.zeros((2, 32, 32, 3), np.uint8),
        y_train=[0, 10],
        x_test=np.zeros((1, 32, 32, 3), np.uint8),
        y_test=[0],
    )
    with pytest.raises(ValueError, match=r"cifar10: labels must lie in \[0, 10\), the classes; got \[0, 10\]"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_train": np.zeros((2, 32, 32, 3))}, r"must hold uint8 images \(n, 32, 32, 3\); got float64"),
        ({"x_test": np.zeros((2, 3, 32, 32), np.uint8)}, r"must hold uint8 images \(n, 32, 32, 3\); got uint8 \(2, 3"),
        ({"y_test": np.zeros(3, np.uint8)}, r"must hold a whole number a label; got uint8 \(3,\)"),
        ({"y_train": np.zeros(2)}, "must hold a whole number a label; got float64"),
        ({"y_train": np.array([{}, {}])}, "must hold plain arrays; it holds Python objects"),
    ],
)
def test_an_npz_of_other_arrays_is_refused(changed, message, tmp_path):
    arrays = {"x_train": np.zeros((2, 32, 32, 3), np.uint8), "y_train": np.zeros(2, np.uint8)}
    arrays |= {"x_test": arrays["x_train"], "y_test": arrays["y_train"]} | changed
    np.savez(tmp_path / "cifar10.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_a_severity_is_its_fifth_of_the_rows(severity, tmp_path):
    images = np.arange(10, dtype=np.uint8)[:, None, None, None] + np.zeros((32, 32, 3), np.uint8)
    np.save(tmp_path / "fog.npy", images)
    np.save(tmp_path / "labels.npy", np.arange(10))
    found = load("cifar10_c", tmp_path, {"corruption": "fog", "severity": severity})
    assert found.test.labels.tolist() == [2 * severity - 2, 2 * severity - 1]
    assert found.test.inputs[:, 0, 0, 0].tolist() == found.test.labels.tolist()


def test_corruptions_and_severities_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"corruption must be one of CIFAR-10-C's; got 'fogg'\. Did you mean 'fog'"):
        load("cifar10_c", tmp_path, {"corruption": "fogg"})
    with pytest.raises(ValueError, match="severity must be a whole number from 1 to 5; got 6"):
        load("cifar10_c", tmp_path, {"severity": 6})


def test_an_image_is_resized_as_an_independent_antialiased_filter_does_it_and_its_centre_cut_out(tmp_path):
    rng = np.random.default_rng(0)
    for height, width in ((90, 60), (50, 70), (33, 33)):
        smooth = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize((width, height))
        smooth.save(tmp_path / "a.png")
        scale = 40 / min(height, width)
        size = (max(40, int(height * scale)), max(40, int(width * scale)))
        x = torch.from_numpy(np.array(smooth)).permute(2, 0, 1)[None].double()
        whole = torch.nn.functional.interpolate(x, size=size, mode="bilinear", antialias=True)
        top, left = round((size[0] - 35) / 2), round((size[1] - 35) / 2)
        expected = whole[:, :, top : top + 35, left : left + 35]
        found = Images((tmp_path / "a.png",), side=35, shorter=40)[torch.tensor([0])]
        assert (found.double() - expected).abs().max() <= 1.5


def test_images_are_decoded_in_the_order_asked_for_and_grey_ones_get_three_channels(tmp_path):
    for i in range(30):
        Image.fromarray(np.full((4, 8), 8 * i, np.uint8)).save(tmp_path / f"{i}.png")
    part = Part(Images(tuple(tmp_path / f"{i}.png" for i in range(30)), 4, 4), torch.arange(30))
    rows = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    assert torch.equal(part.inputs[rows][:, :, 2, 2], (8 * rows[:, None]).expand(30, 3).to(torch.uint8))
    taken = part.take(rows[:7])
    assert len(taken) == len(taken.inputs) == 7
    assert torch.equal(everything(taken.inputs), part.inputs[rows[:7]])
    with pytest.raises(ValueError, match=r"side must lie in \[1, 4\], the shorter side; got 5"):
        Images((), 5, 4)


def test_images_that_are_listed_and_not_there_are_missed(tmp_path):
    tiny(tmp_path)
    (tmp_path / "tiny-imagenet-200" / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(FileNotFoundError, match=r"val_1\.JPEG does not exist; unpack its archive again\.$"):
        load("tiny_imagenet", tmp_path)
    for path in (tmp_path / "tiny-imagenet-200" / "train" / "n02" / "images").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"images must hold image files; it holds none\."):
        load("tiny_imagenet", tmp_path)


def test_folders_that_do_not_agree_are_refused(tmp_path):
    big(tmp_path)
    (tmp_path / "val" / "n01").rename(tmp_path / "val" / "n03")
    with pytest.raises(ValueError, match="Sort the validation images into folders by their WNID"):
        load("imagenet", tmp_path)


def test_parts_and_sets_that_are_none_are_refused():
    images, labels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="labels must be int64"):
        Part(images, labels.int())
    with pytest.raises(ValueError, match="labels must be one a row of inputs, 3; got 2"):
        Part(images, labels[:2])
    with pytest.raises(ValueError, match=r"inputs must be uint8 images .* got float32 of shape \(3, 1, 2, 2\)"):
        Part(images.float(), labels)
    with pytest.raises(ValueError, match="x: labels must lie in"):
        Dataset("x", Part(images, labels - 1), Part(images, labels), ("a", "b"))


def test_digits_are_those_of_scikit_learn_in_other_units():
    from sklearn.datasets import load_digits

    found, theirs = load("digits"), load_digits()
    assert (len(found.train), len(found.test), found.k) == (1197, 600, 10)
    rows = [
        (int(y), *np.rint(x.ravel() * 255 / 16).astype(int)) for x, y in zip(theirs.images, theirs.target, strict=True)
    ]
    ours = [
        (y, *x)
        for part in (found.train, found.test)
        for x, y in zip(part.inputs.flatten(1).tolist(), part.labels.tolist(), strict=True)
    ]
    assert sorted(ours) == sorted(rows)
    pixels = found.train.inputs.double() / 255
    assert found.mean[0] == pytest.approx(pixels.mean().item(), abs=5e-5)
    assert found.std[0] == pytest.approx(pixels.std(correction=0).item(), abs=5e-5)
    for c in range(10):
        share = 600 * (theirs.target == c).sum() / 1797
        assert abs((found.test.labels == c).sum().item() - share) < 1
    assert found.test.labels[:12].tolist() == [1, 2, 3, 1, 3, 5, 8, 0, 1, 5, 5, 4]


def test_words_are_those_of_the_texts_they_were_fitted_on_and_rows_have_one_length():
    words = Words.fit(["b a a c", "C c it's 12"], size=5)
    assert words.vocabulary == ("<padding>", "<unknown>", "c", "a", "12")
    assert words(["A, c; it's d", "", "12 12 12 12"], length=3).tolist() == [[3, 2, 1], [1, 0, 0], [4, 4, 4]]
    assert words(["x" * 500 + " c " * 9], length=3).tolist() == [[1, 2, 2]]
    assert Words.fit(["ax"], size=3)([" " * 8 + "axes"], length=1).tolist() == [[1]]  # no word is cut to a known one
    with pytest.raises(ValueError, match="vocabulary must be at least 3"):
        Words.fit(["a"], size=2)
    with pytest.raises(ValueError, match="length must be at least 1; got 0"):
        words(["a"], length=0)


def test_the_folder_comes_from_the_argument_or_the_environment(tmp_path, monkeypatch):
    expected = binary100(tmp_path)
    monkeypatch.setenv("CALIBRANT_DATA", str(tmp_path))
    assert load("cifar100").test.labels.tolist() == expected.y_test
    with pytest.raises(FileNotFoundError, match="data must be a folder that exists, with the files of cifar100"):
        load("cifar100", tmp_path / "nowhere")
    monkeypatch.delenv("CALIBRANT_DATA")
    with pytest.raises(
        ValueError, match=r"data must name the folder with the files of cifar100; pass it, or set \$CAL"
    ):
        load("cifar100")
    assert load("cifar100", str(tmp_path)).train.labels.tolist() == expected.y_train


def test_wrong_names_and_options_are_answered_with_the_near_ones(tmp_path):
    with pytest.raises(KeyError, match=r"calibrant\.training\.datasets has no 'cifar1O'\. Did you mean 'cifar1"):
        load("cifar1O", tmp_path)
    with pytest.raises(ValueError, match=r"among vocabulary, length; got 'lenght'\. Did you mean 'length'"):
        load("dbpedia", tmp_path, {"lenght": 3})
    with pytest.raises(ValueError, match="options of mnist must be among none; got 'side'"):
        load("mnist", tmp_path, {"side": 3})


def test_listing_the_data_sets_imports_nothing_heavy():
    heavy = "{'PIL', 'matplotlib', 'sklearn', 'pyarrow', 'scipy.io', 'pandas'}"
    code = (
        f"from calibrant.registry import DATASETS; len(DATASETS); import sys; print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@both_sizes
def test_real_images_have_the_stated_means(tmp_path, real):
    images, labels = tiles(real("cifar100/test.webp")), np.load(real("cifar100/labels.npz"))
    rows = len(images) * 9 // 10
    part = {"x_train": images[:rows], "y_train": labels["y_test"][:rows]}
    np.savez(tmp_path / "cifar100.npz", **part, x_test=images[rows:], y_test=labels["y_test"][rows:])
    found = load("cifar100", tmp_path)
    assert found.classes == tuple(labels["classes"].tolist())
    if real is larger:
        assert torch.cat([found.train.labels, found.test.labels]).bincount().unique().tolist() == [100]
    counts = torch.stack([x.flatten().bincount(minlength=256) for x in found.train.inputs.unbind(1)]).double()
    shares, values = counts / counts.sum(1, keepdim=True), torch.arange(256) / 255
    mean = (shares * values).sum(1)
    std = ((shares * values**2).sum(1) - mean**2).sqrt()
    near = 0.005 if real is larger else 0.03  # stated for the training images; these are others, and fewer
    assert mean.tolist() == pytest.approx(found.mean, abs=near)
    assert std.tolist() == pytest.approx(found.std, abs=near)


def test_some_real_posts_are_read():
    found = load("newsgroups20", small("text/20news_bydate.json.xz").parent, {"length": 32, "vocabulary": 100})
    assert (found.classes[0], len(found.classes)) == ("alt.atheism", 20)
    assert (len(found.train), len(found.test), len(found.vocabulary)) == (24, 12, 100)
    assert found.vocabulary[2] == "the"
    assert not (found.train.inputs == 0).all(1).any()


def test_real_posts_have_the_canonical_counts():
    folder = larger("text/20news_bydate.json.xz").parent
    found = load("newsgroups20", folder, {"length": 32, "vocabulary": 1000})
    assert found.classes[0] == "alt.atheism"
    assert (len(found.train), len(found.test), len(found.vocabulary)) == (11_314, 7_532, 1000)
    assert found.train.labels.bincount().tolist()[:4] == [480, 584, 591, 590]
    assert found.test.labels.bincount().tolist()[:4] == [319, 389, 394, 392]
    assert found.vocabulary[2:6] == ("the", "to", "of", "a")
    assert not (found.train.inputs == 0).all(1).any()
