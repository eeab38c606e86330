import errno
import os
import subprocess
import sys

import pytest

from pathgp.runs.atomic import DiskFullError, atomic_path, check_writable, locked, write_atomically


def test_a_file_is_replaced_whole_with_ordinary_permissions(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text("old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    assert path.stat().st_mode == ordinary.stat().st_mode


def test_a_full_disk_is_a_sentence_with_the_name_of_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match=r"figures.json") as caught:
        write_atomically(tmp_path / "figures.json", b"new")
    assert (caught.value.errno, caught.value.strerror) == (errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "figures.json"
    path.write_text("old")

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_atomically(tmp_path / "nowhere" / "figures.json", b"new")


WRITER = """
import pathlib, sys
from pathgp.runs.atomic import atomic_path
with atomic_path(pathlib.Path(sys.argv[1])) as beside:
    beside.write_text("half")
    print(beside.name, flush=True)
    sys.stdin.readline()
    beside.write_text("whole")
"""


def start_writer(path):
    """A process that has written half a file, and the name of its temporary file."""
    command, environment = [sys.executable, "-c", WRITER, str(path)], {"PYTHONPATH": ":".join(sys.path)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_the_temporary_file_of_a_killed_writer_is_deleted_by_the_next(tmp_path):
    path, other = tmp_path / "model", tmp_path / ".other.0123456789ab"
    other.touch()
    process, temporary = start_writer(path)
    with process:
        process.kill()
    assert names(tmp_path) == {temporary, other.name}
    write_atomically(path, b"next")
    assert names(tmp_path) == {path.name, other.name}


def test_the_temporary_file_of_a_live_writer_is_left_alone(tmp_path):
    path = tmp_path / "model"
    process, temporary = start_writer(path)
    with process:
        write_atomically(path, b"quicker")
        assert names(tmp_path) == {path.name, temporary}
        process.communicate("\n")
    assert process.returncode == 0
    assert names(tmp_path) == {path.name}
    assert path.read_text() == "whole"


def test_a_lock_has_one_holder_at_a_time_and_may_be_deleted_by_it(tmp_path):
    path = tmp_path / "lock"
    with locked(path):
        with pytest.raises(BlockingIOError), locked(path):
            pass
        path.unlink()
    with locked(path):
        assert path.exists()


def test_a_file_in_a_temporary_file_needs_no_other(tmp_path):
    path = tmp_path / "model"
    with atomic_path(path) as beside:
        write_atomically(beside, b"whole")
        assert names(tmp_path) == {beside.name}
        assert not path.exists()
    assert names(tmp_path) == {path.name}
    assert path.read_bytes() == b"whole"


@pytest.mark.parametrize("links", [True, False])
def test_writers_that_replace_nothing_keep_every_result(tmp_path, monkeypatch, links):
    def no_link(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))  # as FAT says

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    path = tmp_path / "p.csv.gz"
    write_atomically(path, b"1", force=False)
    for number in (2, 3):
        with pytest.raises(FileExistsError, match=rf"{number}-p\.csv\.gz"):
            write_atomically(path, str(number).encode(), force=False)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {"p.csv.gz": b"1", "2-p.csv.gz": b"2", "3-p.csv.gz": b"3"}


def test_a_check_leaves_a_writable_folder_as_it_is_and_names_what_is_wrong_with_another(tmp_path, monkeypatch):
    check_writable(tmp_path / "model")
    assert not list(tmp_path.iterdir())

    def full(*_):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="model"):
        check_writable(tmp_path / "model")
    assert not list(tmp_path.iterdir())
