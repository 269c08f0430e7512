from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from octavo.model.appearing import appearing, write_all

WRITER = """
import sys, time
from pathlib import Path
from octavo.model.appearing import appearing
with appearing(Path(sys.argv[1])) as file:
    file.write(b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_file_appears_when_it_is_whole_and_for_its_owner_only(tmp_path):
    path = tmp_path / "deep" / "file"
    with appearing(path) as file:
        write_all(file, memoryview(b"content"))
        assert not path.exists()
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError()])
def test_a_failure_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(type(error)), appearing(path) as file:
        file.write(b"after")
        raise error
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / name], stdout=subprocess.PIPE)
        for name in ("killed", "living")
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
        left = set(tmp_path.iterdir())
        writers[0].send_signal(signal.SIGKILL)
        writers[0].wait()
        long_ago = time.time() - 1000
        for path in left:
            os.utime(path, (long_ago, long_ago))
        with appearing(tmp_path / "next"):
            pass
        assert len(left) == 2 and len(left & set(tmp_path.iterdir())) == 1
        with appearing(tmp_path / "next"):  # one that has only begun may not have locked its file yet
            (tmp_path / ".writing-new").touch()
        with appearing(tmp_path / "next"):
            pass
        assert (tmp_path / ".writing-new").exists()
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
