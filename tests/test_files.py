"""Files written whole: what is replaced, what is written through, and what is refused."""

import os
import resource
import stat
import threading

import pytest

from collectives.files import made_folder, obstacle, replacing, unwritable


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path):
    path = tmp_path / "table"
    path.write_text("old")
    path.chmod(0o640)
    with replacing(path) as file:
        file.write("né")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text(encoding="utf-8") == "né"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["table"]


def test_a_new_file_gets_the_usual_mode(tmp_path):
    for name, mode in (("text", "w"), ("bytes", "wb")):
        with replacing(tmp_path / name, mode) as file:
            file.write("1" if mode == "w" else b"1")
    (tmp_path / "plain").write_text("1")
    assert len({stat.S_IMODE(entry.stat().st_mode) for entry in os.scandir(tmp_path)}) == 1


def test_links_stay(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    with replacing(tmp_path / "link") as file:
        file.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "table"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines(["half", 2])
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["table"]


def test_a_write_that_fails_names_the_file(tmp_path):
    """A limit on the size of files stands for a disk that is full."""
    path, limits = tmp_path / "table", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_text("old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large: .*/table'"), replacing(path) as file:
            file.write("x" * 20_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["table"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes device nodes")
@pytest.mark.parametrize(("minor", "full"), [(3, False), (7, True)])
def test_a_device_stays_a_device(tmp_path, minor, full):
    """Numbers 3 and 7 are those of /dev/null and /dev/full."""
    path = tmp_path / "device"
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    assert obstacle(path) is None
    if full:
        with pytest.raises(OSError, match="No space left"), replacing(path) as file:
            file.write("x")
    else:
        with replacing(path) as file:
            file.write("x")
    assert stat.S_ISCHR(path.stat().st_mode)


def test_a_folder_that_is_not_there_is_named_as_it_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as raised, replacing(tmp_path / "none/table"):
        pass
    assert raised.value.filename == str(tmp_path / "none/table")


def test_what_cannot_be_written_is_said_before(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert obstacle(tmp_path / "pipe") == "it is neither a file nor a character device"
    assert obstacle(tmp_path) == "it is a directory"
    assert obstacle(tmp_path / "none" / "file") == f"there is no directory {tmp_path / 'none'}"
    assert obstacle(tmp_path / "new") is None
    assert unwritable([tmp_path / "new", None]) is None
    assert unwritable([None, tmp_path / "new", tmp_path]) == f"cannot write {tmp_path}: it is a directory"


def test_a_folder_is_made_with_its_parents(tmp_path):
    assert made_folder(tmp_path / "a" / "b").is_dir()
    assert made_folder(tmp_path / "a") == tmp_path / "a"
    with pytest.raises(NotADirectoryError, match="/dev/null/out"):
        made_folder("/dev/null/out")


def test_a_link_that_others_put_beside_a_file_is_not_followed(tmp_path):
    """In a folder such as /tmp others may guess the names of the files that are written beside the target."""
    (tmp_path / "victim").write_text("precious")
    for end in ("", *(f".{number}" for number in range(1000))):
        (tmp_path / f"table.{os.getpid()}{end}").symlink_to("victim")
    with replacing(tmp_path / "table") as file:
        file.write("new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "table").is_symlink()
    assert (tmp_path / "table").read_text() == "new"


def test_threads_write_one_file(tmp_path):
    path, failed = tmp_path / "table", []

    def write(letter):
        try:
            for _ in range(20):
                with replacing(path) as file:
                    file.write(letter * 10_000)
        except OSError as e:
            failed.append(e)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            text = path.read_text()
            assert text in [letter * 10_000 for letter in "abc"]
    assert failed == []
    assert os.listdir(tmp_path) == ["table"]


def test_a_long_name_is_no_obstacle(tmp_path):
    path = tmp_path / ("n" * 255)
    with replacing(path) as file:
        file.write("1")
    assert path.read_text() == "1"


def test_a_pipe_is_written_to(tmp_path):
    """As by --json /dev/stdout, whose output goes to another program: the pipe has no other name."""
    reading, writing = os.pipe()
    with replacing(f"/dev/fd/{writing}") as file:
        file.write("through")
    os.close(writing)
    assert os.read(reading, 100) == b"through"
    os.close(reading)
