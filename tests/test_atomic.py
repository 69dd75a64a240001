"""The one writer: whole files or none, modes and links kept, leftovers of killed processes removed."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from calibrant.io.atomic import TEMPORARY, check_target, write_arrays, write_whole

SOURCE = Path(__file__).parent.parent / "src" / "calibrant"


def left(folder):
    return sorted(path.name for path in folder.glob(".*"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_there_and_nothing_else(tmp_path):
    for blob in (b"one", b"", b"three" * 100_000):
        write_whole(blob, tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == blob
    assert names(tmp_path) == ["file"]


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(tmp_path):
    before = os.umask(0o022)
    try:
        write_whole(b"new", tmp_path / "file")
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
        for mode in (0o600, 0o664, 0o444):
            (tmp_path / "file").chmod(mode)
            write_whole(b"again", tmp_path / "file")
            assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    finally:
        os.umask(before)


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write_whole(b"through a link that leads to no file yet", tmp_path / "link")
    write_whole(b"again", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_bytes() == b"again"
    assert not left(tmp_path)
    assert not left(tmp_path / "there")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("folder", "must be a file to write; it is a folder"),
        ("pipe", "must be a file to write; it is a device or a pipe"),
        ("loop", "must be a file to write; it is a link that leads to itself"),
        ("missing/file", "must lie in a folder that exists; '.*missing' does not"),
        ("file/inside", "must lie in a folder that exists; '.*file' does not"),
    ],
)
def test_a_place_where_no_file_can_be_is_refused(tmp_path, name, said):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for refuse in (lambda: write_whole(b"x", tmp_path / name), lambda: check_target(tmp_path / name, "")):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            refuse()
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_device_is_never_replaced():
    with pytest.raises(ValueError, match="it is a device or a pipe"):
        write_whole(b"x", Path(os.devnull))
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def limited(folder, code):
    """Run code in a process whose files cannot grow beyond 1 000 bytes: the disk is full."""
    start = (
        "import resource, signal, sys; from pathlib import Path\n"
        "import calibrant.io.atomic as atomic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "folder = Path(sys.argv[1])\n"
    )
    return subprocess.run([sys.executable, "-c", start + code, folder], capture_output=True, text=True, check=False)


def test_on_a_full_disk_the_old_file_is_unchanged_and_the_reason_is_said(tmp_path):
    write_whole(b"old", tmp_path / "file")
    done = limited(tmp_path, "atomic.write_whole(b'x' * 5000, folder / 'file')")
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"OSError: {tmp_path}/file could not be written: File too large. What was there is unchanged."
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_leftovers_of_a_killed_writer_are_removed_at_the_next_write_and_those_of_a_live_one_are_not(tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from calibrant.io.atomic import _temporary\n"
        "with _temporary(Path(sys.argv[1])) as (file, beside):\n"
        "    file.write(b'half'); file.flush(); print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "ready\n"
        assert len(left(tmp_path)) == 1
        write_whole(b"whole", tmp_path / "file")
        assert len(left(tmp_path)) == 1, "the other process is still writing"
        writer.send_signal(signal.SIGKILL)
    assert len(left(tmp_path)) == 1
    write_whole(b"whole", tmp_path / "file")
    assert not left(tmp_path)


def test_files_that_others_left_are_not_touched(tmp_path):
    for name in (".other.tmp", "calibrant-1.tmp", ".calibrant-1.npz"):
        (tmp_path / name).write_bytes(b"")
    write_whole(b"x", tmp_path / "file")
    assert names(tmp_path) == [".calibrant-1.npz", ".other.tmp", "calibrant-1.tmp", "file"]
    assert not Path("calibrant-1.tmp").match(TEMPORARY)


def test_writers_at_once_leave_one_of_their_files_whole(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from calibrant.io.atomic import write_whole\n"
        "for turn in range(100): write_whole(sys.argv[2].encode() * 20_000, Path(sys.argv[1]) / 'file')\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, tmp_path, letter]) for letter in "ab"]
    seen, end = set(), time.monotonic() + 60
    while any(writer.poll() is None for writer in writers) and time.monotonic() < end:
        if (tmp_path / "file").exists():
            found = (tmp_path / "file").read_bytes()
            assert len(found) == 20_000
            assert len(set(found)) == 1
            seen.add(found[:1])
    assert [writer.wait() for writer in writers] == [0, 0]
    assert seen == {b"a", b"b"}
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_refused_before_the_work(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OSError, match="must be a folder that can be written to: Permission denied"):
            check_target(tmp_path / "page.html", ".html")
    finally:
        tmp_path.chmod(0o700)


def test_targets_are_checked_by_ending_and_against_the_inputs(tmp_path):
    (tmp_path / "rows.npz").write_bytes(b"")
    (tmp_path / "again.npz").symlink_to(tmp_path / "rows.npz")
    with pytest.raises(ValueError, match=r"^a\.jpg must end in \.svg or \.png; got '\.jpg'\.$"):
        check_target(tmp_path / "a.jpg", [".svg", ".png"])
    for name in ("rows.npz", "again.npz"):
        with pytest.raises(ValueError, match="must not be a file that is read; name another"):
            check_target(tmp_path / name, ".npz", [tmp_path / "rows.npz"])
    assert check_target(tmp_path / "new.npz", ".npz", [tmp_path / "rows.npz"]) == tmp_path / "new.npz"
    assert names(tmp_path) == ["again.npz", "rows.npz"]


def test_arrays_come_back(tmp_path):
    write_arrays({"a": np.arange(3), "b": np.array(["x", "y"])}, tmp_path / "rows.npz")
    with np.load(tmp_path / "rows.npz") as found:
        assert found["a"].tolist() == [0, 1, 2]
        assert found["b"].tolist() == ["x", "y"]


def test_nothing_else_of_the_package_writes_files():
    """Whatever is written goes through the one writer; figures and arrays are made in memory first."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if path.name == "atomic.py":
            continue
        for call in ("write_text(", "write_bytes(", '.open("w', '.open("x', "np.save", "torch.save(", "json.dump("):
            assert call not in text, f"{path.name}: {call}"
