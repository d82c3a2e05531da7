import os

import pytest
from tests.kernels.user_cache_helpers import set_owner

from polyhead.kernels import compile_library as user_cache


@pytest.fixture
def no_umask():
    old = os.umask(0)
    yield
    os.umask(old)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


def test_directories_and_files_are_private_or_unlocked(tmp_path, monkeypatch, no_umask):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    directory = user_cache.make_cache_dir("products", "cpu")
    assert directory == tmp_path / "new" / "polyhead" / "products" / "cpu"
    for path in (directory, directory.parent, directory.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    user_cache.write_private(directory / "file", b"content")
    assert (directory / "file").stat().st_mode & 0o777 == 0o600
    assert user_cache.read_private(directory / "file", max_bytes=7) == b"content"
    assert os.listdir(directory) == ["file"]
    with user_cache.lock_directory(tmp_path) as is_locked:
        assert is_locked

    def flock(file, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(user_cache.fcntl, "flock", flock)
    with user_cache.lock_directory(tmp_path) as is_locked:
        assert not is_locked


@pytest.mark.parametrize("level", ["polyhead", "polyhead/products"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720])
def test_directories_of_others_are_refused(level, mode, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    user_cache.make_cache_dir("products")
    (tmp_path / level).chmod(mode)
    with pytest.raises(PermissionError, match=f"{tmp_path / level} can be written by other users"):
        user_cache.make_cache_dir("products")
    (tmp_path / level).chmod(0o700)
    set_owner(monkeypatch, tmp_path / level, 4321)
    with pytest.raises(PermissionError, match=f"user 4321; expected user {os.getuid()}"):
        user_cache.make_cache_dir("products")


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o664, 0o646])
def test_files_writable_by_others_are_refused(mode, file, monkeypatch):
    file.chmod(mode)
    if mode & 0o22:
        assert user_cache.read_private(file, max_bytes=7) is None
        with pytest.raises(PermissionError):
            user_cache.check_private(file)
        monkeypatch.delattr(os, "getuid")  # systems without user ids have no check
    assert user_cache.read_private(file, max_bytes=7) == b"content"
    user_cache.check_private(file)


@pytest.mark.parametrize("foreign", ["file", "link"])
def test_links_need_both_owners(foreign, file, monkeypatch):
    link = file.with_name("link")
    link.symlink_to(file)
    user_cache.check_private(link)
    set_owner(monkeypatch, file.with_name(foreign), 4321)
    with pytest.raises(PermissionError, match="belongs to user 4321"):
        user_cache.check_private(link)


def test_irregular_files_are_not_read_and_links_replaced(file):
    assert user_cache.read_private(file, max_bytes=6) is None
    assert user_cache.read_private(file.parent, max_bytes=7) is None
    assert user_cache.read_private(file.with_name("missing"), max_bytes=7) is None
    os.mkfifo(file.with_name("fifo"), 0o600)
    assert user_cache.read_private(file.with_name("fifo"), max_bytes=7) is None
    link = file.with_name("link")
    link.symlink_to(file)
    user_cache.write_private(link, b"new")
    assert file.read_bytes() == b"content" and not link.is_symlink()
    assert link.read_bytes() == b"new"
