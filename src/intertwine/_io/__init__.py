"""Reading and writing: files whole or not at all, values as plain data, temporary files that nobody has to remove."""

from .files import (
    as_json,
    check_writable,
    digest,
    file_digest,
    read_json,
    read_tensors,
    remove_empty_folders,
    storage_fault,
    versions,
    write_atomically,
    write_json,
    write_tensors,
    write_text,
)

__all__ = [
    "as_json", "check_writable", "digest", "file_digest", "read_json", "read_tensors", "remove_empty_folders",
    "storage_fault", "versions", "write_atomically", "write_json", "write_tensors", "write_text",
]  # fmt: skip
